package config

// Settings are all keys, in the order of the documentation. The slice must not be changed.
func Settings() []Setting { return settings }

var settings = []Setting{
	{Key: exportsKey, Reload: true, See: "exports.md",
		Usage: "export `DIR[=PSEUDO][(OPTIONS)] [CLIENT(OPTIONS)]...`; replaces the file's exports; repeatable",
		Text:  "the exports. The flag and the variable (several exports separated by `;`) replace the file's list"},
	{Key: "exports_file", Reload: true, See: "exports.md#tables-as-etcexports",
		Usage: "also serve the exports of a `FILE` in the syntax of /etc/exports",
		Text:  "a table in the syntax of `/etc/exports`, served beside `exports`"},
	{Key: "rdma_listen", Reload: true, See: "providers.md",
		Usage: "serve RPC-over-RDMA on `ADDR:PORT`, or with a provider, such as verbs://ADDR:PORT; repeatable; empty " +
			"for none",
		Text: "`ADDR:PORT` of NFS over RDMA; without an address on every address of the host. `soft://ADDR:PORT`, " +
			"`verbs://ADDR:PORT` and `verbs://DEVICE:PORT` choose the provider of the device"},
	{Key: "rdma_provider", Reload: true, See: "providers.md",
		Usage: "provider of the RDMA devices of listeners without one: auto, soft (user space) or verbs (the kernel)",
		Text: "provider of the RDMA devices of listeners without one: `soft` is the stack in user space, `verbs` the " +
			"kernel's devices. `auto` is the kernel if a device of it has the address and is up, and user space " +
			"otherwise"},
	{Key: "rdma_cnp_dscp", See: "hardware.md#roce",
		Usage: "`DSCP` of congestion notifications (CNP) of devices in user space, 0 to 63; 0 for that of the " +
			"connection",
		Text: "DSCP of congestion notifications (CNP) of devices in user space; 0 is that of the connection, which " +
			"the client chooses"},
	{Key: "tcp_listen", Reload: true,
		Usage: "serve TCP on `ADDR:PORT`; repeatable; empty for none",
		Text:  "`ADDR:PORT` of NFS over TCP"},
	{Key: "mount_listen", Reload: true,
		Usage: "serve the same programs on another TCP `ADDR:PORT`; repeatable",
		Text:  "other TCP addresses that serve the same programs"},
	{Key: "portmap_listen", Reload: true,
		Usage: "answer portmap and rpcbind queries on `ADDR:PORT`; repeatable",
		Text:  "addresses that answer portmap and rpcbind queries (normally port 111)"},
	{Key: "pkeys", Reload: true, See: "exports.md#tenants",
		Usage: "partition `KEY`s of the RDMA devices; repeatable",
		Text:  "partition keys of the RDMA devices; the first is the default of connections"},
	{Key: "state_dir",
		DefaultText: "root: `/var/lib/rstored`; others: `$XDG_STATE_HOME/rstored` or `~/.local/state/rstored`",
		Usage:       "`DIR` of the state that must survive a restart",
		Text: "directory of the state that must survive a restart, which nobody else owns or can write. Under systemd " +
			"the default is `$STATE_DIRECTORY`"},
	{Key: "control",
		DefaultText: "root: `/run/rstored/rstored.sock`; others: `$XDG_RUNTIME_DIR/rstored/rstored.sock`, or without " +
			"that variable in the state directory",
		Usage: "path of the control `SOCKET`",
		Text: "the control socket, in a directory that nobody else owns or can write. Under systemd the default is in " +
			"`$RUNTIME_DIRECTORY`"},
	{Key: "control_group",
		Usage: "`GROUP` that may use the control socket, beside root and the daemon's user; its members equal root",
		Text: "group whose members may use the control socket, beside root and the daemon's user. They equal root, " +
			"because they can export any directory"},
	{Key: "control_tls.listen", Reload: true, See: "security.md#control-from-other-hosts",
		Usage: "let other hosts control the server by TLS at `ADDR:PORT`; repeatable",
		Text: "`ADDR:PORT` where other hosts control the server, by TLS with certificates of both sides, such as " +
			"`10.0.0.1:9048`. By default nothing listens"},
	{Key: "control_tls.certificate", Reload: true,
		Usage: "`FILE` with the server's certificate for control, PEM",
		Text: "file with the server's certificate and intermediate certificates, PEM. The server reads it again when " +
			"it changes"},
	{Key: "control_tls.key", Reload: true,
		Usage: "`FILE` with the key of that certificate, PEM",
		Text:  "file with the key of that certificate, PEM"},
	{Key: "control_tls.client_ca", Reload: true,
		Usage: "`FILE` with the authorities of the certificates of administrators and readers, PEM",
		Text:  "file with the authorities that certificates of clients must come from, PEM. Without it nothing listens"},
	{Key: "control_tls.admins", Reload: true,
		Usage: "`NAME` in the certificates of administrators; repeatable",
		Text: "names of administrators: the common name of a certificate, or one of its alternative names (DNS, mail, " +
			"URI). `\"*\"` is everyone. Without this key there is no administrator. Administrators equal root"},
	{Key: "control_tls.readers", Reload: true,
		Usage: "`NAME` in the certificates of readers; repeatable",
		Text:  "names of readers, who may look, but neither change anything nor capture packets nor trace calls"},
	{Key: "log_level", Reload: true,
		Usage: "`LEVEL` debug, info, warn or error",
		Text:  "`debug`, `info`, `warn`, `error`"},
	{Key: "log_format",
		Usage: "`FORMAT` auto, console or json",
		Text:  "`console` for people, `json` for machines; `auto` is `console` if standard error is a terminal"},
	{Key: "shards",
		Usage: "packet loops per RDMA device, a power of two (0: one)",
		Text:  "packet loops per RDMA device, a power of two, at most 64; 0 is one"},
	{Key: "workers",
		Usage: "calls that may wait for storage at once (0: 16)",
		Text:  "calls that may wait for storage at once, at most 4096; 0 is 16"},
	{Key: "max_connections",
		Usage: "connections at each port",
		Text:  "most connections of each port; others are refused"},
	{Key: "max_clients",
		Usage: "addresses that clients come from, at all ports (0: any number)",
		Text:  "most client addresses, at all ports; connections of others are refused. 0 is no limit"},
	{Key: "max_client_connections",
		Usage: "connections of each client, at all ports (0: any number)",
		Text: "most connections of each address, at all ports, including half-open ones; others are refused. 0 is no " +
			"limit. A mount has `nconnect=` of them"},
	{Key: "memory", See: "tuning.md#memory",
		Usage: "`BYTES` of memory for RDMA, such as 512M",
		Text: "bytes of memory that all connections over RDMA share, such as `512M`, at least `16M`; taken from the " +
			"system when used"},
	{Key: "nfs4_memory", See: "tuning.md#state-of-version-4",
		Usage: "`BYTES` that clients of version 4 can make the server remember, such as 1G",
		Text: "bytes that clients of version 4 can make the server remember: clients, sessions with their replies, " +
			"opens, locks, delegations"},
	{Key: "nfs4_client_memory", See: "tuning.md#state-of-version-4",
		Usage: "`BYTES` of nfs4-memory for one host, such as 256M",
		Text:  "bytes of `nfs4_memory` for one host; in IPv6 for a network of 64 bits"},
	{Key: "slow_timeout",
		Usage: "end a connection after its client took no data for so long",
		Text: "time after which a connection ends whose client takes no replies, or does not give the data of its " +
			"calls; 1 second to an hour"},
	{Key: "lease_time",
		Usage: "how long a client of NFS version 4 may be silent",
		Text: "how long a client of NFS version 4 may be silent before other clients can get its opens and locks; 10 " +
			"seconds to an hour"},
	{Key: "grace_time",
		Usage: "how long clients of NFS version 4 may reclaim after a restart (0: lease-time)",
		Text: "how long clients of NFS version 4 may reclaim files and locks after a restart, not shorter than " +
			"`lease_time`; 0 is a lease. When you shorten leases, keep the old time here for one restart"},
	{Key: "nfs_versions",
		Usage: "serve NFS `VERSION`s 3, 4.0, 4.1, 4.2; repeatable",
		Text: "versions of NFS to serve. The lock manager and MOUNT belong to version 3. `4.0` without quotation " +
			"marks is understood"},
	{Key: "idmap.method", See: "configuration.md#users-and-groups",
		Usage: "identify users and groups by `METHOD` numeric or names in version 4",
		Text:  "how version 4 identifies users and groups: `numeric` or `names`"},
	{Key: "idmap.domain",
		DefaultText: "the DNS domain of the host, or `localdomain`",
		Usage:       "`DOMAIN` of users and groups in version 4 (default: the host's)",
		Text:        "domain of the names of users and groups"},
	{Key: "utf8",
		Usage: "`NAMES` of files in version 4: any or strict",
		Text: "names of files in version 4: `any` bytes, as in the Linux server, or `strict`, which refuses names " +
			"that are not UTF-8"},
	{Key: "showmount", Reload: true, See: "exports.md#what-clients-see",
		Usage: "answer showmount with the client's `OWN` exports and mounts, or with all",
		Text: "answer to `showmount` (MOUNT version 3): `own` lists the exports that the client may mount, each with " +
			"the rule for it, and its own mounts. `all` lists everything to everybody"},
	{Key: "ops_listen", Reload: true, See: "monitoring.md",
		Usage: "serve metrics and health checks by HTTP on `ADDR:PORT`; repeatable",
		Text: "`ADDR:PORT` of metrics and health checks by HTTP. There is no authentication, so by default nothing " +
			"listens. Use a loopback address or one of a management network, such as `127.0.0.1:9049`"},
	{Key: "ops_hosts", Reload: true, See: "monitoring.md",
		Usage: "`NAME` in requests to --ops-listen, * for any; repeatable",
		Text: "host names that requests to `ops_listen` may name, besides addresses, `localhost` and the host's own " +
			"name; `\"*\"` is any. Requests for other names are refused: a page of another site could let its own name " +
			"resolve to this address"},
	{Key: "ops_pprof", Reload: true,
		Usage: "let everyone who reaches --ops-listen profile the process",
		Text:  "allows everyone who reaches `ops_listen` to profile the process"},
	{Key: "ops_clients",
		Usage: "clients with metrics of their own",
		Text:  "number of clients with metrics of their own, 0 to 10000; the others are counted together"},
	{Key: "audit", See: "monitoring.md#audit-log",
		Usage: "write mounts, clients and changes to the `LOG`: log, 'file PATH' or off",
		Text: "destination of the audit log, which has mounts, clients and changes: `log`, `file PATH` or `off`. A " +
			"reload opens the file again"},
	{Key: "otlp.endpoint", Reload: true, See: "monitoring.md#traces",
		Usage: "send traces of calls to the OpenTelemetry collector at `URL`",
		Text: "base URL of an OpenTelemetry collector for traces of calls by OTLP over HTTP, such as " +
			"`http://127.0.0.1:4318`. Without it no calls are traced"},
	{Key: "otlp.sample", Reload: true,
		Usage: "`RATIO` of the calls that are traced, 0 to 1",
		Text:  "fraction of the calls that is traced, 0 to 1, chosen at random"},
	{Key: "otlp.ca", Reload: true,
		Usage: "`FILE` of the authorities that the collector's certificate must come from",
		Text: "PEM file of the authorities that the collector's certificate must come from. The default is the " +
			"authorities of the host"},
	{Key: "tls.certificate", Reload: true, See: "security.md#tls",
		Usage: "offer TLS to NFS over TCP with the certificate of a `FILE`",
		Text: "PEM file of the server's certificate and intermediate certificates. With it clients over TCP may start " +
			"TLS (RFC 9289), at the same ports. A renewed file is used without a reload"},
	{Key: "tls.key", Reload: true, See: "security.md#tls",
		Usage: "`FILE` of the certificate's private key",
		Text:  "PEM file of its private key"},
	{Key: "tls.client_ca", Reload: true, See: "security.md#tls",
		Usage: "`FILE` of the authorities that certificates of clients must come from",
		Text:  "PEM file of the authorities that certificates of clients must come from. Without it no client is `mtls`"},
	{Key: "tls.xprtsec", Reload: true, See: "exports.md#options",
		Usage: "protection of TCP that exports without xprtsec accept: none, tls, mtls; repeatable",
		Text:  "protection of TCP that exports without `xprtsec` accept: `none`, `tls`, `mtls`"},
	{Key: "stop_timeout", Reload: true,
		Usage: "how long a graceful stop may take",
		Text:  "how long a graceful stop may take"},
	{Key: "perf.listen", Reload: true,
		Usage: "let 'rstorectl perf' measure at `ADDR:PORT`; repeatable",
		Text:  "`ADDR:PORT` as in `rdma_listen`, with another port. The port of perftest is 18515"},
	{Key: "perf.clients", Reload: true,
		Usage: "`CIDR` of clients that may measure, * for all; repeatable",
		Text:  "prefixes of clients that may measure, `\"*\"` for everyone. Required with `perf.listen`"},
	{Key: "perf.max_size", Reload: true,
		Usage: "largest message of a measurement in bytes",
		Text:  "largest message in bytes, at most the default"},
	{Key: "perf.max_depth", Reload: true,
		Usage: "messages under way on a queue pair of a measurement",
		Text:  "most messages under way on a queue pair"},
	{Key: "perf.max_qps", Reload: true,
		Usage: "queue pairs of a measurement",
		Text:  "queue pairs of a measurement"},
	{Key: "perf.max_connections", Reload: true,
		Usage: "queue pairs of all measurements",
		Text:  "queue pairs of all measurements"},
	{Key: "perf.max_memory", Reload: true,
		Usage: "bytes of memory for all measurements",
		Text: "bytes for the buffers of all measurements, in addition to the memory of the file service; taken from " +
			"the system when used"},
	{Key: "perf.idle_timeout", Reload: true,
		Usage: "end a measurement after its client was silent for so long",
		Text:  "time after which a measurement with a silent client ends"},
	{Key: "perf.max_duration", Reload: true,
		Usage: "end measurements that take longer",
		Text:  "time after which every measurement ends"},
}

