package guest

import (
	"fmt"
	"os"
	"strings"
)

// about says in a line what each case is; docs/interop.md is made of it.
var about = map[string]string{
	"rping-client":         "the kernel's rping connects to a Go server",
	"rping-client-4200":    "the same with packets of 4096 bytes and messages of 60,000",
	"rping-client-ipv6":    "the same over IPv6",
	"rping-server":         "a Go client connects to the kernel's rping, three times",
	"rping-server-4200":    "the same with packets of 4096 bytes and messages of 60,000",
	"rping-server-ipv6":    "the same over IPv6",
	"many-connections-in":  "the kernel's ucmatose makes 64 connections at once to a Go server; rejected where nobody listens",
	"many-connections-out": "a Go client makes 64 connections at once to the kernel's ucmatose",
	"wire-diff":            "a fixed sequence of requests, good and bad, between two kernels, and between a kernel and ours in both roles, there also with losses: the packets agree",
	"udaddy-in":            "the kernel's udaddy finds 8 queue pairs of a Go server by SIDR, and 10 datagrams go each way with each; refused where nobody serves datagrams",
	"udaddy-in-4200":       "the same with datagrams of 4000 bytes",
	"udaddy-in-ipv6":       "the same over IPv6",
	"udaddy-out":           "a Go client finds 8 queue pairs of the kernel's udaddy, and 10 datagrams go each way with each",
	"udaddy-out-4200":      "the same with datagrams of 4000 bytes",
	"udaddy-out-ipv6":      "the same over IPv6",
	"mount":                "mount without a port mapper; files of 1 and 64 MiB in and out, by SHA-256",
	"mount-4200":           "the same with packets of 4096 bytes",
	"mount-sync":           "mount with sync, sec=sys and noac",
	"mount-soft":           "mount with soft and noacl",
	"mount-ipv6":           "mount over IPv6, RDMA and TCP",
	"mount-v42-tcp":        "NFS version 4.2 over TCP: the pseudo-root, an export below it, everything that files do",
	"mount-v41-rdma":       "the same by version 4.1 over RDMA",
	"mount-v42-rdma":       "the same over RDMA, by the version that mount asks for by itself",
	"mount-v40-tcp":        "the same by version 4.0 over TCP",
	"mount-v40-rdma":       "the same by version 4.0 over RDMA",
	"v40-locks4":           "locks of two guests by version 4.0: flock, fcntl, waited for, given up by the end of a process",
	"v40-reclaim":          "the server killed while a guest holds a lock by version 4.0, which it reclaims",
	"v40-deleg":            "files delegated to a guest by version 4.0 over RDMA, and given back to others, for which the server connects to the guest",
	"v40-restart":          "the case restart over version 4.0",
	"v40-names":            "the case names over version 4.0",
	"v40-open-files":       "the case open-files over version 4.0",
	"v40-append":           "the case append over version 4.0",
	"v40-mmap":             "the case mmap over version 4.0",
	"v40-fsx":              "the case fsx over version 4.0",
	"v40-tree":             "the case tree over version 4.0",
	"v40-git":              "the case git over version 4.0",
	"v40-dbench":           "the case dbench over version 4.0",
	"v40-fio":              "the case fio over version 4.0",
	"v40-two-guests":       "the case two-guests over version 4.0",
	"v40-enospc":           "the case enospc over version 4.0",
	"v40-squash":           "the case squash over version 4.0",
	"v42-names":            "the case names over version 4.2",
	"v42-open-files":       "the case open-files over version 4.2",
	"v42-append":           "the case append over version 4.2",
	"v42-mmap":             "the case mmap over version 4.2",
	"v42-statfs":           "the case statfs over version 4.2",
	"v42-fsx":              "the case fsx over version 4.2",
	"v42-tree":             "the case tree over version 4.2",
	"v42-git":              "the case git over version 4.2",
	"v42-bigdir":           "20,000 names in one directory, over version 4.2",
	"v42-dbench":           "the case dbench over version 4.2",
	"v42-fio":              "the case fio over version 4.2",
	"v42-two-guests":       "the case two-guests over version 4.2",
	"v42-truncate-race":    "the case truncate-race over version 4.2",
	"v42-nconnect":         "nconnect=4 over version 4.2 and TCP; the kernel makes one connection by RDMA then",
	"v42-rsize":            "rsize and wsize from 4 KiB to 1 MiB, over version 4.2",
	"v42-restart":          "the case restart over version 4.2",
	"v42-ports":            "the case port-removed over version 4.2",
	"v42-reclaim":          "the server killed while a guest holds a lock by version 4.2, which it reclaims",
	"v42-sparse":           "version 4.2: holes found and punched, space set aside, copy_file_range by the server",
	"v42-reflink":          "clones by version 4.2 on btrfs, of files and of parts, and copies that share blocks",
	"v42-xattr":            "extended attributes of version 4.2 (RFC 8276): set, read, listed, removed, on either side",
	"v42-xattr-large":      "the same on btrfs with values that fit into no inline message",
	"v42-xattr-tcp":        "the same over TCP",
	"v42-acl":              "version 4.2: ACLs, read and set as the client has them, kept by the host as POSIX ACLs",
	"v42-idmap":            "owners and groups by name, which have other numbers in the guest: chown, stat, names that are nobody's",
	"v42-locks4":           "locks of two guests by version 4.2: flock, fcntl, waited for, given up by the end of a process",
	"v42-hostlocks":        "the case host-locks over version 4.2",
	"v42-deleg":            "files delegated to a guest by version 4.2 over RDMA: opened without asking, and given back when other clients, of version 3 and 4.2, read, write and remove them",
	"v42-deleg-two":        "files delegated to one guest by version 4.2, and changed, truncated, renamed, removed and read by another",
	"v40-frozen":           "the case v42-frozen over version 4.0",
	"v40-deleg-two":        "files delegated to one guest by version 4.0, and changed, truncated, renamed and removed by another",
	"v42-frozen":           "a guest frozen for longer than its lease: it keeps its lock while nobody wants it, and hears that it has lost it when somebody did",
	"v42-deleg-cut":        "a file delegated by version 4.2 is wanted back while the connection is gone: the guest binds the next one, and is called by that",
	"v42-deleg-host":       "files delegated to a guest by version 4.2 that programs on the server's host write and read: they wait until it has given them back",
	"v42-deleg-tcp":        "the same over TCP",
	"v42-copy":             "copies of 300 MiB by version 4.2 that go on after the reply, in one export and between two; the guest is called at the end, and stops one",
	"v42-enospc":           "the case enospc over version 4.2",
	"v42-ro-export":        "the case export-ro over version 4.2",
	"v42-ro-mount":         "the case mount-ro over version 4.2",
	"v42-squash":           "the case squash over version 4.2",
	"v42-large":            "the case large-file over version 4.2",
	"v42-loss":             "the case loss-1 over version 4.2",
	"mount-portmap":        "mount by rstored's own port mapper; rpcinfo and showmount",
	"mount-tcp-and-rdma":   "one file by both carriers at once",
	"mount-nconnect":       "nconnect=4",
	"mount-rsize":          "rsize and wsize from 4 KiB to 1 MiB",
	"mount-rsize-4200":     "the same with packets of 4096 bytes",
	"mount-ro":             "a read-only mount",
	"export-ro":            "a read-only export",
	"remount":              "30 mounts, remounting, refusals; the queue pairs, memory regions and open files of the daemon afterwards",
	"squash":               "who may do what: root, users, groups, each kind of squashing, sticky and setgid directories",
	"names":                "names and symbolic links at their limits; extended attributes refused",
	"open-files":           "files renamed over and removed while they are open",
	"append":               "O_APPEND by several writers",
	"mmap":                 "mapped files, read and written",
	"statfs":               "the numbers of statfs",
	"fsx":                  "random operations on one file against a model",
	"tree":                 "a real source tree with everything that cp -a and tar keep",
	"git":                  "git clone to the mount, and a build there",
	"directory-of-20000":   "20,000 names in one directory",
	"dbench":               "dbench",
	"fio":                  "fio with verification: sequential and random, direct and buffered, several jobs",
	"large-file":           "a file of 1.2 GiB, and offsets beyond 4 GiB",
	"two-guests":           "two guests see each other's changes from close to open",
	"truncate-race":        "one guest writes records, the other truncates",
	"locks":                "locks of two guests, granted, refused, waited for, and reclaimed after the server was killed",
	"host-locks":           "locks of a guest that a program on the server's host sees, and the other way round; one is waited for",
	"mount-errors":         "what mount says when something is wrong",
	"enospc":               "a full file system, in bytes and in files",
	"edquot":               "a quota that is used up",
	"loss-1":               "1 % of the packets lost, in both directions",
	"loss-5":               "5 % of the packets lost",
	"link-down":            "the cable unplugged for 20 seconds under load",
	"server-stopped":       "the server stopped for 30 seconds (SIGSTOP) under load",
	"port-removed":         "the RDMA port removed and added under load, by rstorectl",
	"guest-switched-off":   "a guest switched off under load; the server keeps nothing of it",
	"knfsd":                "the Go client on the kernel's NFS server, over RDMA and TCP",
	"knfsd-v41":            "the same in version 4.1, with byte-range locks of two clients",
	"knfsd-v42":            "the same in version 4.2, with copies made by the server, and locks",
	"restart":              "the server stopped and killed under load, also for longer than a connection lasts",
}

