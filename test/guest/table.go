package guest

import (
	"fmt"
	"os"
	"strings"
)

// about says in a line what each case is; docs/interop.md is made of it.
var about = map[string]string{
	"verbs-rxe-conformance": "the tests of rdma/verbs on rdma_rxe, the provider's conformance suite among them; " +
		"dma-bufs, which rxe of the guests takes",
	"verbs-rxe-dmabuf":         "the Go client reads into a dma-buf on rxe, and writes out of it, versions 3 and 4.2",
	"verbs-siw-dmabuf":         "the same on siw, which refuses the dma-buf: the client says so, and uses a mapping",
	"verbs-rxe-dmabuf-knfsd":   "the case verbs-rxe-dmabuf with the kernel's server, version 4.2",
	"verbs-rxe-device-removed": "the RDMA device of the server taken away and added again under load, twice",
	"verbs-siw-device-removed": "the same on siw",
	"verbs-rxe-post-mortem": "a client that vanishes under load, then the server's device: what rstorectl connections " +
		"--failed says of both, on rxe",
	"verbs-rxe-churn": "500 mounts and more than 4000 connections of the Go client on libibverbs and rxe, " +
		"among them refused ones and some that are given up or killed while they are made; what both kernels and the " +
		"daemon keep afterwards",
	"verbs-siw-churn": "the same with 200 and 2000 on siw",
	"verbs-rxe-carriers": "one export on rxe and on TCP in one daemon, mounted by both and by versions 3 and 4.2 " +
		"at once: the same file handles, data, names and locks; a port of the soft provider is refused there, and its " +
		"client served",
	"verbs-siw-three-carriers": "one export on the soft provider, on siw and on TCP in one daemon, mounted by all " +
		"three and versions 3 and 4.2 at once: the same file handles, data, names and locks",
	"verbs-rxe-upgrade": "rstored upgraded twice under load of version 4.2 on rxe: the connections are made " +
		"anew; open files, locks and data",
	"verbs-siw-upgrade":     "the same on siw",
	"verbs-siw-conformance": "the same on siw, which is iWARP",
	"rping-client":          "the kernel's rping connects to a Go server",
	"rping-client-4200":     "the same with packets of 4096 bytes and messages of 60,000",
	"rping-client-ipv6":     "the same over IPv6",
	"rping-server":          "a Go client connects to the kernel's rping, three times",
	"rping-server-4200":     "the same with packets of 4096 bytes and messages of 60,000",
	"rping-server-ipv6":     "the same over IPv6",
	"many-connections-in": "the kernel's ucmatose makes 64 connections at once to a Go server; rejected where " +
		"nobody listens",
	"many-connections-out": "a Go client makes 64 connections at once to the kernel's ucmatose",
	"wire-diff": "a fixed sequence of requests, good and bad, between two kernels, and between a kernel " +
		"and ours in both roles, there also with losses: the packets agree",
	"udaddy-in": "the kernel's udaddy finds 8 queue pairs of a Go server by SIDR, and 10 datagrams go " +
		"each way with each; refused where nobody serves datagrams",
	"udaddy-in-4200": "the same with datagrams of 4000 bytes",
	"udaddy-in-ipv6": "the same over IPv6",
	"udaddy-out": "a Go client finds 8 queue pairs of the kernel's udaddy, and 10 datagrams go each way " +
		"with each",
	"udaddy-out-4200": "the same with datagrams of 4000 bytes",
	"udaddy-out-ipv6": "the same over IPv6",
	"mount":           "mount without a port mapper; files of 1 and 64 MiB in and out, by SHA-256",
	"mount-4200":      "the same with packets of 4096 bytes",
	"mount-sync":      "mount with sync, sec=sys and noac",
	"mount-soft":      "mount with soft and noacl",
	"mount-ipv6":      "mount over IPv6, RDMA and TCP",
	"mount-v42-tcp":   "NFS version 4.2 over TCP: the pseudo-root, an export below it, everything that files do",
	"mount-v41-rdma":  "the same by version 4.1 over RDMA",
	"mount-v42-rdma":  "the same over RDMA, by the version that mount asks for by itself",
	"mount-v40-tcp":   "the same by version 4.0 over TCP",
	"mount-v40-rdma":  "the same by version 4.0 over RDMA",
	"v40-deleg": "files delegated to a guest by version 4.0 over RDMA, and given back to others, for " +
		"which the server connects to the guest",
	"v42-sparse":  "version 4.2: holes found and punched, space set aside, copy_file_range by the server",
	"v42-reflink": "clones by version 4.2 on btrfs, of files and of parts, and copies that share blocks",
	"v42-xattr": "extended attributes of version 4.2 (RFC 8276): set, read, listed, removed, on either " +
		"side",
	"v42-xattr-large": "the same on btrfs with values that fit into no inline message",
	"v42-xattr-tcp":   "the same over TCP",
	"v42-acltools":    "version 4.2: nfs4_getfacl and nfs4_setfacl",
	"v42-acl":         "version 4.2: ACLs, read and set as the client has them, kept by the host as POSIX ACLs",
	"acl-v3":          "version 3: getfacl and setfacl over RDMA, default ACLs, an ACL of 300 entries, kept by the host",
	"acl-v3-tcp":      "the same over TCP",
	"v42-idmap": "owners and groups by name, which have other numbers in the guest: chown, stat, names " +
		"that are nobody's",
	"csi": "the driver for Kubernetes in a guest: csi-sanity, and a volume mounted over RDMA, " +
		"read-only, and over TCP",
	"v42-hostlocks": "the case host-locks over version 4.2",
	"v42-deleg": "files delegated to a guest by version 4.2 over RDMA: opened without asking, and given " +
		"back when other clients, of version 3 and 4.2, read, write and remove them",
	"v42-deleg-cut": "a file delegated by version 4.2 is wanted back while the connection is gone: the " +
		"guest binds the next one, and is called by that",
	"v42-deleg-host": "files delegated to a guest by version 4.2 that programs on the server's host write " +
		"and read: they wait until it has given them back",
	"v42-deleg-tcp": "the same over TCP",
	"v42-copy": "copies of 300 MiB by version 4.2 that go on after the reply, in one export and " +
		"between two; the guest is called at the end, and stops one",
	"mount-portmap":      "mount by rstored's own port mapper; rpcinfo and showmount",
	"mount-udp":          "MOUNT and the port mapper by UDP, for mounts over RDMA and TCP",
	"bridge":             "version 4.2 over TCP through `rstorectl bridge`, with RDMA behind it",
	"bridge-deleg":       "delegations and their recall through the bridge",
	"mount-tcp-and-rdma": "one file over both transports at once",
	"tls-v3": "the kernel's client with TLS by tlshd, version 3: xprtsec=tls and mtls, refusals, a " +
		"certificate renewed under a mount; of another kernel, see `test/guest/tls.config`",
	"tls-v42": "the same by version 4.2",
	"tls-knfsd": "the Go client on that kernel's NFS server with TLS by tlshd, version 4.2: " +
		"xprtsec=tls, and refusals",
	"krb-v3-tcp": "the kernel's client with rpc.gssd and MIT's KDC, version 3: sec=krb5, krb5i and krb5p, each refused " +
		"elsewhere; two users with their own tickets, a user without one, a restart of the server; " +
		"locks of version 3, which are refused without insecure_locks",
	"krb-v3-rdma":  "the same over RDMA",
	"krb-v42-tcp":  "the same by version 4.2, without the locks",
	"krb-v42-rdma": "the same by version 4.2 over RDMA",
	"krb-v40-tcp":  "the same by version 4.0; a delegation is recalled by a callback with Kerberos, to rpc.svcgssd",
	"krb-v41-rdma": "the same by version 4.1 over RDMA",
	"krb-life-v3-tcp": "an expired ticket, a wrong clock, a renewed keytab, a key that the server does not have yet, " +
		"and a restart of the server under a mount by version 3 with sec=krb5p",
	"krb-life-v3-rdma":  "the same over RDMA with sec=krb5",
	"krb-life-v42-tcp":  "the same by version 4.2 with sec=krb5i",
	"krb-life-v42-rdma": "the same by version 4.2 over RDMA with sec=krb5p",
	"krb-protect-v41-tcp": "state protection (SP4_MACH_CRED) by version 4.1: the kernel's client, whose user's ticket " +
		"has expired, gives an open file and a lock back by the credential of its machine, in exports with krb5, krb5i " +
		"and krb5p; it binds new connections",
	"krb-protect-v42-rdma": "the same by version 4.2 over RDMA",
	"krb-knfsd-v3-rdma": "the Go client on the kernel's NFS server with rpc.svcgssd, version 3 over RDMA: sec=krb5 " +
		"and krb5i, and refusals",
	"krb-knfsd-v42-tcp":  "the same by version 4.2 over TCP",
	"krb-knfsd-v42-rdma": "the same by version 4.2 over RDMA",
	"mount-nconnect":     "nconnect=4",
	"mount-rsize":        "rsize and wsize from 4 KiB to 1 MiB",
	"mount-rsize-4200":   "the same with packets of 4096 bytes",
	"mount-ro":           "a read-only mount",
	"export-ro":          "a read-only export",
	"exports-table": "exports of a table as /etc/exports: one below another, a file system mounted below, " +
		"one for RDMA alone; rules that change under a mount, and a bad table",
	"v42-exports-table": "the same over version 4.2",
	"copy-servers-knfsd": "copy_file_range between rstored and the kernel's server, both ways, by mounts over " +
		"TCP and RDMA: each reads the file from the other",
	"copy-servers-rstored":   "the same between two rstored",
	"copy-servers-knfsd-off": "the same without `copy_partners`: the client reads and writes by itself",
	"referral-knfsd": "an export that moves while it is in use, of rstored and of the kernel's server: the client " +
		"sees the same",
	"lock-order": "one lock, for which clients of versions 3, 4.0 and 4.1 wait: who has waited longest gets it; " +
		"one of version 4.0, which polls, overtakes nobody",
	"v42-referral": "referrals over RDMA and TCP, of an export in use too; the addresses of the server, found by " +
		"trunkdiscovery",
	"remount": "30 mounts, remounting, refusals; the queue pairs, memory regions and open files of " +
		"the daemon afterwards",
	"squash": "who may do what: root, users, groups, each kind of squashing, sticky and setgid " +
		"directories",
	"names":              "names and symbolic links at their limits; extended attributes refused",
	"open-files":         "files renamed over and removed while they are open",
	"append":             "O_APPEND by several writers",
	"mmap":               "mapped files, read and written",
	"statfs":             "the numbers of statfs",
	"fsx":                "random operations on one file against a model",
	"tree":               "a real source tree with everything that cp -a and tar keep",
	"git":                "git clone to the mount, and a build there",
	"directory-of-20000": "20,000 names in one directory",
	"dbench":             "dbench",
	"fio":                "fio with verification: sequential and random, direct and buffered, several jobs",
	"large-file":         "a file of 1.2 GiB, and offsets beyond 4 GiB",
	"two-guests":         "two guests see each other's changes from close to open",
	"truncate-race":      "one guest writes records, the other truncates",
	"locks": "locks of two guests, granted, refused, waited for, and reclaimed after the server was " +
		"killed",
	"devices": "RDMA devices made, listed and removed by rstorectl, and a mount over one",
	"manage-gids": "a user of 40 groups, of which AUTH_SYS tells 16, on exports with manage_gids and " +
		"without, by version 4.2 and 3",
	"clock-step": "the server's clock is set a day forward, two days back and right, with files open by " +
		"version 4.2 and by version 3",
	"host-locks": "locks of a guest that a program on the server's host sees, and the other way round; " +
		"one is waited for",
	"mount-errors":        "what mount says when something is wrong",
	"enospc":              "a full file system, in bytes and in files",
	"edquot":              "a quota that is used up",
	"quota-project":       "quotas of directories on ext4 and XFS, also as the size of CSI volumes",
	"loss-1":              "1 % of the packets lost, in both directions",
	"loss-5":              "5 % of the packets lost",
	"loss-2-writes":       "writes of 8 MiB with 2 % of the packets lost: none stands still for more than 5 seconds",
	"loss-2-writes-knfsd": "the same writes to the kernel's server, to compare with",
	"link-down":           "the cable unplugged for 20 seconds under load",
	"server-stopped":      "the server stopped for 30 seconds (SIGSTOP) under load",
	"port-removed":        "the RDMA port removed and added under load, by rstorectl",
	"guest-switched-off":  "a guest switched off under load; the server keeps nothing of it",
	"knfsd":               "the Go client on the kernel's NFS server, over RDMA and TCP",
	"knfsd-v41":           "the same in version 4.1, with byte-range locks and delegations of two clients",
	"knfsd-v42":           "the same in version 4.2, with copies made by the server, locks and delegations",
	"upgrade": "another process takes the server's place five times under load: no connection, open " +
		"file or lock is lost",
	"restart": "the server stopped and killed under load, also for longer than a connection lasts",
}

