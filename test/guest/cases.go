package guest

import (
	"embed"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed scripts
var scripts embed.FS

// script reads an embedded script.
func script(name string) string {
	b, err := scripts.ReadFile("scripts/" + name + ".sh")
	if err != nil {
		panic(err) // it is in this directory or the program is not built
	}
	return string(b)
}

// rw is an export that hides nothing behind squashing.
var rw = []string{"%s=/e(rw,no_root_squash)"}

// squashExports are those of the script squash.
var squashExports = []string{
	"%s/root=/root(rw,no_root_squash)", "%s/squash=/squash(rw)",
	"%s/all=/all(rw,all_squash,anonuid=7000,anongid=7001)", "%s/other=/other 10.98.0.0/16(rw)",
}

// cases are all of them.
var cases = slices.Concat(ordinary, version4("4.2", rdma), version4("4.1", rdma), version4("4.0", rdma),
	version4("4.2", tcp), kerberosCases, verbsCases(), compared())

// kerberosCases are Kerberos with rpc.gssd.
var kerberosCases = []Case{
	kerberosCase("3", tcp), kerberosCase("3", rdma), kerberosCase("4.0", tcp), kerberosCase("4.1", rdma),
	kerberosCase("4.2", tcp), kerberosCase("4.2", rdma),
	kerberosLife("3", tcp, "krb5p"), kerberosLife("3", rdma, "krb5"), kerberosLife("4.2", tcp, "krb5i"),
	kerberosLife("4.2", rdma, "krb5p"),
	kerberosProtect("4.1", tcp), kerberosProtect("4.2", rdma),
	kerberosKnfsd("3", "rdma"), kerberosKnfsd("4.2", "tcp"), kerberosKnfsd("4.2", "rdma"),
}

// What carries a mount.
const (
	rdma = "rdma,port=20049"
	tcp  = "proto=tcp"
)

// ordinary are in the order of what they build on.
var ordinary = []Case{
	rpingClient("rping-client", HostAddr, 1500, 64),
	rpingClient("rping-client-4200", HostAddr, 4200, 60000),
	rpingClient("rping-client-ipv6", HostAddr6, 1500, 4096),
	rpingServer("rping-server", HostAddr, guestAddr(0), 1500, 64),
	rpingServer("rping-server-4200", HostAddr, guestAddr(0), 4200, 60000),
	rpingServer("rping-server-ipv6", HostAddr6, "fd99::2", 1500, 4096),
	{Name: "many-connections-in", Script: script("cmatose-client"), Host: cmatoseServes},
	{Name: "many-connections-out", Script: script("cmatose-server"), Env: env("ME", guestAddr(0)), Host: cmatoseCalls},
	{
		Name: "wire-diff", Script: script("wire-diff"), Guests: 2, Env: env("FIRST", guestAddr(0)), Host: wireDiff,
		NotRPC: true, Timeout: 2 * time.Minute,
	},
	udaddyIn("udaddy-in", HostAddr, 1500, 1000),
	udaddyIn("udaddy-in-4200", HostAddr, 4200, 4000),
	udaddyIn("udaddy-in-ipv6", HostAddr6, 1500, 1000),
	udaddyOut("udaddy-out", HostAddr, guestAddr(0), 1500, 1000),
	udaddyOut("udaddy-out-4200", HostAddr, guestAddr(0), 4200, 4000),
	udaddyOut("udaddy-out-ipv6", HostAddr6, "fd99::2", 1500, 1000),
	{Name: "mount", Exports: rw, Script: script("mount"), Env: env("OPTS", ""), Payload: true},
	{Name: "mount-4200", Exports: rw, Script: script("mount"), Env: env("OPTS", ""), MTU: 4200},
	{Name: "mount-sync", Exports: rw, Script: script("mount"), Env: env("OPTS", "sync,sec=sys,noac")},
	{Name: "mount-soft", Exports: rw, Script: script("mount"), Env: env("OPTS", "soft,timeo=100,retrans=3,noacl")},
	{Name: "mount-ipv6", Exports: rw, Script: script("ipv6")},
	{
		Name: "mount-v42-tcp", Exports: rw, Script: script("v42"), Env: env("OPTS", "vers=4.2,proto=tcp"),
		Timeout: 3 * time.Minute,
	},
	{
		Name: "mount-v42-rdma", Exports: rw, Script: script("v42"), Env: env("OPTS", "rdma,port=20049"),
		Timeout: 3 * time.Minute,
	},
	{
		Name: "mount-v41-rdma", Exports: rw, Script: script("v42"),
		Env: env("OPTS", "rdma,port=20049,vers=4.1", "WANT", "4.1"), Timeout: 3 * time.Minute,
	},
	{
		Name: "mount-v40-rdma", Exports: rw, Script: script("v42"),
		Env: env("OPTS", "rdma,port=20049,vers=4.0", "WANT", "4.0"), Timeout: 3 * time.Minute,
	},
	{
		Name: "mount-v40-tcp", Exports: rw, Script: script("v42"), Env: env("OPTS", "vers=4.0,proto=tcp", "WANT", "4.0"),
		Timeout: 3 * time.Minute,
	},
	// What is of version 4.2 alone, or where one version is enough.
	v42("hostlocks", Case{Host: locksOnHost, Timeout: 2 * time.Minute}), v42("sparse", Case{Timeout: 2 * time.Minute}),
	v42("copy", Case{Exports: twoExports, Prepare: bigFile, Host: copied, Back: true, Timeout: 3 * time.Minute}),
	v42("reflink", Case{FS: btrfsFS, Timeout: 2 * time.Minute}),
	v42("xattr", Case{Host: seesXattrs, Env: env("LARGE", "2000"), Timeout: 2 * time.Minute}),
	{
		Name: "v42-xattr-large", Script: script("xattr"), Exports: rw, FS: btrfsFS, Host: seesXattrs,
		Env: env("VERS", "4.2", "LARGE", "15000"), Timeout: 2 * time.Minute,
	},
	{
		Name: "v42-xattr-tcp", Script: script("xattr"), Exports: rw, FS: btrfsFS, Host: seesXattrs,
		Env: env("VERS", "4.2", "LARGE", "15000", "CARRIER", "proto=tcp"), Timeout: 2 * time.Minute,
	},
	v42("idmap", Case{
		Daemon: []string{"--idmap-method", "names", "--idmap-domain", "guests.example"}, Host: ownersByName,
		Timeout: 2 * time.Minute,
	}),
	v42("acltools", Case{Prepare: aclTools}),
	v42("acl", Case{Host: aclsKept, Timeout: 3 * time.Minute}),
	{Name: "acl-v3", Exports: rw, Script: script("acl3"), Host: aclsKept, Timeout: 2 * time.Minute},
	{
		Name: "acl-v3-tcp", Exports: rw, Script: script("acl3"), Env: env("CARRIER", "proto=tcp,port=2049"),
		Host: aclsKept, Timeout: 2 * time.Minute,
	},
	{Name: "csi", Exports: rw, Script: script("csi"), Prepare: csiTools, Host: published, Timeout: 4 * time.Minute},
	v42("deleg", Case{Host: recalls, Back: true, Timeout: 2 * time.Minute}),
	v42("deleg-host", Case{Host: hostUses, Timeout: 2 * time.Minute}),
	v42("deleg-cut", Case{Host: recallsLate, Timeout: 3 * time.Minute}),
	{
		Name: "v42-deleg-tcp", Exports: rw, Script: script("deleg"), Env: env("VERS", "4.2", "CARRIER", "proto=tcp"),
		Host: recalls, Timeout: 2 * time.Minute,
	},
	ofVersion("4.1", "deleg", Case{Host: recalls, Back: true, Timeout: 2 * time.Minute}),
	ofVersion("4.0", "deleg", Case{Host: recallsRead, Timeout: 2 * time.Minute}),
	{
		Name: "mount-portmap", Exports: rw, Script: script("portmap"),
		Daemon: []string{"--portmap-listen", HostAddr + ":111"},
	},
	{
		Name: "mount-udp", Exports: rw, Script: script("udp"),
		Daemon: []string{"--portmap-listen", HostAddr + ":111", "--udp-listen", HostAddr + ":111"},
	},
	tlsCase("3"),
	tlsCase("4.2"),
	tlsKnfsd(),
	{
		Name: "bridge", MTU: 4200, Exports: rw, Script: throughBridge("v42"),
		Env: env("OPTS", "vers=4.2,proto=tcp,retry=1,port="+bridgePort), Host: bridged(nil), Timeout: 4 * time.Minute,
	},
	{
		Name: "bridge-deleg", MTU: 4200, Exports: rw, Script: throughBridge("deleg"),
		Env: env("VERS", "4.2", "CARRIER", "proto=tcp,retry=1,port="+bridgePort), Host: bridged(recalls),
		Timeout: 3 * time.Minute,
	},
	{Name: "mount-tcp-and-rdma", Exports: rw, Script: script("tcp")},
	{Name: "mount-nconnect", Exports: rw, Script: script("nconnect")},
	{Name: "mount-rsize", Exports: rw, Script: script("rsize"), Timeout: 2 * time.Minute},
	{Name: "mount-rsize-4200", Exports: rw, Script: script("rsize"), Timeout: 2 * time.Minute, MTU: 4200},
	{Name: "mount-ro", Exports: rw, Script: script("ro-mount"), Prepare: oneFile},
	{Name: "export-ro", Exports: []string{"%s=/e(ro,no_root_squash)"}, Script: script("ro-export"), Prepare: oneFile},
	exportTable("exports-table", nil),
	exportTable("v42-exports-table", env("VERS", "4.2")),
	v42("referral", Case{
		Exports: referralExports, Prepare: referralFiles, Host: moves, Timeout: 2 * time.Minute,
	}),
	{
		Name: "referral-knfsd", Exports: referralExports, Prepare: referralFiles, Script: script("referralknfsd"),
		Guests: 2, Wires: 2, Env: env("SECOND", guestAddr(1)), Host: moves, Quiet: true, MemMB: 1000,
		Timeout: 5 * time.Minute,
	},
	{Name: "remount", Exports: rw, Script: script("remount"), Host: nothingLeft, Timeout: 2 * time.Minute},
	{
		Name: "squash", Script: script("squash"), Prepare: squashed, Exports: squashExports,
	},
	{Name: "names", Exports: rw, Script: script("names")},
	{Name: "open-files", Exports: rw, Script: script("open-files")},
	{Name: "append", Exports: rw, Script: script("append")},
	{Name: "mmap", Exports: rw, Script: script("mmap"), Timeout: 2 * time.Minute},
	{Name: "statfs", Exports: rw, Script: script("statfs")},
	{Name: "fsx", Exports: rw, Script: script("fsx"), Timeout: 4 * time.Minute},
	{Name: "tree", Exports: rw, Script: script("tree"), Timeout: 4 * time.Minute},
	{Name: "git", Exports: rw, Script: script("git"), Timeout: 4 * time.Minute},
	{Name: "directory-of-20000", Exports: rw, Script: script("bigdir"), Timeout: 5 * time.Minute},
	{Name: "dbench", Exports: rw, Script: script("dbench"), Timeout: 3 * time.Minute},
	{Name: "fio", Exports: rw, Script: script("fio"), Env: env("SIZE", "32"), Timeout: 5 * time.Minute},
	{Name: "large-file", Exports: rw, Script: script("large"), Timeout: 5 * time.Minute},
	{Name: "two-guests", Exports: rw, Script: script("two-guests"), Guests: 2, Timeout: 3 * time.Minute},
	{Name: "truncate-race", Exports: rw, Script: script("truncate-race"), Guests: 2, Timeout: 3 * time.Minute},
	{
		Name: "locks", Exports: rw, Script: script("locks"), Guests: 2, Timeout: 4 * time.Minute,
		Daemon: []string{"--portmap-listen", HostAddr + ":111"}, Host: killed,
	},
	{Name: "devices", Exports: rw, Script: script("devices"), Host: ownServer},
	{
		Name: "manage-gids", Script: script("manage-gids"), Guests: 2, Wires: 2, Env: env("SECOND", "10.99.0.4"),
		Host: ownServer, Quiet: true, Timeout: 2 * time.Minute,
	},
	{
		Name: "clock-step", Script: script("clockstep"), Guests: 2, Wires: 2, Env: env("SECOND", "10.99.0.4"),
		Host: ownServer, Quiet: true, Timeout: 4 * time.Minute,
	},
	copyServers("knfsd", guestAddr(1), "proto=tcp rdma,port=20049", "in out"),
	copyServers("rstored", "10.99.0.4", "proto=tcp", "in out"),
	copyServers("knfsd", guestAddr(1), "proto=tcp", ""),
	{
		Name: "lock-order", Exports: rw, Script: script("lockorder"), Timeout: 4 * time.Minute,
		Daemon: []string{"--portmap-listen", HostAddr + ":111"},
	},
	{
		Name: "host-locks", Exports: rw, Script: script("hostlocks"), Timeout: 3 * time.Minute,
		Daemon: []string{"--portmap-listen", HostAddr + ":111"}, Host: locksOnHost,
	},
	{
		Name: "mount-errors", Exports: append([]string{"%s/other=/other 10.98.0.0/16(rw)"}, rw...), Script: script("errors"),
		Prepare: other, Timeout: 4 * time.Minute,
	},
	{Name: "enospc", Exports: rw, Script: script("enospc"), FS: smallFS},
	{Name: "edquot", Exports: rw, Script: script("edquot"), FS: quotaFS},
	{Name: "quota-project", Script: script("quota-project"), Host: ownServerCSI, Quiet: true, Timeout: 5 * time.Minute},
	{
		Name: "loss-1", Lossy: true, Exports: rw, Script: script("loss"), Env: env("LOSS", "1", "MIB", "4"),
		Timeout: 3 * time.Minute,
	},
	{
		Name: "loss-5", Lossy: true, Exports: rw, Script: script("loss"), Env: env("LOSS", "5", "MIB", "1"),
		Timeout: 4 * time.Minute,
	},
	lossyWrites("loss-2-writes", nil),
	{Name: "link-down", Exports: rw, Script: script("interrupted"), Host: unplugged, Timeout: 3 * time.Minute},
	{Name: "server-stopped", Exports: rw, Script: script("interrupted"), Host: standsStill, Timeout: 3 * time.Minute},
	{Name: "port-removed", Exports: rw, Script: script("ports"), Host: portGoes, Timeout: 3 * time.Minute},
	{Name: "guest-switched-off", Exports: rw, Script: script("reboot"), Host: forgets, Timeout: 4 * time.Minute},
	knfsd("knfsd", "3"), knfsd("knfsd-v41", "4.1"), knfsd("knfsd-v42", "4.2"),
	{Name: "restart", Exports: rw, Script: script("restart"), Host: restarts, Timeout: 5 * time.Minute},
	{Name: "upgrade", Exports: rw, Script: script("upgrade"), Host: upgrades, Timeout: 3 * time.Minute},
}

// version4 are the cases that each version 4 has.
func version4(version, carrier string) (list []Case) {
	for _, c := range []Case{
		{Name: "names"},
		{Name: "open-files"},
		{Name: "append"},
		{Name: "mmap", Timeout: 2 * time.Minute},
		{Name: "statfs"},
		{Name: "fsx", Timeout: 4 * time.Minute},
		{Name: "tree", Timeout: 4 * time.Minute},
		{Name: "git", Timeout: 4 * time.Minute},
		{Name: "bigdir", Timeout: 5 * time.Minute},
		{Name: "dbench", Timeout: 3 * time.Minute},
		{Name: "fio", Timeout: 5 * time.Minute, Env: env("SIZE", "32")},
		{Name: "large", Timeout: 5 * time.Minute},
		{Name: "two-guests", Guests: 2, Timeout: 3 * time.Minute},
		{Name: "truncate-race", Guests: 2, Timeout: 3 * time.Minute},
		{Name: "nconnect", Env: env("CARRIER", "proto=tcp")},
		{Name: "rsize", Timeout: 2 * time.Minute},
		{Name: "ro-export", Exports: []string{"%s=/e(ro,no_root_squash)"}, Prepare: oneFile},
		{Name: "ro-mount", Prepare: oneFile},
		{Name: "squash", Prepare: squashed, Exports: squashExports},
		{Name: "enospc", FS: smallFS},
		{Name: "loss", Lossy: true, Env: env("LOSS", "1", "MIB", "4"), Timeout: 3 * time.Minute},
		{Name: "ports", Host: portGoes, Timeout: 3 * time.Minute},
		{Name: "restart", Host: restarts, Timeout: 5 * time.Minute},
		{Name: "upgrade", Host: upgrades, Timeout: 3 * time.Minute},
		{Name: "locks4", Guests: 2, Timeout: 2 * time.Minute},
		{Name: "deleg-two", Guests: 2, Timeout: 2 * time.Minute},
		{Name: "frozen", Guests: 2, Host: frozen, Daemon: []string{"--lease-time", "10s"}, Timeout: 4 * time.Minute},
		{Name: "reclaim", Guests: 2, Host: killed, Daemon: []string{"--lease-time", "30s"}, Timeout: 5 * time.Minute},
		{Name: "once", Host: killedAgain, Daemon: []string{"--lease-time", "10s"}, Timeout: 4 * time.Minute},
	} {
		if version == "4.0" && c.Name == "reclaim" {
			c.Env = env("GRACE", "60") // no client says that it is done
		}
		v := ofVersion(version, c.Name, c)
		if carrier == tcp {
			if v.Env["CARRIER"] == tcp || c.Name == "ports" {
				continue // it is that already, or of RDMA alone
			}
			v.Name = strings.Replace(v.Name, "-", "-tcp-", 1)
			v.Env["CARRIER"] = tcp
		}
		list = append(list, v)
	}
	return list
}

// compared are the cases that only measure what the kernel's server does, with RSTORED_GUEST_WRITES
// alone: a write of 8 MiB to it took 90 seconds.
func compared() []Case {
	if os.Getenv("RSTORED_GUEST_WRITES") == "" {
		return nil
	}
	return []Case{lossyWrites("loss-2-writes-knfsd", env("KNFSD", guestAddr(1), "VERS", "3"))}
}

// lossyWrites is a case of writes on a link that loses packets. RSTORED_GUEST_WRITES says how many.
func lossyWrites(name string, vars map[string]string) Case {
	writes, err := strconv.Atoi(os.Getenv("RSTORED_GUEST_WRITES"))
	if err != nil || writes <= 0 {
		writes = 12
	}
	c := Case{
		Name: name, Lossy: true, Script: script("loss-writes"),
		Env:     with(with(vars, "LOSS", "2"), "WRITES", strconv.Itoa(writes)),
		Timeout: 2*time.Minute + time.Duration(writes)*15*time.Second,
	}
	if vars == nil {
		c.Exports = rw
	} else {
		c.Guests, c.Quiet, c.MemMB = 2, true, 1400 // the kernel's server has its export in memory
		c.Timeout = 2*time.Minute + time.Duration(writes)*2*time.Minute
	}
	return c
}

// exportTable is a case with exports of a table as /etc/exports.
func exportTable(name string, vars map[string]string) Case {
	return Case{
		Name: name, Script: script("exports"), Env: vars, FS: tableFS, Host: tableChanges, Timeout: 2 * time.Minute,
		Exports: []string{"%s/plain=/e(rw)"}, Daemon: []string{"--exports-file", "%s.table"},
	}
}

// v42 is a case of version 4.2 with the script of that name.
func v42(name string, c Case) Case { return ofVersion("4.2", name, c) }

// ofVersion is the same of another version.
func ofVersion(version, name string, c Case) Case {
	c.Name, c.Script = "v"+strings.ReplaceAll(version, ".", "")+"-"+name, script(name)
	if c.Exports == nil {
		c.Exports = rw
	}
	vars := env("VERS", version)
	maps.Copy(vars, c.Env)
	c.Env = vars
	return c
}

// oneFile is what is there before a mount that cannot make anything.
func oneFile(exports string) error {
	return os.WriteFile(filepath.Join(exports, "file"), []byte("made on the host\n"), 0o644)
}

// other is an export that is not for the guest.
func other(exports string) error { return os.Mkdir(filepath.Join(exports, "other"), 0o755) }

// squashed makes the exports of the case squash.
func squashed(exports string) error {
	for _, d := range []string{"root", "squash", "squash/open", "all", "all/open", "other"} {
		if err := os.Mkdir(filepath.Join(exports, d), 0o755); err != nil {
			return err
		}
		if filepath.Base(d) == "open" {
			if err := os.Chmod(filepath.Join(exports, d), 0o777); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(exports, "squash/secret"), []byte("root's"), 0o600)
}

func env(kv ...string) map[string]string {
	m := make(map[string]string)
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}
