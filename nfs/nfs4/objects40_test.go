package nfs4

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestEveryObject40: each operation of version 4.0, on whatever a file handle can be of,
// ends as the RFC has it, whoever asks and whether there is a grace period or not. The
// rig sees to that.
func TestEveryObject40(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	dir := r.root()
	fh, id := c.make("o", "file")
	l := c.on(fh, c.lockOp(c.next("o"), id, 1, "l", LockWrite, 0, 10)).ok(OpLock).id()
	made := func(typ uint32, name string, how ...any) []byte {
		t.Helper()
		p := r.compound(0, op(OpPutFH, dir), op(OpCreate, typ, part(how...), name, attrs(Bitmap{})),
			op(OpGetFH)).ok(OpPutFH).ok(OpCreate)
		p.change()
		DecodeBitmap(p.Decoder)
		return bytes.Clone(p.ok(OpGetFH).Opaque(FHMax))
	}
	gone := made(2, "gone")
	r.compound(0, op(OpPutFH, dir), op(OpRemove, "gone")).ok(OpPutFH).ok(OpRemove)
	forged := bytes.Clone(fh)
	forged[len(forged)-1]++
	objects := map[string][]args{
		"file": {op(OpPutFH, fh)}, "directory": {op(OpPutFH, dir)}, "link": {op(OpPutFH, made(5, "link", "target"))},
		"fifo": {op(OpPutFH, made(7, "fifo"))}, "device": {op(OpPutFH, made(4, "device", uint32(1), uint32(3)))},
		"gone": {op(OpPutFH, gone)}, "forged": {op(OpPutFH, forged)}, "nothing": nil, "root": {op(OpPutRootFH)},
		"pseudo":    {op(OpPutRootFH), op(OpLookup, "deep")},
		"read-only": {op(OpPutRootFH), op(OpLookup, "deep"), op(OpLookup, "two")},
	}
	stale, old := id, l
	stale.Other[0]++
	old.Seq--
	var ops []args
	for _, name := range []string{
		"file", "link", "directory", "none", "", ".", "..", "a/b", "\xff",
		strings.Repeat("n", 300), "nested", "one",
	} {
		ops = append(ops, op(OpLookup, name), op(OpSecInfo, name), op(OpRemove, name), op(OpRename, name, name+"2"),
			op(OpRename, "fifo", name), op(OpLink, name))
		for _, typ := range []uint32{1, 2, 6, 7, 8, 9} {
			ops = append(ops, op(OpCreate, typ, name, attrs(BitmapOf(AttrMode), uint32(0o700))))
		}
		ops = append(ops, op(OpCreate, uint32(5), "", name, attrs(Bitmap{})),
			op(OpCreate, uint32(5), "to", name, attrs(BitmapOf(AttrSize), uint64(3))))
		for _, how := range []args{
			part(uint32(OpenNoCreate)), part(uint32(OpenCreate), uint32(CreateUnchecked), attrs(Bitmap{})),
			part(uint32(OpenCreate), uint32(CreateGuarded), attrs(BitmapOf(AttrSize), uint64(0))),
			part(uint32(OpenCreate), uint32(createExclusive), [8]byte{1}),
			part(uint32(OpenCreate), uint32(CreateUnchecked), attrs(BitmapOf(AttrExclCreat), uint32(0))),
		} {
			ops = append(ops, args(func(e *xdr.Encoder) {
				op(OpOpen, c.next("many"), uint32(3), uint32(0), c.id, "many", how, uint32(ClaimNull), name)(e)
			}))
			for _, d := range []state.Stateid{id, stale} {
				ops = append(ops, args(func(e *xdr.Encoder) {
					op(OpOpen, c.next("many"), uint32(1), uint32(0), c.id, "many", how, uint32(claimDelegCur), d, name)(e)
				}))
			}
		}
	}
	for _, s := range []state.Stateid{id, l, stale, old, state.Anonymous, state.Bypass, state.Current, state.Invalid} {
		next := func(f func(seq uint32) args) args {
			return func(e *xdr.Encoder) {
				seq := c.seqs["o"] + 1
				f(seq)(e)
			}
		}
		ops = append(
			ops, op(OpRead, s, uint64(0), uint32(9)), op(OpWrite, s, uint64(0), uint32(2), "x"),
			op(OpSetAttr, s, attrs(BitmapOf(AttrSize), uint64(9))),
			op(OpSetAttr, s, attrs(BitmapOf(AttrMode), uint32(0o600))), op(OpDelegReturn, s),
			next(func(seq uint32) args { return op(OpClose, seq+5, s) }),
			next(func(seq uint32) args { return op(OpOpenConfirm, s, seq+5) }),
			next(func(seq uint32) args { return op(OpOpenDowngrade, s, seq+5, uint32(1), uint32(0)) }),
			next(func(seq uint32) args { return c.lockOp(seq+5, s, 1, "m", LockRead, 0, 1) }),
			lockMore(99, s, LockWrite, 0, 1), lockUOp(99, s, 0, 1),
		)
	}
	ops = append(
		ops, op(OpAccess, uint32(63)), op(OpCommit, uint64(0), uint32(0)), op(OpDelegPurge, c.id),
		op(OpGetAttr, supportedBy[1].without(writeOnly)),
		op(OpGetAttr, writeOnly), op(OpGetFH), op(OpLockT, LockRead, uint64(0), uint64(1), c.id, "z"),
		op(OpLockT, LockRead, uint64(5), uint64(0), c.id, "z"),
		op(OpLockT, LockRead, uint64(0), uint64(1), c.id+9, "z"), op(OpLookupP),
		op(OpVerify, attrs(BitmapOf(AttrType), uint32(1))), op(OpNVerify, attrs(BitmapOf(AttrType), uint32(1))),
		op(OpVerify, attrs(BitmapOf(AttrRdattrError), uint32(1))), op(OpOpenAttr, true),
		op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), BitmapOf(AttrType)),
		op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(8), BitmapOf(AttrType)),
		op(OpReadDir, uint64(1), [8]byte{}, uint32(0), uint32(4096), BitmapOf(AttrType)),
		op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), writeOnly), op(OpReadLink), op(OpRestoreFH),
		op(OpSaveFH),
		op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrOwner), "nobody at all")),
		op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrType), uint32(1))),
		op(OpReleaseLockOwner, c.id, "none"), op(OpReleaseLockOwner, c.id+9, "none"), op(OpRenew, c.id), op(OpRenew, c.id+9),
		op(OpPutFH, "xyz"),
		args(func(e *xdr.Encoder) { c.reclaimOp(c.next("again"), 1, "again")(e) }),
	)
	round := func(grace string) {
		for what, at := range objects {
			for _, peer := range []string{friend, reader, stranger} {
				for i, o := range ops {
					if strings.HasPrefix(what, "d") && peer == friend && i%7 == 3 {
						continue // not everything is to be removed at once
					}
					r.peer, r.uid = peer, uint32(i%2*1000)
					r.compound(0, append(at[:len(at):len(at)], o)...)
					saved := append(at[:len(at):len(at)], op(OpSaveFH), op(OpPutFH, dir), o)
					r.compound(0, saved...)
					if t.Failed() {
						t.Fatalf("operation %d on %s by %s, %s", i, what, peer, grace)
					}
				}
			}
		}
		r.peer, r.uid = friend, 0
	}
	round("no grace period")
	r.known = []string{"x", "y"}
	r.start(9)
	round("after a restart")
}