// about4 says the same of the cases that each version 4 has, where that is not "the
// case of this name".
var about4 = map[string]string{
	"bigdir":    "20,000 names in one directory",
	"large":     "the case large-file",
	"ro-export": "the case export-ro",
	"ro-mount":  "the case mount-ro",
	"loss":      "the case loss-1",
	"ports":     "the case port-removed",
	"nconnect":  "nconnect=4 over TCP; the kernel makes one connection by RDMA then",
	"rsize":     "rsize and wsize from 4 KiB to 1 MiB",
	"locks4":    "locks of two guests: flock, fcntl, open file descriptions, waited for, given up by the end of a process",
	"deleg-two": "files delegated to one guest, and changed, truncated, renamed, removed and read by another",
	"frozen": "a guest frozen for longer than its lease: it keeps its lock while nobody wants it, and hears that it " +
		"has lost it when somebody did",
	"reclaim": "the server killed while a guest holds a lock, which it reclaims",
	"once": "names made, linked, renamed and removed, from version 4.1 on files opened too, while the server is " +
		"killed eight times: nothing is done twice",
	"deleg": "files delegated to a guest over RDMA, and given back when other clients read, write and remove them",
}

// what says in a line what a case is.
func (c *Case) what() string {
	if t := about[c.Name]; t != "" {
		return t
	}
	if rest, ok := strings.CutPrefix(c.Name, "verbs-"); ok {
		kind, name, _ := strings.Cut(rest, "-")
		if strings.HasPrefix(name, "knfsd") {
			return "the case " + name + ", with the Go client on libibverbs and " + kind + " in a guest"
		}
		if t := (&Case{Name: name}).what(); t != "" {
			if about[name] != "" {
				t = "the case " + name
			}
			return t + ", the server in a guest too, on libibverbs and " + kind
		}
		return ""
	}
	version, name, ok := strings.Cut(c.Name, "-")
	if !ok || len(version) != 3 || version[0] != 'v' {
		return ""
	}
	name, overTCP := strings.CutPrefix(name, "tcp-")
	t := about4[name]
	if t == "" {
		t = "the case " + name
	}
	t += ", version " + version[1:2] + "." + version[2:]
	if overTCP {
		t += " over TCP"
	}
	return t
}

