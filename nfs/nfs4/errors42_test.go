package nfs4

import (
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// op42 is an operation of version 4.2 on data, made of a stateid for the current
// file. The saved file, where one is needed, is a regular one.
type op42 struct {
	name  string
	op    uint32
	write bool
	args  func(saved, id state.Stateid) args
}

var ops42 = []op42{
	{"SEEK", OpSeek, false, func(_, id state.Stateid) args { return op(OpSeek, id, uint64(0), 0) }},
	{"READ_PLUS", OpReadPlus, false, func(_, id state.Stateid) args { return op(OpReadPlus, id, uint64(0), 10) }},
	{"IO_ADVISE", OpIOAdvise, false, func(_, id state.Stateid) args {
		return op(OpIOAdvise, id, uint64(0), uint64(10),
			BitmapOf(2))
	}},
	{"ALLOCATE", OpAllocate, true, func(_, id state.Stateid) args { return op(OpAllocate, id, uint64(0), uint64(10)) }},
	{
		"DEALLOCATE", OpDeallocate, true,
		func(_, id state.Stateid) args { return op(OpDeallocate, id, uint64(0), uint64(10)) },
	},
	{"WRITE_SAME", OpWriteSame, true, func(_, id state.Stateid) args {
		return writeSameOp(id, 0, dataBlocks{size: 4, count: 1, numAt: noNumber, pattern: []byte("same")})
	}},
	{"COPY", OpCopy, true, func(saved, id state.Stateid) args {
		return op(OpCopy, saved, id, uint64(0), uint64(0), uint64(2), true, true, uint32(0))
	}},
	{"CLONE", OpClone, true, func(saved, id state.Stateid) args {
		return op(OpClone, saved, id, uint64(0), uint64(0), uint64(2))
	}},
}

// TestErrors42: the errors that the operations of version 4.2 on data have in common.
func TestErrors42(t *testing.T) {
	r := newRig(t)
	r.fs.clones = true
	x := r.session(2, "one")
	dir := x.handle("one")
	saved, savedID := x.make(dir, "saved")
	fh, old := x.make(dir, "file")
	_, id := x.make(dir, "file") // again, by the same owner
	for _, h := range [][]byte{saved, fh} {
		x.do(op(OpPutFH, h), op(OpWrite, state.Anonymous, uint64(0), 0, "some data")).ok(OpPutFH).ok(OpWrite)
	}
	made := func(typ int, name string, rest ...any) []byte {
		t.Helper()
		x.do(op(OpPutFH, dir), op(OpCreate, append(append([]any{typ}, rest...), name,
			attrs(Bitmap{}))...)).ok(OpPutFH).ok(OpCreate)
		return x.handle("one", name)
	}
	link, fifo := made(5, "link", "file"), made(7, "fifo")
	gone, goneID := x.make(dir, "gone")
	x.do(op(OpPutFH, gone), op(OpClose, uint32(0), goneID)).ok(OpPutFH).ok(OpClose)
	x.do(op(OpPutFH, dir), op(OpRemove, "gone")).ok(OpPutFH).ok(OpRemove)
	readOnly, _, _ := x.do(op(OpPutFH, dir), openOp(state.Read, 0, "reads", "file")).ok(OpPutFH).ok(OpOpen).opened()
	y := r.session(2, "two")
	_, theirs := y.make(dir, "file")
	bad, stale := id, id
	bad.Seq++
	stale.Other[0] ^= 1
	const none = nfs.OK
	for _, c := range []struct {
		what        string
		fh          []byte
		id          state.Stateid
		read, write nfs.Status // none: it is done
	}{
		{"all right", fh, id, none, none},
		{"the latest seqid", fh, state.Stateid{Other: id.Other}, none, none},
		{"no open", fh, state.Anonymous, none, none},
		{"bypass", fh, state.Bypass, none, none},
		{"open for reading", fh, readOnly, none, nfs.ErrOpenMode},
		{"an old seqid", fh, old, nfs.ErrOldStateID, nfs.ErrOldStateID},
		{"a seqid to come", fh, bad, nfs.ErrBadStateID, nfs.ErrBadStateID},
		{"of another start", fh, stale, nfs.ErrBadStateID, nfs.ErrBadStateID},
		{"of another client", fh, theirs, nfs.ErrBadStateID, nfs.ErrBadStateID},
		{"of another file", fh, savedID, nfs.ErrBadStateID, nfs.ErrBadStateID},
		{"what CLOSE returns", fh, state.Invalid, nfs.ErrBadStateID, nfs.ErrBadStateID},
		{"a directory", dir, state.Anonymous, nfs.ErrIsDir, nfs.ErrIsDir},
		{"a directory, by the stateid of a file", dir, id, nfs.ErrIsDir, nfs.ErrIsDir},
		{"a symlink", link, state.Anonymous, nfs.ErrSymlink, nfs.ErrSymlink},
		{"a fifo", fifo, state.Anonymous, nfs.ErrWrongType, nfs.ErrWrongType},
		{"a file that was removed", gone, state.Anonymous, nfs.ErrStale, nfs.ErrStale},
	} {
		for _, o := range ops42 {
			want := c.read
			if o.write {
				want = c.write
			}
			p := x.do(op(OpPutFH, saved), op(OpSaveFH), op(OpPutFH, c.fh),
				o.args(savedID, c.id)).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH)
			if st := p.next(o.op); st != want {
				t.Errorf("%s, %s: %v instead of %v", o.name, c.what, st, want)
			}
		}
	}
	for _, o := range ops42 {
		x.do(o.args(savedID, id)).fails(o.op, nfs.ErrNoFileHandle)
		x.do(op(OpPutRootFH), op(OpSaveFH), o.args(savedID, id)).ok(OpPutRootFH).ok(OpSaveFH).fails(o.op, nfs.ErrIsDir)
	}
	// The stateid of the operation before, and the one that was saved with its file.
	p := x.do(op(OpPutFH, dir), openOp(state.Read, 0, "source", "saved"), op(OpSaveFH), op(OpPutFH, dir),
		openOp(state.Both, 0, "target", "file"),
		op(OpCopy, state.Current, state.Current, uint64(0), uint64(0), uint64(2), true, true, uint32(0)),
		op(OpSeek, state.Current, uint64(0), 0))
	p.ok(OpPutFH).ok(OpOpen).opened()
	p.ok(OpSaveFH).ok(OpPutFH).ok(OpOpen).opened()
	p.ok(OpCopy).Skip(4 + 8 + 4 + VerifierLen + 4 + 4)
	p.ok(OpSeek)
	// Whoever may not.
	r.uid = 1000
	for _, o := range ops42 {
		want := none
		if o.write {
			want = nfs.ErrAcces
		}
		p := x.do(op(OpPutFH, saved), op(OpSaveFH), op(OpPutFH, fh), o.args(savedID, id)).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH)
		if st := p.next(o.op); st != want {
			t.Errorf("%s by another user: %v instead of %v", o.name, st, want)
		}
	}
	r.uid, r.peer = 0, reader
	for _, o := range ops42 {
		want := none
		if o.write {
			want = nfs.ErrROFS
		}
		p := x.do(op(OpPutFH, saved), op(OpSaveFH), op(OpPutFH, fh), o.args(savedID, id)).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH)
		if st := p.next(o.op); st != want {
			t.Errorf("%s where nothing can be written: %v instead of %v", o.name, st, want)
		}
	}
	r.peer = friend
	// After a restart those without an open wait for those with one.
	r.known = []string{"one"}
	r.start(8)
	r.now = r.now.Add(time.Second)
	z := r.session(2, "late")
	for _, o := range ops42 {
		z.do(op(OpPutFH, saved), op(OpSaveFH), op(OpPutFH, fh),
			o.args(state.Anonymous, state.Anonymous)).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).fails(o.op, nfs.ErrGrace)
	}
}

