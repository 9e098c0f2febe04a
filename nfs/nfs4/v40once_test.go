package nfs4

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestOnceForGood: the answer of what changes names outlives the server; that of what opens
// a file does not, which is not open any more.
func TestOnceForGood(t *testing.T) {
	r := newRig(t)
	journal := make([]byte, 64<<10)
	serve := func() {
		r.srv.Close()
		r.srv = rpc.NewServer(rpc.ServerConfig{Programs: r.s.Programs(), Workers: 2, Journal: journal})
		t.Cleanup(r.srv.Close)
	}
	serve()
	c := r.client40("x", 1)
	put := op(OpPutFH, r.root())
	remove, open := []args{put, op(OpRemove, "file"), op(OpPutRootFH)}, []args{put, c.openOp(9, 1, 0, "p", "other")}
	c.make("o", "file")
	c.make("o", "other")
	for _, k := range []struct {
		name string
		ops  []args
		op   uint32
		want nfs.Status // when sent again to the next server
	}{{"REMOVE", remove, OpRemove, nfs.OK}, {"OPEN", open, OpOpen, nfs.ErrStaleClientID}} {
		var e xdr.Encoder
		encodeCompound(&e, "tag", 0, k.ops...)
		r.parse(r.send(e.B)).ok(OpPutFH).ok(k.op)
		first := bytes.Clone(r.raw)
		r.known = nil
		r.start(20 + k.op)
		serve()
		r.xid--
		p := r.parse(r.send(e.B)).ok(OpPutFH)
		if st := p.next(k.op); st != k.want || k.want == nfs.OK && !bytes.Equal(first, r.raw) {
			t.Errorf("%s, sent again: %v", k.name, st)
		}
		c = r.client40("x", 1)
		open[1] = c.openOp(9, 1, 0, "p", "other")
	}
}

// TestInline40: a READ of version 4.0 is served where nothing may wait.
func TestInline40(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	c.on(fh, op(OpWrite, id, uint64(0), uint32(2), "data")).ok(OpWrite)
	p := c.on(fh, op(OpRead, id, uint64(0), uint32(9))).ok(OpRead)
	if eof, data := p.Bool(), p.String(9); !eof || data != "data" || !r.noBlock {
		t.Errorf("%v %q, without a worker: %v", eof, data, r.noBlock)
	}
	stale := id
	stale.Other[2]++
	c.on(fh, op(OpRead, stale, uint64(0), uint32(9))).fails(OpRead, nfs.ErrStaleStateID)
}

// TestPanic40: a fault of ours costs a call, not the owner its turn.
func TestPanic40(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	dir := r.root()
	r.fs.panics = true
	var e xdr.Encoder
	encodeCompound(&e, "tag", 0, op(OpPutFH, dir), c.openOp(c.seqs["o"]+1, 1, 0, "o", "file"))
	if _, st := r.send(e.B); st != rpc.SystemErr {
		t.Errorf("accept status %d", st)
	}
	r.fs.panics = false
	c.on(fh, op(OpClose, c.next("o"), id)).ok(OpClose)
}

// FuzzCompound40: no arguments of version 4.0 do harm.
func FuzzCompound40(f *testing.F) {
	r := newRig(f)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	dir := r.root()
	l := c.on(fh, c.lockOp(c.next("o"), id, 1, "l", LockWrite, 0, 10)).ok(OpLock).id()
	add := func(ops ...args) {
		var e xdr.Encoder
		for _, o := range ops {
			o(&e)
		}
		f.Add(uint32(len(ops)), e.B)
	}
	add(op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(9)))
	add(op(OpPutFH, dir), c.createOp(9, 3, "p", "name"), op(OpGetFH), op(OpGetAttr, supportedBy[1].without(writeOnly)))
	add(op(OpPutFH, dir), c.openOp(c.seqs["o"]+1, 1, 0, "o", "file"), op(OpClose, c.seqs["o"]+2, id))
	add(op(OpPutFH, fh), op(OpOpenDowngrade, id, c.seqs["o"]+1, uint32(1), uint32(0)),
		op(OpOpenConfirm, id, c.seqs["o"]+2))
	add(op(OpPutFH, fh), c.lockOp(c.seqs["o"]+1, id, 1, "m", LockRead, 50, 10), lockMore(2, l, LockWrite, 20, 1),
		lockUOp(3, l, 0, 5))
	add(op(OpPutFH, fh), op(OpLockT, LockRead, uint64(0), uint64(1), c.id, "z"), op(OpReleaseLockOwner, c.id, "l"))
	add(op(OpPutFH, fh), c.reclaimOp(1, 1, "q"), op(OpDelegReturn, id))
	add(setClientOp("y", 1, "tcp", uaddr), confirmOp(c.id+1, [8]byte{7}), op(OpRenew, c.id))
	f.Fuzz(func(t *testing.T, n uint32, b []byte) {
		r.t = t
		var e xdr.Encoder
		e.String("tag")
		e.Uint32(0)
		e.Uint32(n%8 + 1)
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
		if results < 1 || results > n%8+1 || status == nfs.OK && results != n%8+1 || len(r.raw)%4 != 0 {
			t.Fatalf("%d results of %d, %v, %d bytes", results, n%8+1, status, len(r.raw))
		}
	})
}