// quick4 are those of the cases that each version 4 has that are not slow.
var quick4 = map[string]bool{
	"v42-names": true, "v42-locks4": true, "v42-deleg-two": true,
	"v40-locks4": true, "v40-deleg": true,
}

// quickVerbs are those on libibverbs that are not slow.
var quickVerbs = map[string]bool{
	"verbs-rxe-conformance": true, "verbs-rxe-mount": true, "verbs-siw-mount": true,
}

// slowly reports whether a case is left out where time matters: it takes most of it, or shows
// what the same case of version 3 or 4.2 shows.
func (c *Case) slowly() bool {
	if strings.HasPrefix(c.Name, "verbs-") {
		return !quickVerbs[c.Name]
	}
	return slow[c.Name] || about[c.Name] == "" && !quick4[c.Name]
}

// slow are the cases that take most of the time; RSTORED_GUEST_CASES=quick leaves
// them out.
var slow = map[string]bool{
	"tls-v3": true, "tls-v42": true, "tls-knfsd": true, // their kernel takes minutes to build
	"krb-v3-tcp": true, "krb-v3-rdma": true, "krb-v42-tcp": true, "krb-v40-tcp": true,
	"krb-life-v3-tcp": true, "krb-life-v3-rdma": true, "krb-life-v42-tcp": true, "krb-life-v42-rdma": true,
	"krb-protect-v41-tcp": true, "krb-protect-v42-rdma": true,
	"krb-v41-rdma": true, "krb-knfsd-v3-rdma": true, "krb-knfsd-v42-tcp": true, "krb-knfsd-v42-rdma": true,
	"directory-of-20000":  true,
	"large-file":          true,
	"locks":               true,
	"loss-5":              true,
	"loss-2-writes":       true,
	"loss-2-writes-knfsd": true,
	"edquot":              true, // not every kernel has btrfs
	"v42-reflink":         true, // the same
	"v42-xattr-large":     true, // the same
	"v42-xattr-tcp":       true, // the same
	"link-down":           true,
	"server-stopped":      true,
	"guest-switched-off":  true,
	// What the first of their kind show as well, or what other tests show without a guest.
	"rping-client-4200":    true,
	"rping-client-ipv6":    true,
	"rping-server-4200":    true,
	"rping-server-ipv6":    true,
	"many-connections-out": true,
	"mount-4200":           true,
	"mount-sync":           true,
	"mount-soft":           true,
	"mount-rsize":          true,
	"mount-v40-rdma":       true,
	"v42-acl":              true,
	"v42-xattr":            true,
	"v42-sparse":           true,
	"two-guests":           true,
	"tree":                 true,
	"remount":              true,
	"mount-errors":         true,
	"wire-diff":            true,
	"v42-copy":             true,
	"copy-servers-knfsd":   true,
	"mount-ipv6":           true,
	"mount-nconnect":       true,
	"mount-ro":             true,
	"dbench":               true,
	"exports-table":        true,
	"truncate-race":        true,
	"v42-acltools":         true,
	"udaddy-out":           true,
	"mmap":                 true,
	"v42-deleg-cut":        true,
	"v42-deleg-tcp":        true,
	"udaddy-in-4200":       true,
	"udaddy-in-ipv6":       true,
	"udaddy-out-4200":      true,
	"udaddy-out-ipv6":      true,
	"mount-v40-tcp":        true,
	"knfsd-v41":            true,
	"knfsd-v42":            true,
	"git":                  true,
	"mount-rsize-4200":     true,
	"mount-v41-rdma":       true,
	"restart":              true,
}

// outcome is how a case went.
type outcome struct {
	c   *Case
	err error
}

// writeTable writes docs/interop.md.
func writeTable(name, kernel string, list []outcome) error {
	var b strings.Builder
	fmt.Fprintf(&b, `# Interoperation

`+"`make interop`"+` boots guests with the Linux kernel's own RDMA stack (ib_cm, rdma_cm,
rdma_rxe), RPC-over-RDMA and NFS client, and runs these cases against rstored, which is in
user space and has no RDMA module. The run writes this page. Content is compared by
SHA-256 or against a model in every case that moves data.

Guest: %s, User-Mode Linux, built from Debian's source by test/guest/build.

| case | what | result |
| --- | --- | --- |
`, kernel)
	for _, o := range list {
		word := "pass"
		if o.err != nil {
			word = "FAIL"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", o.c.Name, o.c.what(), word)
	}
	return os.WriteFile(name, []byte(b.String()), 0o644)
}
