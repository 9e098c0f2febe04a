package nfs4

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestReclaim40: state is reclaimed after a restart, by those alone who had it at its end.
func TestReclaim40(t *testing.T) {
	r := newRig(t)
	c, third := r.client40("x", 1), r.client40("z", 1)
	fh, id := c.make("o", "file")
	c.on(fh, c.lockOp(c.next("o"), id, 1, "l", LockWrite, 0, 10)).ok(OpLock)
	third.make("o", "third")
	restart := func(boot uint32) {
		r.locks = lock.New(0)
		r.start(boot)
	}
	lockReclaim := func(c *client40, id state.Stateid, reclaim bool) args {
		return op(OpLock, LockWrite, reclaim, uint64(0), uint64(10), true, c.next("o"), id, uint32(1), c.id, "l")
	}
	restart(8)
	r.compound(0, op(OpRenew, c.id)).fails(OpRenew, nfs.ErrStaleClientID)
	c.on(fh, op(OpRead, id, uint64(0), uint32(1))).fails(OpRead, nfs.ErrStaleStateID)
	c = r.client40("x", 1)
	other := r.client40("y", 1)
	dir := r.root()
	other.on(dir, other.openOp(other.next("o"), 1, 0, "o", "file")).fails(OpOpen, nfs.ErrGrace)
	other.on(fh, other.reclaimOp(other.next("o"), state.Both, "o")).fails(OpOpen, nfs.ErrNoGrace)
	other.on(fh, op(OpRead, state.Anonymous, uint64(0), uint32(1))).fails(OpRead, nfs.ErrGrace)
	c.on(dir, c.openOp(c.next("o"), 1, 0, "o", "file")).fails(OpOpen, nfs.ErrGrace)
	o := c.on(fh, c.reclaimOp(c.next("o"), state.Both, "o")).ok(OpOpen).opened40()
	if o.confirm {
		t.Error("what is reclaimed has to be confirmed")
	}
	c.on(fh, lockReclaim(c, o.id, false)).fails(OpLock, nfs.ErrGrace)
	c.on(fh, lockReclaim(c, o.id, true)).ok(OpLock)
	// The period is over with the lease, and is not kept for z, who has not come back: at the
	// next start z may not reclaim what others had meanwhile (the second edge condition).
	r.now = r.now.Add(91 * time.Second)
	r.compound(0, op(OpRenew, c.id)).ok(OpRenew)
	c.on(fh, c.reclaimOp(c.next("o"), state.Both, "o")).fails(OpOpen, nfs.ErrNoGrace)
	fh3, _ := other.open(state.Both, 0, "p", "third")
	restart(9)
	third = r.client40("z", 1)
	third.on(fh3, third.reclaimOp(third.next("o"), state.Both, "o")).fails(OpOpen, nfs.ErrNoGrace)
	c = r.client40("x", 1)
	o = c.on(fh, c.reclaimOp(c.next("o"), state.Both, "o")).ok(OpOpen).opened40()
	c.on(fh, lockReclaim(c, o.id, true)).ok(OpLock)
	// A client loses its state to somebody else while it cannot be reached, and the server
	// starts again: it is out of the list then (the first edge condition).
	r.now = r.now.Add(200 * time.Second)
	other = r.client40("y", 2)
	_, his := other.open(state.Both, 0, "o", "file")
	other.on(fh, other.lockOp(other.next("o"), his.id, 1, "l", LockWrite, 0, 1)).ok(OpLock)
	restart(10)
	c, other = r.client40("x", 1), r.client40("y", 2)
	c.on(fh, c.reclaimOp(c.next("o"), state.Both, "o")).fails(OpOpen, nfs.ErrNoGrace)
	other.on(fh, other.reclaimOp(other.next("o"), state.Both, "o")).ok(OpOpen)
}

