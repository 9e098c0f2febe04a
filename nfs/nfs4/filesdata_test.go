package nfs4

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestData: READ and WRITE, several in a compound, by the stateid of the operation
// before.
func TestData(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	put := op(OpPutFH, fh)
	p := x.do(put, op(OpWrite, id, uint64(0), uint32(0), "hello"), op(OpWrite, id, uint64(5), uint32(2), " world"),
		op(OpCommit, uint64(0), uint32(0)))
	p.ok(OpPutFH).ok(OpWrite)
	if n, how := p.Uint32(), p.Uint32(); n != 5 || how > 2 {
		t.Errorf("%d bytes, %d", n, how)
	}
	v := decodeVerifier(p.Decoder)
	p.ok(OpWrite)
	if n, how := p.Uint32(), p.Uint32(); n != 6 || how != 2 || decodeVerifier(p.Decoder) != v {
		t.Errorf("%d bytes, %d", n, how)
	}
	p.ok(OpCommit)
	if decodeVerifier(p.Decoder) != v {
		t.Error("another verifier")
	}
	p.end()
	type got struct {
		eof  bool
		data string
	}
	reads := func(p *reply, n int) (out []got) {
		t.Helper()
		for range n {
			p.ok(OpRead)
			out = append(out, got{p.Bool(), p.String(1 << 20)})
		}
		p.end()
		return out
	}
	read := func(id state.Stateid, off uint64, n uint32) args { return op(OpRead, id, off, n) }
	p = x.do(put, read(id, 0, 5), read(state.Bypass, 5, 100), read(state.Anonymous, 100, 5), read(id, 3, 0)).ok(OpPutFH)
	if g := reads(p, 4); fmt.Sprint(g) != "[{false hello} {true  world} {true } {false }]" {
		t.Errorf("%v", g)
	}
	// A carrier that says nothing of further items has a limit for the first.
	r.bulkMax = 3
	if g := reads(x.do(put, read(id, 0, 5), read(id, 0, 5)).ok(OpPutFH), 2); g[0].data != "hel" || g[1].data != "hello" {
		t.Errorf("%v", g)
	}
	r.bulkMax = -1
	// However many there are, they get memory.
	r.blocks = payloads
	many := make([]args, 12)
	for i := range many {
		many[i] = read(id, uint64(i%11), 1)
	}
	if g := reads(x.do(append([]args{put}, many...)...).ok(OpPutFH), len(many)); g[11].data != "h" || g[10].data != "d" {
		t.Errorf("%v", g)
	}
	r.blocks = 0
	// The current stateid goes with the file handle.
	p = x.do(op(OpPutFH, dir), openOp(1, 0, "o", "file"), op(OpSaveFH), read(state.Current, 0, 5), op(OpPutFH, dir),
		op(OpRestoreFH), read(state.Current, 0, 1), op(OpClose, uint32(0), state.Current))
	p.ok(OpPutFH).ok(OpOpen).opened()
	p.ok(OpSaveFH).ok(OpRead)
	p.Skip(4 + 4 + 8)
	p.ok(OpPutFH).ok(OpRestoreFH).ok(OpRead).Skip(4 + 4 + 4)
	if id := DecodeStateid(p.ok(OpClose).Decoder); id != state.Invalid {
		t.Errorf("after CLOSE: %+v", id)
	}
	p.end()
	x.do(put, op(OpClose, uint32(0), state.Current)).ok(OpPutFH).fails(OpClose, nfs.ErrBadStateID)
	// Wrong places.
	x.do(op(OpPutFH, dir), read(id, 0, 1)).ok(OpPutFH).fails(OpRead, nfs.ErrIsDir)
	x.do(op(OpPutFH, dir), op(OpWrite, state.Anonymous, uint64(0), uint32(0), "x")).ok(OpPutFH).fails(OpWrite,
		nfs.ErrIsDir)
	x.do(op(OpPutFH, dir), op(OpCreate, uint32(5), "t", "link", attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
	x.do(op(OpPutFH, x.handle("one", "link")), read(state.Anonymous, 0, 1)).ok(OpPutFH).fails(OpRead, nfs.ErrSymlink)
	x.do(put, op(OpWrite, id, uint64(0), uint32(3), "x")).ok(OpPutFH).fails(OpWrite, nfs.ErrBadXDR)
	x.do(put, op(OpOpenDowngrade, id, uint32(0), uint32(2), uint32(0))).ok(OpPutFH).fails(OpOpenDowngrade, nfs.ErrInval)
	next := DecodeStateid(x.do(put, op(OpOpenDowngrade, id, uint32(0), uint32(3),
		uint32(0))).ok(OpPutFH).ok(OpOpenDowngrade).Decoder)
	x.do(put, op(OpClose, uint32(0), id)).ok(OpPutFH).fails(OpClose, nfs.ErrOldStateID)
	p = x.do(op(OpTestStateID, uint32(3), id, next, state.Anonymous)).ok(OpTestStateID)
	if n, a, b, c := p.Uint32(), nfs.Status(p.Uint32()), nfs.Status(p.Uint32()),
		nfs.Status(p.Uint32()); n != 3 || a != nfs.ErrOldStateID || b != nfs.OK || c != nfs.ErrBadStateID {
		t.Errorf("%d: %v %v %v", n, a, b, c)
	}
	x.do(op(OpTestStateID, uint32(1<<30))).fails(OpTestStateID, nfs.ErrBadXDR)
	x.do(op(OpFreeStateID, next)).fails(OpFreeStateID, nfs.ErrLocksHeld)
	x.do(put, op(OpClose, uint32(0), next)).ok(OpPutFH).ok(OpClose)
	x.do(put, read(next, 0, 1)).ok(OpPutFH).fails(OpRead, nfs.ErrBadStateID)
}

// TestReadInline: a READ is served where it must not wait, and all over again on a
// worker if it has to.
func TestReadInline(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	fh, id := x.make(x.handle("one"), "file")
	x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), uint32(0), "content")).ok(OpPutFH).ok(OpWrite)
	if r.noBlock {
		t.Error("a WRITE on the transport's loop")
	}
	ask := func(id state.Stateid) *reply {
		return x.do(op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(100))).ok(OpPutFH)
	}
	ask(id).ok(OpRead)
	if !r.noBlock {
		t.Error("a READ of what is in memory went to a worker")
	}
	x.do().end()
	if !r.noBlock {
		t.Error("a SEQUENCE alone went to a worker")
	}
	calls := 0
	r.fs.reads = func(nowait bool) error {
		if calls++; nowait {
			return blockstore.ErrWouldBlock
		}
		return nil
	}
	if p := ask(id).ok(OpRead); !p.Bool() || p.String(100) != "content" || calls != 2 || r.noBlock {
		t.Errorf("%d calls", calls)
	}
	if r.s.toWorkers.Load() != 1 || r.count.ReadsMoved.Load() != 1 {
		t.Error("not counted")
	}
	// A part that is in memory is not the answer, unless it is the end of the file.
	for _, c := range []struct{ ready, moved uint64 }{{1, 1}, {6, 1}, {7, 0}} {
		calls, r.fs.ready = 0, int(c.ready)
		r.fs.reads = func(bool) error { calls++; return nil }
		before := r.count.ReadsMoved.Load()
		p := ask(id).ok(OpRead)
		if eof, got := p.Bool(), p.String(100); !eof || got != "content" || calls != int(1+c.moved) ||
			r.count.ReadsMoved.Load()-before != c.moved {
			t.Errorf("%d bytes in memory: %q %v, %d calls", c.ready, got, eof, calls)
		}
		if r.noBlock != (c.moved == 0) {
			t.Errorf("%d bytes in memory: on the loop: %v", c.ready, r.noBlock)
		}
	}
	r.fs.ready = 0
	r.fs.reads = func(bool) error { return blockstore.ErrIO }
	ask(id).fails(OpRead, nfs.ErrIO)
	r.fs.reads = func(bool) error { return errors.New("?") }
	ask(id).fails(OpRead, nfs.ErrIO)
	r.fs.reads = nil
	ask(state.Stateid{Seq: 1, Other: [12]byte{0, 0, 0, 7}}).fails(OpRead, nfs.ErrBadStateID)
	ask(id).ok(OpRead)
}