// TestMinor0: version 4.0 can be switched off, and be the only one.
func TestMinor0(t *testing.T) {
	for _, served := range []uint32{0, 1} {
		r := newRig(t)
		r.s.cfg.Minors = []uint32{served}
		p := r.compound(0, setClientOp("x", 1, "tcp", uaddr))
		if got := p.status; served == 0 && got != nfs.OK || served != 0 && got != nfs.ErrMinorVersMismatch {
			t.Errorf("4.%d is served: 4.0 ends with %v", served, got)
		}
		p = r.compound(1, exchangeArgs("o", 1, 0))
		if got := p.status; served == 1 && got != nfs.OK || served != 1 && got != nfs.ErrMinorVersMismatch {
			t.Errorf("4.%d is served: 4.1 ends with %v", served, got)
		}
	}
}

// TestDelegationReclaimed40: a delegation for reading is reclaimed with its open, before
// it is known whether the client answers; one for writing there never was.
func TestDelegationReclaimed40(t *testing.T) {
	r := newRig(t)
	back := &callee40{t: t}
	r.called40(back)
	c := r.client40("x", 1)
	c.make("o", "file")
	fh, _ := c.open(state.Read, 0, "o", "file")
	r.start(8)
	kept := &holding{}
	r.s.cfg.CallBack = func(*state.Callback) rpc.Caller { return kept }
	c = r.client40("x", 1)
	reclaim := func(owner string, kind uint32) opened40 {
		t.Helper()
		return c.on(fh, op(OpOpen, c.next(owner), uint32(state.Read), uint32(0), c.id, owner, uint32(OpenNoCreate),
			uint32(ClaimPrevious), kind)).ok(OpOpen).opened40()
	}
	if o := reclaim("p", delegWrite); o.deleg != DelegNone {
		t.Errorf("delegation %d", o.deleg)
	}
	o := reclaim("o", delegRead)
	if o.deleg != delegRead || o.confirm {
		t.Errorf("%+v", o)
	}
	c.on(fh, op(OpDelegReturn, o.delegID)).ok(OpDelegReturn)
	if len(kept.calls) != 1 {
		t.Fatalf("%d calls", len(kept.calls))
	}
	kept.calls[0].Done(nil, rpc.ErrTimeout)
	if o := reclaim("q", delegRead); o.deleg != DelegNone {
		t.Error("delegated to a client that does not answer")
	}
}

// holding is a Caller that does not end its calls.
type holding struct{ calls []*rpc.BackwardCall }

func (h *holding) Connected() bool          { return true }
func (h *holding) Call(b *rpc.BackwardCall) { h.calls = append(h.calls, b) }

// TestLongRequestsAreApart: requests with one number that differ far behind their beginnings, here
// behind an owner of 600 bytes, are not taken for each other, in any minor version.
func TestLongRequestsAreApart(t *testing.T) {
	owner := strings.Repeat("o", 600)
	r := newRig(t)
	c := r.client40("x", 1)
	c.make("maker", "file one")
	c.make("maker", "file two")
	c.open(state.Read, 0, owner, "file one")
	open := func(name string) *reply {
		return r.compound(0, op(OpPutFH, r.root()), c.openOp(c.seqs[owner], state.Read, 0, owner, name)).ok(OpPutFH)
	}
	open("file two").fails(OpOpen, nfs.ErrBadSeqID) // the last was the OPEN_CONFIRM
	c.next(owner)
	open("file one").ok(OpOpen).opened40()
	open("file one").ok(OpOpen).opened40()
	open("file two").fails(OpOpen, nfs.ErrBadSeqID)

	x := r.session(1, "y")
	one := openOp(state.Read, 0, owner, "file one")
	x.do(op(OpPutFH, r.root()), one).ok(OpPutFH).ok(OpOpen)
	again := func(cred uint32, ops ...args) *reply {
		defer func() { r.uid = 0 }()
		r.uid = cred
		return r.compound(1, append([]args{x.sequence(x.seq, 0)}, ops...)...)
	}
	again(0, op(OpPutFH, r.root()), one).ok(OpSequence)
	again(0, op(OpPutFH, r.root()), openOp(state.Read, 0, owner, "file two")).fails(OpSequence, nfs.ErrSeqFalseRetry)
	again(1, op(OpPutFH, r.root()), one).fails(OpSequence, nfs.ErrSeqFalseRetry)
	// Values of attributes are the longest that is not data.
	value := make([]byte, 50<<10)
	set := func() args {
		return op(OpSetXattr, uint32(0), "user.x", value)
	}
	y := r.session(2, "z")
	x = y
	fh := y.handle("one", "file one")
	y.do(op(OpPutFH, fh), set()).ok(OpPutFH)
	value[len(value)-1]++
	p := r.compound(2, y.sequence(y.seq, 0), op(OpPutFH, fh), set())
	p.fails(OpSequence, nfs.ErrSeqFalseRetry)
}

// TestUnconfirmedIsReplaced: a SETCLIENTID of the confirmed client takes the place of another
// start's that was not confirmed: a late SETCLIENTID_CONFIRM of that does not end the client (RFC
// 7530 section 16.33.5).
func TestUnconfirmedIsReplaced(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	late, lateVerf := r.setClient("x", 2)
	again, verf := r.setClient("x", 1)
	if again != c.id {
		t.Fatalf("client %x instead of %x", again, c.id)
	}
	r.compound(0, confirmOp(late, lateVerf)).fails(OpSetClientIDConfirm, nfs.ErrStaleClientID)
	r.compound(0, confirmOp(again, verf)).ok(OpSetClientIDConfirm).end()
	c.on(fh, op(OpRead, id, uint64(0), uint32(1))).ok(OpRead)
}