// TestDelegation40: a client is given delegations once it has answered, and is called for
// them; RENEW tells it when it cannot be.
func TestDelegation40(t *testing.T) {
	r := newRig(t)
	back := &callee40{t: t}
	r.called40(back)
	x := r.session(2, "later")
	dir := x.handle("one")
	fh := x.file("file")
	c := r.client40("x", 1)
	if back.null != 1 || back.to != netip.MustParseAddrPort("10.0.0.1:1000") {
		t.Errorf("tried %d times, at %v", back.null, back.to)
	}
	if _, o := c.open(state.Read, 0, "o", "file"); o.deleg != DelegNone {
		t.Error("delegated before the open was confirmed")
	}
	_, o := c.open(state.Read, 0, "o", "file")
	if o.deleg != delegRead || o.recall {
		t.Fatalf("delegation %d", o.deleg)
	}
	if _, again := c.open(state.Read, 0, "o", "file"); again.deleg != DelegNone {
		t.Error("delegated twice")
	}
	c.on(fh, op(OpRead, o.delegID, uint64(0), uint32(1))).ok(OpRead)
	c.on(fh, op(OpGetAttr, BitmapOf(AttrSize))).ok(OpGetAttr)
	x.do(op(OpPutFH, fh), op(OpRead, state.Anonymous, uint64(0), uint32(1))).ok(OpPutFH).ok(OpRead)
	// Wanted.
	x.do(op(OpPutFH, dir), openOp(state.Write, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrJukebox)
	if len(back.recall) != 1 || back.recall[0].id != o.delegID || !bytes.Equal(back.recall[0].fh, fh) {
		t.Fatalf("recalled: %v", back.recall)
	}
	// What it has opened by itself it says, and then gives it back.
	claim := op(OpOpen, c.next("o"), uint32(state.Read), uint32(0), c.id, "o", uint32(OpenNoCreate),
		uint32(claimDelegCur), o.delegID, "file")
	if got := c.on(dir, claim).ok(OpOpen).opened40(); got.confirm || got.deleg != DelegNone {
		t.Errorf("%+v", got)
	}
	c.on(fh, op(OpDelegReturn, o.delegID)).ok(OpDelegReturn).end()
	c.on(fh, op(OpDelegReturn, o.delegID)).fails(OpDelegReturn, nfs.ErrBadStateID)
	claim = op(OpOpen, c.next("o"), uint32(state.Read), uint32(0), c.id, "o", uint32(OpenNoCreate),
		uint32(claimDelegCur), o.delegID, "file")
	c.on(dir, claim).fails(OpOpen, nfs.ErrBadStateID)
	c.seqs["o"]--
	his, _, _ := x.do(op(OpPutFH, dir), openOp(state.Write, 0, "o", "file")).ok(OpPutFH).ok(OpOpen).opened()
	x.do(op(OpPutFH, fh), op(OpClose, uint32(0), his)).ok(OpPutFH).ok(OpClose)
	if _, o := c.open(state.Read, 0, "o", "file"); o.deleg != DelegNone {
		t.Error("delegated again at once")
	}
	// Not for writing.
	if _, o := c.open(state.Both, 0, "o", "file"); o.deleg != DelegNone {
		t.Errorf("delegation %d", o.deleg)
	}
	// A client that does not answer loses it, and hears before that it cannot be called.
	fh = x.file("second")
	r.compound(0, op(OpRenew, c.id)).ok(OpRenew)
	_, o = c.open(state.Read, 0, "o", "second")
	if o.deleg != delegRead {
		t.Fatal("not delegated")
	}
	back.silent = true
	x.do(op(OpPutFH, dir), openOp(state.Write, 0, "o", "second")).ok(OpPutFH).fails(OpOpen, nfs.ErrJukebox)
	r.compound(0, op(OpRenew, c.id)).fails(OpRenew, nfs.ErrCBPathDown)
	for range 4 {
		r.now = r.now.Add(30 * time.Second)
		c.on(fh, op(OpRead, o.id, uint64(0), uint32(1))).ok(OpRead)
		x.do(op(OpPutRootFH)).ok(OpPutRootFH)
	}
	x.do(op(OpPutFH, dir), openOp(state.Write, 0, "o", "second")).ok(OpPutFH).ok(OpOpen)
	if n := r.s.state.Delegations(); n.Revoked != 1 || n.Now != 0 {
		t.Errorf("%+v", n)
	}
	c.on(fh, op(OpRead, o.delegID, uint64(0), uint32(1))).fails(OpRead, nfs.ErrBadStateID)
	r.compound(0, op(OpRenew, c.id)).ok(OpRenew) // it has none now
	x.file("third")
	if _, o := c.open(state.Read, 0, "o", "third"); o.deleg != DelegNone {
		t.Error("delegated to a client that does not answer")
	}
	// It is tried again, but not all the time; at once when it says where it is.
	back.silent = false
	n := back.null
	r.compound(0, op(OpRenew, c.id), op(OpRenew, c.id)).ok(OpRenew).ok(OpRenew)
	r.now = r.now.Add(46 * time.Second)
	r.compound(0, op(OpRenew, c.id)).ok(OpRenew)
	if back.null != n+1 {
		t.Errorf("tried %d times", back.null-n)
	}
	back.silent = true
	id, confirm := r.setClient("x", 1)
	r.compound(0, confirmOp(id, confirm)).ok(OpSetClientIDConfirm)
	back.silent = false
	id, confirm = r.setClient("x", 1)
	r.compound(0, confirmOp(id, confirm)).ok(OpSetClientIDConfirm)
	if _, o := c.open(state.Read, 0, "o", "third"); o.deleg != delegRead {
		t.Error("not delegated to a client that answers again")
	}
}

// TestCallbackAddr: nobody is called but a client itself.
func TestCallbackAddr(t *testing.T) {
	r := newRig(t)
	for _, k := range []struct{ peer, netid, addr, want string }{
		{"10.0.0.1:700", "tcp", "10.0.0.1.3.232", "10.0.0.1:1000"},
		{"10.0.0.1:700", "rdma", "10.0.0.1.3.232", "10.0.0.1:1000"},
		{"[::ffff:10.0.0.1]:700", "tcp", "10.0.0.1.3.232", "10.0.0.1:1000"},
		{"10.0.0.1:700", "tcp", "10.0.0.2.3.232", ""},
		{"10.0.0.1:700", "tcp", "127.0.0.1.3.232", ""},
		{"10.0.0.1:700", "udp", "10.0.0.1.3.232", ""},
		{"10.0.0.1:700", "tcp", "10.0.0.1.0.0", ""},
		{"10.0.0.1:700", "tcp", "10.0.0.1.256.1", ""},
		{"10.0.0.1:700", "tcp", "10.0.0.1", ""},
		{"10.0.0.1:700", "tcp", "", ""},
		{"10.0.0.1:700", "tcp", "...", ""},
		{"10.0.0.1:700", "tcp", "10.0.0.1.3.-1", ""},
		{"10.0.0.1:700", "", "0.0.0.0.0.0", ""},
		{"[2001:db8::1]:700", "tcp6", "2001:db8::1.8.1", "[2001:db8::1]:2049"},
		{"[2001:db8::1]:700", "rdma", "2001:db8::1.8.1", "[2001:db8::1]:2049"},
		{"[2001:db8::1]:700", "rdma6", "2001:db8::1.8.1", "[2001:db8::1]:2049"},
		{"[2001:db8::1]:700", "tcp", "2001:db8::1.8.1", ""},
		{"[fe80::1%eth0]:700", "tcp6", "fe80::1.8.1", "[fe80::1%eth0]:2049"},
		{"[fe80::1%eth0]:700", "tcp6", "fe80::1%eth1.8.1", ""},
	} {
		back := &callee40{t: t}
		r.called40(back)
		r.peer = k.peer
		p := r.compound(0, setClientOp("x", 1, k.netid, k.addr)).ok(OpSetClientID)
		id, confirm := p.Uint64(), decodeVerifier(p.Decoder)
		r.compound(0, confirmOp(id, confirm)).ok(OpSetClientIDConfirm)
		got := ""
		if back.to.IsValid() {
			got = back.to.String()
		}
		if got != k.want {
			t.Errorf("%s %s of %s: %q instead of %q", k.netid, k.addr, k.peer, got, k.want)
		}
		r.s.state.Evict(id)
	}
}

// TestOnce: a call of version 4.0 that is sent again is executed again only where that
// does no harm.
func TestOnce(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	fh, id := c.make("o", "file")
	dir := r.root()
	put := op(OpPutFH, dir)
	read := op(OpRead, id, uint64(0), uint32(9))
	harmless := []args{
		put, op(OpSaveFH), op(OpRestoreFH), op(OpLookup, "file"), op(OpGetFH), op(OpAccess, uint32(3)),
		op(OpGetAttr, BitmapOf(AttrSize)), read,
		op(OpWrite, id, uint64(0), uint32(2), "data"), op(OpCommit, uint64(0), uint32(0)),
		op(OpVerify, attrs(BitmapOf(AttrSize), uint64(4))), op(OpLookupP),
		op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), BitmapOf(AttrType)), op(OpSecInfo, "file"),
		op(OpRenew, c.id), op(OpPutPubFH), op(OpPutRootFH), op(OpReadLink),
	}
	for _, k := range []struct {
		name  string
		minor uint32
		ops   []args
		want  bool
	}{
		{"harmless", 0, harmless, false},
		{"and a REMOVE", 0, append(harmless[:len(harmless):len(harmless)], op(OpRemove, "file")), true},
		{"CREATE", 0, []args{put, op(OpCreate, uint32(2), "d", attrs(Bitmap{}))}, true},
		{"SETCLIENTID", 0, []args{setClientOp("x", 1, "", "")}, true},
		{"OPEN", 0, []args{put, c.openOp(1, 1, 0, "o", "file")}, true},
		{"in a session", 1, []args{put, op(OpRemove, "file")}, false},
		{"cut short", 0, []args{op(OpPutFH, uint32(100))}, false},
		{"illegal", 0, []args{op(7777)}, true},
	} {
		var e xdr.Encoder
		encodeCompound(&e, "tag", k.minor, k.ops...)
		if got := Once(xdr.NewDecoder(e.B)); got != k.want {
			t.Errorf("%s: %v", k.name, got)
		}
	}
	// On the wire: the same transaction, the same reply, by another connection too.
	var e xdr.Encoder
	encodeCompound(&e, "tag", 0, put, op(OpCreate, uint32(2), "d", attrs(Bitmap{})), put, op(OpRename, "x", "y"))
	d, _ := r.send(e.B)
	first := bytes.Clone(r.raw)
	if st := nfs.Status(d.Uint32()); st != nfs.ErrNoFileHandle {
		t.Fatal(st)
	}
	r.xid--
	r.peer, r.conn.Conn = "10.0.0.1:999", 1
	r.send(e.B)
	if !bytes.Equal(first, r.raw) {
		t.Errorf("sent again:\n% x\n% x", first, r.raw)
	}
	r.parse(r.send(e.B)).ok(OpPutFH).fails(OpCreate, nfs.ErrExist)
	_ = fh
}