func TestLocks(t *testing.T) {
	r := newRig(t)
	x, y := r.session(2, "one"), r.session(2, "two")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	his, _, _ := y.do(op(OpPutFH, dir), openOp(3, 0, "o", "file")).ok(OpPutFH).ok(OpOpen).opened()
	put := op(OpPutFH, fh)
	byOpen := func(typ int, off, n uint64, id state.Stateid, owner string) args {
		return op(OpLock, typ, false, off, n, true, uint32(0), id, uint32(0), uint64(0), owner)
	}
	p := x.do(put, byOpen(LockWrite, 10, 5, id, "mine")).ok(OpPutFH).ok(OpLock)
	lockID := DecodeStateid(p.Decoder)
	p.end()
	for _, o := range []args{byOpen(LockRead, 0, lock.ToEnd, his, "his"), byOpen(lockWriteWait, 14, 1, his, "his")} {
		d := y.do(put, o).ok(OpPutFH).fails2(OpLock, nfs.ErrDenied, 8+8+4+8+4+4)
		if off, n, typ, client, owner := d.Uint64(), d.Uint64(), d.Uint32(), d.Uint64(), d.String(100); off != 10 ||
			n != 5 || typ != LockWrite || client != x.client || owner != "mine" {
			t.Errorf("denied by %d+%d %d %x %q", off, n, typ, client, owner)
		}
	}
	y.do(put, op(OpLockT, LockRead, uint64(12), uint64(1), uint64(0), "his")).ok(OpPutFH).fails2(OpLockT, nfs.ErrDenied,
		36)
	y.do(put, op(OpLockT, LockRead, uint64(15), uint64(1), uint64(0), "his")).ok(OpPutFH).ok(OpLockT).end()
	x.do(put, op(OpLockT, LockRead, uint64(12), uint64(1), uint64(0), "mine")).ok(OpPutFH).ok(OpLockT).end()
	// A version 3 client's lock is in the way as well.
	f := lock.File{Export: 1}
	_, f.Handle, _ = r.codec.Parse(fh)
	if _, ok, _ := r.locks.Lock(f,
		lock.Lock{Owner: lock.Owner{Client: "10.0.0.9 host", ID: "p"}, Start: 100, End: 200}); !ok {
		t.Fatal("not locked")
	}
	if d := x.do(put, op(OpLock, LockWrite, false, uint64(150), uint64(1), false, lockID,
		uint32(0))).ok(OpPutFH).fails2(OpLock, nfs.ErrDenied, 36); d.Uint64() != 100 || d.Uint64() != 101 ||
		d.Uint32() != LockRead || d.Uint64() != 0 {
		t.Error("denied by something else")
	}
	next := DecodeStateid(x.do(put, op(OpLock, LockRead, false, uint64(150), uint64(1), false, lockID,
		uint32(0))).ok(OpPutFH).ok(OpLock).Decoder)
	if next.Seq != lockID.Seq+1 || next.Other != lockID.Other {
		t.Errorf("%+v after %+v", next, lockID)
	}
	for _, c := range []struct {
		fh   []byte
		o    args
		n    uint32
		want nfs.Status
	}{
		{fh, byOpen(9, 0, 1, id, "mine"), OpLock, nfs.ErrBadXDR},
		{fh, byOpen(LockRead, 0, 0, id, "mine"), OpLock, nfs.ErrInval},
		{fh, byOpen(LockRead, 5, lock.ToEnd-1, id, "mine"), OpLock, nfs.ErrInval},
		{dir, byOpen(LockRead, 0, 1, id, "mine"), OpLock, nfs.ErrIsDir},
		{fh, byOpen(LockRead, 0, 1, state.Anonymous, "mine"), OpLock, nfs.ErrBadStateID},
		{fh, op(OpLock, LockRead, true, uint64(0), uint64(1), false, next, uint32(0)), OpLock, nfs.ErrNoGrace},
		{fh, op(OpLock, LockRead, false, uint64(0), uint64(1), false, lockID, uint32(0)), OpLock, nfs.ErrOldStateID},
		{fh, op(OpLockU, LockRead, uint32(0), next, uint64(0), uint64(0)), OpLockU, nfs.ErrInval},
		{fh, op(OpLockU, LockRead, uint32(0), id, uint64(0), uint64(1)), OpLockU, nfs.ErrBadStateID},
		{dir, op(OpLockU, LockRead, uint32(0), next, uint64(0), uint64(1)), OpLockU, nfs.ErrBadStateID},
	} {
		x.do(op(OpPutFH, c.fh), c.o).ok(OpPutFH).fails(c.n, c.want)
	}
	x.do(op(OpFreeStateID, next)).fails(OpFreeStateID, nfs.ErrLocksHeld)
	last := DecodeStateid(x.do(put, op(OpLockU, LockRead, uint32(0), next, uint64(0),
		uint64(lock.ToEnd))).ok(OpPutFH).ok(OpLockU).Decoder)
	x.do(op(OpFreeStateID, last)).ok(OpFreeStateID).end()
	y.do(put, byOpen(LockWrite, 10, 5, his, "his")).ok(OpPutFH).ok(OpLock)
	y.do(put, op(OpClose, uint32(0), his)).ok(OpPutFH).ok(OpClose)
	x.do(put, byOpen(LockWrite, 10, 5, id, "mine")).ok(OpPutFH).ok(OpLock)
}

