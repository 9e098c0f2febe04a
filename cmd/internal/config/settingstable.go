package config

// Settings are all keys, in the order of the documentation. The slice must not be changed.
func Settings() []Setting { return settings }

// When a changed setting takes effect.
const (
	atStart  = false
	atReload = true
)

// row is a setting whose default is a value. The descriptions are those of Setting.
func row(key string, reload bool, see, usage, text string) Setting {
	return Setting{Key: key, Reload: reload, See: see, Usage: usage, Text: text}
}

// withDefault describes a default that depends on who runs the daemon.
func (s Setting) withDefault(text string) Setting {
	s.DefaultText = text
	return s
}

var settings = []Setting{
	row(exportsKey, atReload, "exports.md",
		"export `DIR[=PSEUDO][(OPTIONS)] [CLIENT(OPTIONS)]...`; replaces the file's exports; repeatable",
		"the exports. The flag and the variable (several exports separated by `;`) replace the file's list"),
	row("exports_file", atReload, "exports.md#tables-as-etcexports",
		"also serve the exports of a `FILE` in the syntax of /etc/exports",
		"a table in the syntax of `/etc/exports`, served beside `exports`"),
	row("rdma_listen", atReload, "providers.md",
		"serve RPC-over-RDMA on `ADDR:PORT`, or with a provider, such as verbs://ADDR:PORT; repeatable; empty "+
			"for none",
		"`ADDR:PORT` of NFS over RDMA; without an address on every address of the host. `soft://ADDR:PORT`, "+
			"`verbs://ADDR:PORT` and `verbs://DEVICE:PORT` choose the provider of the device"),
	row("rdma_provider", atReload, "providers.md",
		"provider of the RDMA devices of listeners without one: auto, soft (user space) or verbs (the kernel)",
		"provider of the RDMA devices of listeners without one: `soft` is the stack in user space, `verbs` the "+
			"kernel's devices. `auto` is the kernel if a device of it has the address and is up, and user space "+
			"otherwise"),
	row("rdma_cnp_dscp", atStart, "hardware.md#roce",
		"`DSCP` of congestion notifications (CNP) of devices in user space, 0 to 63; 0 for that of the "+
			"connection",
		"DSCP of congestion notifications (CNP) of devices in user space; 0 is that of the connection, which "+
			"the client chooses"),
	row("rdma_local_icrc", atStart, "transport.md#the-icrc-on-one-host",
		"send the ICRC to rstored processes on this host too (devices in user space)",
		"send and check the ICRC of packets to and from rstored processes on this host too (devices in user space)"),
	row("tcp_listen", atReload, "",
		"serve TCP on `ADDR:PORT`; repeatable; empty for none",
		"`ADDR:PORT` of NFS over TCP"),
	row("mount_listen", atReload, "",
		"serve the same programs on another TCP `ADDR:PORT`; repeatable",
		"other TCP addresses that serve the same programs"),
	row("portmap_listen", atReload, "",
		"answer portmap and rpcbind queries on `ADDR:PORT`; repeatable",
		"addresses that answer portmap and rpcbind queries (normally port 111)"),
	row("udp_listen", atReload, "protocols.md#udp",
		"answer portmap, MOUNT, locks and quotas, but not NFS, by UDP on `ADDR:PORT`; repeatable",
		"addresses that answer by UDP (normally port 111): portmap and rpcbind queries, MOUNT, locks and quotas, "+
			"but not NFS. Only hosts that an export admits get an answer. For trusted networks only: locks can be ended "+
			"by a false source address"),
	row("pkeys", atReload, "exports.md#tenants",
		"partition `KEY`s of the RDMA devices; repeatable",
		"partition keys of the RDMA devices; the first is the default of connections"),
	row("state_dir", atStart, "",
		"`DIR` of the state that must survive a restart",
		"directory of the state that must survive a restart, which nobody else owns or can write. Under systemd "+
			"the default is `$STATE_DIRECTORY`").withDefault(
		"root: `/var/lib/rstored`; others: `$XDG_STATE_HOME/rstored` or `~/.local/state/rstored`"),
	row("control", atStart, "",
		"path of the control `SOCKET`",
		"the control socket, in a directory that nobody else owns or can write. Under systemd the default is in "+
			"`$RUNTIME_DIRECTORY`").withDefault(
		"root: `/run/rstored/rstored.sock`; others: `$XDG_RUNTIME_DIR/rstored/rstored.sock`, " +
			"or without that variable in the state directory"),
	row("control_group", atStart, "",
		"`GROUP` that may use the control socket, beside root and the daemon's user; its members equal root",
		"group whose members may use the control socket, beside root and the daemon's user. They equal root, "+
			"because they can export any directory"),
	row("control_tls.listen", atReload, "security.md#control-from-other-hosts",
		"let other hosts control the server by TLS at `ADDR:PORT`; repeatable",
		"`ADDR:PORT` where other hosts control the server, by TLS with certificates of both sides, such as "+
			"`10.0.0.1:9048`. By default nothing listens"),
	row("control_tls.certificate", atReload, "",
		"`FILE` with the server's certificate for control, PEM",
		"file with the server's certificate and intermediate certificates, PEM. The server reads it again when "+
			"it changes"),
	row("control_tls.key", atReload, "",
		"`FILE` with the key of that certificate, PEM",
		"file with the key of that certificate, PEM"),
	row("control_tls.client_ca", atReload, "",
		"`FILE` with the authorities of the certificates of administrators and readers, PEM",
		"file with the authorities that certificates of clients must come from, PEM. Without it nothing listens"),
	row("control_tls.admins", atReload, "",
		"`NAME` in the certificates of administrators; repeatable",
		"names of administrators: the common name of a certificate, or one of its alternative names (DNS, mail, "+
			"URI). `\"*\"` is everyone. Without this key there is no administrator. Administrators equal root"),
	row("control_tls.readers", atReload, "",
		"`NAME` in the certificates of readers; repeatable",
		"names of readers, who may look, but neither change anything nor capture packets nor trace calls"),
	row("log_level", atReload, "",
		"`LEVEL` debug, info, warn or error",
		"`debug`, `info`, `warn`, `error`"),
	row("log_format", atStart, "",
		"`FORMAT` auto, console or json",
		"`console` for people, `json` for machines; `auto` is `console` if standard error is a terminal"),
	row("shards", atStart, "",
		"packet loops per RDMA device, a power of two (0: one)",
		"packet loops per RDMA device, a power of two, at most 64; 0 is one"),
	row("workers", atStart, "",
		"calls that may wait for storage at once (0: 16)",
		"calls that may wait for storage at once, at most 4096; 0 is 16"),
	row("max_connections", atStart, "",
		"connections at each port",
		"most connections of each port; others are refused"),
	row("max_clients", atStart, "",
		"addresses that clients come from, at all ports (0: any number)",
		"most client addresses, at all ports; connections of others are refused. 0 is no limit"),
	row("max_client_connections", atStart, "",
		"connections of each client, at all ports (0: any number)",
		"most connections of each address, at all ports, including half-open ones; others are refused. 0 is no "+
			"limit. A mount has `nconnect=` of them"),
	row("memory", atStart, "tuning.md#memory",
		"`BYTES` of memory for RDMA, such as 512M",
		"bytes of memory that all connections over RDMA share, such as `512M`, at least `16M`; taken from the "+
			"system when used"),
	row("mapped_memory", atReload, "tuning.md#what-top-and-ps-show",
		"`BYTES` of page cache that exports lend to RDMA, such as 4G (0: none)",
		"bytes of page cache that all exports together lend to RDMA, such as `4G`, at most `64G`; `0` is none. They "+
			"count as memory of the process"),
	row("nfs4_memory", atStart, "tuning.md#state-of-version-4",
		"`BYTES` that clients of version 4 can make the server remember, such as 1G",
		"bytes that clients of version 4 can make the server remember: clients, sessions with their replies, "+
			"opens, locks, delegations"),
	row("nfs4_client_memory", atStart, "tuning.md#state-of-version-4",
		"`BYTES` of nfs4-memory for one host, such as 256M",
		"bytes of `nfs4_memory` for one host; in IPv6 for a network of 64 bits"),
	row("slow_timeout", atStart, "",
		"end a connection after its client took no data for this `DURATION`",
		"time after which a connection ends whose client takes no replies, or does not give the data of its "+
			"calls; 1 second to an hour"),
	row("lease_time", atStart, "",
		"how long a client of NFS version 4 may be silent",
		"how long a client of NFS version 4 may be silent before other clients can get its opens and locks; 10 "+
			"seconds to an hour"),
	row("grace_time", atStart, "",
		"how long clients of NFS version 4 may reclaim after a restart (0: lease-time)",
		"how long clients of NFS version 4 may reclaim files and locks after a restart, not shorter than "+
			"`lease_time`; 0 is a lease. When you shorten leases, keep the old time here for one restart"),
	row("ha_lease", atStart, "ha.md",
		"nodes share the state directory, and one at a time serves, by a lease of `DURATION` (0: one node)",
		"the state directory is on storage that several nodes share. The one that has the lease serves, for this "+
			"long without a renewal: `1s` to `1m`. 0: one node"),
	row("ha_node", atStart, "ha.md",
		"`NAME` of this node, if nodes share the state directory (default: the host's)",
		"name of this node. No other node may have it").withDefault("the name of the host"),
	row("ha_listen", atStart, "ha.md",
		"take over from the node that serves at `ADDRESS`, HOST:PORT of this node alone, for a planned failover",
		"where a node that waits for the lease takes over from the one that serves (`rstorectl failover`): an address "+
			"of this node alone, as `10.0.0.2:20050`. Empty: nobody can hand over to this node"),
	row("ha_promote", atStart, "ha.md",
		"take a free lease by `MODE` auto, address: while this host has the address, or manual: after 'rstorectl ha promote'",
		"`auto`: a node that waits takes the lease as soon as that is free. `address`: only while its host has an address "+
			"of `rdma_listen` or `tcp_listen`. `manual`: only after `rstorectl ha promote`. In each of these modes the node "+
			"takes the lease, too, when the other node hands over"),
	row("cluster_pool", atStart, "ceph.md#a-cluster-of-servers",
		"be a node of the cluster of servers that uses `POOL` or POOL/NAMESPACE of RADOS",
		"the pool of RADOS, `POOL` or `POOL/NAMESPACE`, by which servers in front of one CephFS are a cluster: they "+
			"share file handles, changes of exports, and the grace period. `ha_node` is the name of the node. Needs a "+
			"program that is built with the tag `cephfs`"),
	row("cluster_timeout", atStart, "ceph.md#a-cluster-of-servers",
		"how long a node of the cluster may be silent before its clients can reclaim at others, a `DURATION`",
		"how long a node of the cluster may be silent before its clients can reclaim at other nodes: `2s` to `5m`, the "+
			"same on all nodes"),
	row("nfs_versions", atStart, "",
		"serve NFS `VERSION`s 3, 4.0, 4.1, 4.2; repeatable",
		"versions of NFS to serve. The lock manager and MOUNT belong to version 3. `4.0` without quotation "+
			"marks is understood"),
	row("idmap.method", atStart, "configuration.md#users-and-groups",
		"identify users and groups by `METHOD` numeric or names in version 4",
		"how version 4 identifies users and groups: `numeric` or `names`"),
	row("idmap.domain", atStart, "",
		"`DOMAIN` of users and groups in version 4 (default: the host's)",
		"domain of the names of users and groups").withDefault("the DNS domain of the host, or `localdomain`"),
	row("copy_partners", atReload, "protocols.md#copies-between-servers",
		"copy files between this server and others at `ADDR`, CIDR or ADDR:PORT; repeatable",
		"servers from which this one copies files for its clients, and that may read its files for such a copy "+
			"(version 4.2): addresses, prefixes, or `ADDR:PORT`. The server connects to the ports 2049 and 20049 of "+
			"these servers alone, or to `PORT`. By default there are none, and clients read and write by themselves"),
	row("utf8", atStart, "",
		"`NAMES` of files in version 4: any or strict",
		"names of files in version 4: `any` bytes, as in the Linux server, or `strict`, which refuses names "+
			"that are not UTF-8"),
	row("showmount", atReload, "exports.md#what-clients-see",
		"answer showmount with the client's `OWN` exports and mounts, or with all",
		"answer to `showmount` (MOUNT version 3): `own` lists the exports that the client may mount, each with "+
			"the rule for it, and its own mounts. `all` lists everything to everybody"),
	row("root", atReload, "exports.md#what-clients-see",
		"`EXPORT` that clients of version 3 also find at /",
		"the export, by its pseudo path or its directory, that clients of version 3 also find at `/`").
		withDefault("the first export that there was"),
	row("ops_listen", atReload, "monitoring.md",
		"serve metrics and health checks by HTTP on `ADDR:PORT`; repeatable",
		"`ADDR:PORT` of metrics and health checks by HTTP. There is no authentication, so by default nothing "+
			"listens. Use a loopback address or one of a management network, such as `127.0.0.1:9049`"),
	row("ops_hosts", atReload, "monitoring.md",
		"`NAME` in requests to --ops-listen, * for any; repeatable",
		"host names that requests to `ops_listen` may name, besides addresses, `localhost` and the host's own "+
			"name; `\"*\"` is any. Requests for other names are refused: a page of another site could let its own name "+
			"resolve to this address"),
	row("ops_pprof", atReload, "",
		"let everyone who reaches --ops-listen profile the process",
		"allows everyone who reaches `ops_listen` to profile the process"),
	row("ops_clients", atStart, "",
		"clients with metrics of their own",
		"number of clients with metrics of their own, 0 to 10000; the others are counted together"),
	row("audit", atStart, "monitoring.md#audit-log",
		"write mounts, clients and changes to the `LOG`: log, 'file PATH' or off",
		"destination of the audit log, which has mounts, clients and changes: `log`, `file PATH` or `off`. A "+
			"reload opens the file again"),
	row("otlp.endpoint", atReload, "monitoring.md#traces",
		"send traces of calls to the OpenTelemetry collector at `URL`",
		"base URL of an OpenTelemetry collector for traces of calls by OTLP over HTTP, such as "+
			"`http://127.0.0.1:4318`. Without it no calls are traced"),
	row("otlp.sample", atReload, "",
		"`RATIO` of the calls that are traced, 0 to 1",
		"fraction of the calls that is traced, 0 to 1, chosen at random"),
	row("otlp.ca", atReload, "",
		"`FILE` of the authorities that the collector's certificate must come from",
		"PEM file of the authorities that the collector's certificate must come from. The default is the "+
			"authorities of the host"),
	row("tls.certificate", atReload, "security.md#tls",
		"offer TLS to NFS over TCP with the certificate of a `FILE`",
		"PEM file of the server's certificate and intermediate certificates. With it clients over TCP may start "+
			"TLS (RFC 9289), at the same ports. A renewed file is used without a reload"),
	row("tls.key", atReload, "security.md#tls",
		"`FILE` of the certificate's private key",
		"PEM file of its private key"),
	row("tls.client_ca", atReload, "security.md#tls",
		"`FILE` of the authorities that certificates of clients must come from",
		"PEM file of the authorities that certificates of clients must come from. Without it no client is `mtls`"),
	row("tls.xprtsec", atReload, "exports.md#options",
		"protection of TCP that exports without xprtsec accept: none, tls, mtls; repeatable",
		"protection of TCP that exports without `xprtsec` accept: `none`, `tls`, `mtls`"),
	row("kerberos.keytab", atReload, "kerberos.md",
		"accept Kerberos with the keys of a keytab `FILE`",
		"keytab with keys of `nfs/` principals. With it exports can have `sec=krb5`, `krb5i` and `krb5p`. A "+
			"renewed file is used without a reload"),
	row("kerberos.realms", atReload, "kerberos.md#users",
		"`REALM` whose users are those of this host; repeatable (default: the keytab's)",
		"realms of which `user@REALM` is the user of this host with that name").withDefault("the realms of the keytab"),
	row("kerberos.auth_to_local", atReload, "kerberos.md#users",
		"krb5.conf `FILE` whose rules auth_to_local say which users principals are",
		"file in the form of krb5.conf(5). Its `auth_to_local` and `auth_to_local_names` say which users principals "+
			"are, in the place of `kerberos.realms`. A changed file is used without a reload"),
	row("kerberos.users", atReload, "kerberos.md#users",
		"the user of this host that a principal is, as `PRINCIPAL=USER`; repeatable",
		"users of this host by principal, as `PRINCIPAL=USER`. They go before `kerberos.realms` and "+
			"`kerberos.auth_to_local`"),
	row("kerberos.rc4", atReload, "kerberos.md#set-up",
		"accept tickets that are encrypted with RC4",
		"accept tickets that are encrypted with RC4 (`arcfour-hmac`), as Active Directory makes them for accounts "+
			"without AES keys. RC4 is weak"),
	row("kerberos.require_pac", atReload, "kerberos.md#active-directory",
		"refuse tickets that do not name the account",
		"refuse tickets without a PAC that names the account. For realms of Active Directory, whose users can "+
			"otherwise take the names of users of this host"),
	row("stop_timeout", atReload, "",
		"how long a graceful stop may take",
		"how long a graceful stop may take"),
	row("perf.listen", atReload, "",
		"let 'rstorectl perf' measure at `ADDR:PORT`; repeatable",
		"`ADDR:PORT` as in `rdma_listen`, with another port. The port of perftest is 18515"),
	row("perf.clients", atReload, "",
		"`CIDR` of clients that may measure, * for all; repeatable",
		"prefixes of clients that may measure, `\"*\"` for everyone. Required with `perf.listen`"),
	row("perf.max_size", atReload, "",
		"largest message of a measurement in bytes",
		"largest message in bytes, at most the default"),
	row("perf.max_depth", atReload, "",
		"messages under way on a queue pair of a measurement",
		"most messages under way on a queue pair"),
	row("perf.max_qps", atReload, "",
		"queue pairs of a measurement",
		"queue pairs of a measurement"),
	row("perf.max_connections", atReload, "",
		"queue pairs of all measurements",
		"queue pairs of all measurements"),
	row("perf.max_memory", atReload, "",
		"bytes of memory for all measurements",
		"bytes for the buffers of all measurements, in addition to the memory of the file service; taken from "+
			"the system when used"),
	row("perf.idle_timeout", atReload, "",
		"end a measurement after its client sent nothing for this `DURATION`",
		"time after which a measurement ends whose client sends nothing"),
	row("perf.max_duration", atReload, "",
		"end measurements that take longer",
		"time after which every measurement ends"),
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
	{"security_label", "serves security labels of files, as those of SELinux, to clients of version 4.2"},
	{"refer", "other servers that have the data instead of this one, as `path@host+host:path@host`; version 4 only"},
	{"replicas", "other servers and addresses that have the same data, written as `refer`; version 4 only"},
	{"bandwidth", "bytes a second for all clients together, such as `500M`"},
	{"iops", "operations a second for all clients together"},
	{"quota", "bytes that the files of the export may take, such as `100G`, by a quota of the directory's project"},
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
	{"insecure_locks", "serves locks of version 3 for calls of all flavors and users"},
}
