package nfs4

import (
	"fmt"
	"strings"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Describe describes a COMPOUND for a trace: its operations with their most important arguments. It
// stops at the first operation whose arguments it cannot skip. d is at the arguments, which may be
// anything: traces are of failed calls. An example:
//
//	4.1 SEQUENCE(slot=3 seq=71) PUTFH(fh=0x5d1f09a2) READ(offset=0 count=65536) GETATTR
//
// Names and tags are quoted by %q, because a client could otherwise forge lines of a log or send
// escape sequences to a terminal. File handles appear as a checksum, the same as in Wireshark: a
// trace must not contain a handle that somebody could use. Data of a WRITE never appears. The text
// is bounded by opsMax operations and nameMax bytes for each name.
func Describe(d xdr.Decoder) string {
	var b strings.Builder
	tag := d.Opaque(tagMax)
	minor, n := d.Uint32(), d.Uint32()
	if d.Err() != nil {
		return "(not decoded)"
	}
	fmt.Fprintf(&b, "4.%d", minor)
	if len(tag) > 0 {
		fmt.Fprintf(&b, " tag=%q", tag)
	}
	for i := range min(n, opsMax) {
		op := d.Uint32()
		name := OperationName(op)
		if d.Err() != nil || name == "" {
			b.WriteString(" (not decoded further)")
			return b.String()
		}
		args, known := describe(op, &d)
		b.WriteString(" " + name)
		if d.Err() != nil {
			b.WriteString(" (not decoded further)")
			return b.String()
		}
		if args != "" {
			b.WriteString("(" + args + ")")
		}
		if !known {
			if rest := n - i - 1; rest > 0 {
				fmt.Fprintf(&b, " and %d more", rest)
			}
			return b.String()
		}
	}
	return b.String()
}

// describe reads the arguments of an operation. An operation has no length on the wire, so the next
// one is found only if all arguments are read. known is false if they are not. That is so for OPEN:
// a second decoder for the unions behind share_deny would not be worth it.
//
//	SEQUENCE  sessionid (16) | sequenceid | slotid | highest_slotid | cachethis
//	READ      stateid (16) | offset (8) | count
//	WRITE     stateid (16) | offset (8) | stable | data<>
//	READDIR   cookie (8) | verifier (8) | dircount | maxcount | bitmap4
//	CLOSE     seqid | stateid (16)
//	OPEN      seqid | share_access | share_deny | owner | openhow | claim
func describe(op uint32, d *xdr.Decoder) (args string, known bool) {
	switch op {
	case OpSequence:
		d.Skip(16)
		seq, slot := d.Uint32(), d.Uint32()
		d.Skip(2 * 4)
		return fmt.Sprintf("slot=%d seq=%d", slot, seq), true
	case OpPutFH:
		return fmt.Sprintf("fh=%#08x", nfs.HandleSum(d.Opaque(FHMax))), true
	case OpPutRootFH, OpPutPubFH, OpGetFH, OpSaveFH, OpRestoreFH, OpLookupP, OpReadLink:
		return "", true
	case OpAccess:
		return fmt.Sprintf("access=%#x", d.Uint32()), true
	case OpLookup, OpSecInfo, OpRemove:
		return fmt.Sprintf("name=%q", d.Opaque(nameMax)), true
	case OpLink:
		return fmt.Sprintf("name=%q", d.Opaque(nameMax)), true
	case OpRename:
		from := d.Opaque(nameMax)
		return fmt.Sprintf("from=%q to=%q", from, d.Opaque(nameMax)), true
	case OpGetAttr:
		DecodeBitmap(d)
		return "", true
	case OpRead, OpReadPlus:
		d.Skip(resStateid)
		off := d.Uint64()
		return fmt.Sprintf("offset=%d count=%d", off, d.Uint32()), true
	case OpWrite:
		d.Skip(resStateid)
		off, stable := d.Uint64(), d.Uint32()
		return fmt.Sprintf("offset=%d count=%d stable=%d", off, len(d.Bulk(nfs.MaxIO)), stable), true
	case OpCommit:
		off := d.Uint64()
		return fmt.Sprintf("offset=%d count=%d", off, d.Uint32()), true
	case OpReadDir:
		cookie := d.Uint64()
		d.Skip(VerifierLen + 4)
		count := d.Uint32()
		DecodeBitmap(d)
		return fmt.Sprintf("cookie=%d count=%d", cookie, count), true
	case OpClose:
		d.Skip(4 + resStateid)
		return "", true
	case OpDelegReturn:
		d.Skip(resStateid)
		return "", true
	case OpOpen:
		d.Skip(4)
		access, deny := d.Uint32(), d.Uint32()
		return fmt.Sprintf("access=%d deny=%d", access&state.Both, deny), false
	}
	return "", false
}