// FuzzCompound has any bytes follow a SEQUENCE. The server stays whole, and what it
// says is a COMPOUND4res whose results are of the operations that were sent.
func FuzzCompound(f *testing.F) {
	r := newRig(f)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	add := func(ops ...args) {
		var e xdr.Encoder
		for _, o := range ops {
			o(&e)
		}
		f.Add(uint32(len(ops)), e.B)
	}
	add(op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(9)))
	add(op(OpPutFH, dir), openCreateOp(3, "o", "name", CreateUnchecked, attrs(BitmapOf(AttrMode), uint32(0o600))),
		op(OpGetFH), op(OpGetAttr, supportedBy[2].without(writeOnly)))
	add(op(OpPutFH, dir), op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), supportedBy[2].without(writeOnly)))
	add(op(OpPutFH, fh), op(OpSetAttr, id, attrs(unlabelled, uint64(100), uint32(0o640), "1", "1", uint32(0), uint32(0))))
	add(op(OpPutFH, fh), op(OpLock, LockWrite, false, uint64(1), uint64(2), true, uint32(0), id, uint32(0), uint64(0),
		"o"))
	add(op(OpPutFH, dir), op(OpSaveFH), op(OpPutFH, dir), op(OpRename, "a", "b"))
	add(op(OpPutFH, dir), op(OpCreate, uint32(5), "t", "link", attrs(Bitmap{})))
	add(op(OpTestStateID, uint32(1), id))
	for _, o := range ops42 {
		add(op(OpPutFH, fh), op(OpSaveFH), o.args(id, id))
	}
	add(op(OpPutFH, fh), op(OpSetXattr, 0, "name", "value"), op(OpGetXattr, "name"), op(OpListXattrs, uint64(0), 100),
		op(OpRemoveXattr, "name"))
	add(exchangeArgs("x", 1, 0))
	add(op(OpCreateSession, x.client, uint32(2), uint32(0), channelArgs(4096, 4096, 0, 8, 1), channelArgs(0, 0, 0, 0, 0),
		uint32(0), uint32(1), uint32(1), uint32(0), "h", uint32(0), uint32(0), uint32(0)))
	f.Fuzz(func(t *testing.T, n uint32, b []byte) {
		r.t, x.r.t = t, t
		if r.s.state.Session(x.id) == nil {
			x = r.session(2, "one")
		}
		x.seq++
		var e xdr.Encoder
		e.String("tag")
		e.Uint32(2)
		e.Uint32(n%8 + 1)
		x.sequence(x.seq, 0)(&e)
		e.B = append(e.B, b...)
		d, st := r.send(e.B)
		if st != rpc.RPCSuccess {
			t.Fatalf("accept status %d", st)
		}
		status := nfs.Status(d.Uint32())
		if d.String(10) != "tag" {
			t.Fatal("tag")
		}
		results := d.Uint32()
		if results < 1 || results > n%8+1 || status == nfs.OK && results != n%8+1 {
			t.Fatalf("%d results of %d, %v", results, n%8+1, status)
		}
		if op, st := d.Uint32(), nfs.Status(d.Uint32()); op != OpSequence || st != nfs.OK {
			t.Fatalf("%d %v", op, st)
		}
		if len(r.raw)%4 != 0 {
			t.Fatalf("%d bytes", len(r.raw))
		}
	})
}
