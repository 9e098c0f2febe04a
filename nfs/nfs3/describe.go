package nfs3

import (
	"fmt"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Describe describes the arguments of a procedure for a trace. d is at their beginning. They may be
// anything, because traces are of failed calls too.
func Describe(proc uint32, d xdr.Decoder) string {
	var b strings.Builder
	handle := func(name string) { fmt.Fprintf(&b, " %s=%#08x", name, nfs.HandleSum(DecodeHandle(&d))) }
	word := func(name string) { fmt.Fprintf(&b, " %s=%d", name, d.Uint32()) }
	long := func(name string) { fmt.Fprintf(&b, " %s=%d", name, d.Uint64()) }
	text := func(name string, limit int) { fmt.Fprintf(&b, " %s=%q", name, d.Opaque(limit)) }
	const nameMax = blockstore.NameMax
	switch proc {
	case ProcGetAttr, ProcReadLink, ProcFSStat, ProcFSInfo, ProcPathConf, ProcSetAttr:
		handle("fh")
	case ProcLookup, ProcCreate, ProcMkdir, ProcSymlink, ProcMknod, ProcRemove, ProcRmdir:
		handle("dir")
		text("name", nameMax)
	case ProcAccess:
		handle("fh")
		fmt.Fprintf(&b, " access=%#x", d.Uint32())
	case ProcRead, ProcCommit:
		handle("fh")
		long("offset")
		word("count")
	case ProcWrite:
		handle("fh")
		long("offset")
		word("count")
		word("stable")
	case ProcRename:
		handle("from")
		text("name", nameMax)
		handle("to")
		text("name", nameMax)
	case ProcLink:
		handle("fh")
		handle("dir")
		text("name", nameMax)
	case ProcReadDir, ProcReadDirPlus:
		handle("dir")
		long("cookie")
		d.Fixed(VerifierLen)
		word("count")
	}
	return ended(&b, &d)
}

// DescribeMount is Describe for a procedure of MOUNT.
func DescribeMount(proc uint32, d xdr.Decoder) string {
	var b strings.Builder
	if proc == MountMnt || proc == MountUmnt {
		fmt.Fprintf(&b, " path=%q", d.Opaque(nfs.PathMax))
	}
	return ended(&b, &d)
}

// DescribeACL is Describe for a procedure of NFSACL.
func DescribeACL(proc uint32, d xdr.Decoder) string {
	var b strings.Builder
	if proc == ProcGetACL || proc == ProcSetACL {
		fmt.Fprintf(&b, " fh=%#08x", nfs.HandleSum(DecodeHandle(&d)))
		fmt.Fprintf(&b, " mask=%#x", d.Uint32())
	}
	if proc == ProcSetACL {
		fmt.Fprintf(&b, " access=%d", DecodeACL(&d).Count)
		fmt.Fprintf(&b, " default=%d", DecodeACL(&d).Count)
	}
	return ended(&b, &d)
}

func ended(b *strings.Builder, d *xdr.Decoder) string {
	if d.Err() != nil {
		b.WriteString(" (not decoded further)")
	}
	return strings.TrimPrefix(b.String(), " ")
}