// TestCutOff: arguments that end too early are BADXDR, wherever they end, and nothing
// is done.
func TestCutOff(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), 0, "some data"),
		op(OpSetXattr, 0, "name", "value")).ok(OpPutFH).ok(OpWrite)
	before := x.attr(fh, AttrChange).Uint64()
	list := []op42{
		{"GETXATTR", OpGetXattr, false, func(_, _ state.Stateid) args { return op(OpGetXattr, "name") }},
		{"SETXATTR", OpSetXattr, true, func(_, _ state.Stateid) args { return op(OpSetXattr, 0, "name", "other value") }},
		{"LISTXATTRS", OpListXattrs, false, func(_, _ state.Stateid) args { return op(OpListXattrs, uint64(0), 100) }},
		{"REMOVEXATTR", OpRemoveXattr, true, func(_, _ state.Stateid) args { return op(OpRemoveXattr, "name") }},
	}
	for _, o := range append(list, ops42...) {
		var e xdr.Encoder
		o.args(id, id)(&e)
		for n := 4; n < len(e.B); n += 4 {
			cut := func(out *xdr.Encoder) { out.B = append(out.B, e.B[:n]...) }
			p := x.do(op(OpPutFH, fh), op(OpSaveFH), cut).ok(OpPutFH).ok(OpSaveFH)
			if st := p.next(o.op); st != nfs.ErrBadXDR {
				t.Errorf("%s, %d of %d bytes: %v", o.name, n, len(e.B), st)
			}
		}
	}
	if after := x.attr(fh, AttrChange).Uint64(); after != before {
		t.Error("the file was changed")
	}
}