// slow are the cases that take most of the time; RSTORED_GUEST_CASES=quick leaves
// them out.
var slow = map[string]bool{
	"directory-of-20000": true,
	"v42-bigdir":         true,
	"v42-large":          true,
	"v42-restart":        true,
	"v42-reclaim":        true,
	"large-file":         true,
	"locks":              true,
	"loss-5":             true,
	"edquot":             true, // not every kernel has btrfs
	"v42-reflink":        true, // the same
	"v42-xattr-large":    true, // the same
	"v42-xattr-tcp":      true, // the same
	"link-down":          true,
	"server-stopped":     true,
	"guest-switched-off": true,
	// What the same cases of version 3 and of the first of their kind show as well.
	"v42-open-files":    true,
	"v42-append":        true,
	"v42-mmap":          true,
	"v42-statfs":        true,
	"v42-fsx":           true,
	"v42-tree":          true,
	"v42-git":           true,
	"v42-dbench":        true,
	"v42-fio":           true,
	"v42-truncate-race": true,
	"v42-nconnect":      true,
	"v42-rsize":         true,
	"v42-ports":         true,
	"v42-enospc":        true,
	"v42-ro-export":     true,
	"v42-ro-mount":      true,
	"v42-squash":        true,
	"v42-loss":          true,
	"v42-deleg-cut":     true,
	"v40-frozen":        true,
	"v40-deleg-two":     true,
	"v42-frozen":        true,
	"v42-deleg-tcp":     true,
	"udaddy-in-4200":    true,
	"udaddy-in-ipv6":    true,
	"udaddy-out-4200":   true,
	"udaddy-out-ipv6":   true,
	"v40-reclaim":       true,
	"v40-restart":       true,
	"v40-names":         true,
	"v40-open-files":    true,
	"v40-append":        true,
	"v40-mmap":          true,
	"v40-fsx":           true,
	"v40-tree":          true,
	"v40-git":           true,
	"v40-dbench":        true,
	"v40-fio":           true,
	"v40-two-guests":    true,
	"v40-enospc":        true,
	"v40-squash":        true,
	"mount-v40-tcp":     true,
	"knfsd-v41":         true,
	"mount-v41-rdma":    true,
	"restart":           true,
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
		fmt.Fprintf(&b, "| %s | %s | %s |\n", o.c.Name, about[o.c.Name], word)
	}
	return os.WriteFile(name, []byte(b.String()), 0o644)
}