// Part is a key of an export, or of a client's rule in one.
type Part struct{ Key, Text string }

// ExportParts are the keys of an entry of exports, in Markdown as Setting.Text.
func ExportParts() []Part { return exportParts }

// ClientParts are those of an entry of its clients.
func ClientParts() []Part { return clientParts }

var exportParts = []Part{
	{"path", "the absolute path of the directory; for a memory export a label"},
	{"pseudo", "path by which clients mount; default: `/` and the last part of the path"},
	{"type", "`posix`, a directory of the host (default), or `memory`, which is lost at the end of the process"},
	{"read_only", "refuses changes to every client"},
	{"async", "acknowledges stable writes before they are on disk. A crash of the host then loses data that the client " +
		"believes safe"},
	{"direct", "lets long aligned READs and WRITEs bypass the page cache of the host"},
	{"host_locks", "takes locks of clients on the host too (default `true`)"},
	{"pkeys", "RDMA partitions of the clients. Without this key all partitions, and clients over TCP, have access"},
	{"fsid", "the file system's number for clients: a number, a UUID, or `root`, which makes the export the root of " +
		"version 4"},
	{"crossmnt", "also exports file systems that are mounted below, by the same rules"},
	{"mountpoint", "serves the export only while something is mounted at this directory; `.` stands for `path`"},
	{"bandwidth", "bytes a second for all clients together, such as `500M`"},
	{"iops", "operations a second for all clients together"},
	{"first_match", "applies the first network that a client is in, as in exports(5), instead of the longest prefix"},
	{"clients", "the rules; without any the export is for the server's own host only, with root squashed"},
}

var clientParts = []Part{
	{"cidr", "a prefix, an address, or `\"*\"` for everyone"},
	{"host", "instead of `cidr`: a host name, a pattern such as `*.example.org`, or a `@netgroup`"},
	{"read_only", "refuses changes to this client"},
	{"squash", "`root_squash` (default), `no_root_squash` or `all_squash`"},
	{"anonuid", "the user that squashed callers become, default 65534"},
	{"anongid", "the group that squashed callers become, default 65534"},
	{"secure", "requires TCP from a port below 1024"},
	{"sec", "accepted flavors: `sys`, `none`; default both"},
	{"transports", "accepted transports: `rdma`, `tcp`; default both"},
	{"xprtsec", "accepted protection of TCP: `none`, `tls`, `mtls`; default `tls.xprtsec`"},
	{"rsize", "most bytes of one READ, a multiple of 1024; default 1048576"},
	{"wsize", "most bytes of one WRITE"},
	{"bandwidth", "bytes a second for each client, such as `500M`"},
	{"iops", "operations a second for each client"},
	{"manage_gids", "takes the groups of users from the server's database"},
	{"nohide", "lets version 3 walk from the outer export into this one"},
	{"nordirplus", "refuses READDIRPLUS"},
}
