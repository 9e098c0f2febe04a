package nfs4

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestSizes: requests and replies that are longer than the session allows.
func TestSizes(t *testing.T) {
	r := newRig(t)
	x := r.sessionOf(2, "small", channelArgs(1100, 1024, 180, 5, 2))
	x.r.t = t
	dir := x.handle("one")
	get := op(OpGetAttr, supportedBy[2].without(writeOnly))
	x.do(op(OpPutFH, dir), get).ok(OpPutFH).ok(OpGetAttr)
	x.do(op(OpPutFH, dir), get, get).ok(OpPutFH).ok(OpGetAttr)
	x.seq++
	r.compound(2, x.sequence(x.seq, 0), op(OpPutRootFH), op(OpPutRootFH), op(OpPutRootFH), op(OpPutRootFH),
		op(OpPutRootFH)).fails(OpSequence, nfs.ErrTooManyOps)
	r.compound(2, x.sequence(x.seq, 0), op(OpPutFH, dir), op(OpRemove, strings.Repeat("x", 1200))).fails(OpSequence,
		nfs.ErrReqTooBig)
	x.seq--
	// READ and READDIR make do with the room there is.
	fh, id := x.make(dir, "file")
	for i := range 3 {
		x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(i*800), uint32(0),
			bytes.Repeat([]byte{byte(i)}, 800))).ok(OpPutFH).ok(OpWrite)
	}
	p := x.do(op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(2400)))
	p.ok(OpPutFH).ok(OpRead)
	eof, data := p.Bool(), p.Opaque(2400)
	if eof || len(data) < 800 || len(r.raw) > 1024 {
		t.Errorf("%d bytes, %v, a reply of %d", len(data), eof, len(r.raw))
	}
	p.end()
	// Replies that are to be kept have less room, and a change is not made that could
	// not be told of.
	x.cache = true
	p = x.do(op(OpPutFH, dir), get)
	p.ok(OpPutFH).fails(OpGetAttr, nfs.ErrRepTooBigToCache)
	for i := range 2 {
		p = x.do(op(OpPutFH, dir), op(OpGetFH), op(OpCreate, uint32(2), "d", attrs(Bitmap{})))
		p.ok(OpPutFH).ok(OpGetFH).Opaque(FHMax)
		p.fails(OpCreate, nfs.ErrRepTooBigToCache)
		if _, st := func() ([]byte, nfs.Status) {
			x.cache = false
			defer func() { x.cache = true }()
			return x.tryHandle("one", "d")
		}(); st != nfs.ErrNoEnt {
			t.Errorf("round %d: the directory was made: %v", i, st)
		}
	}
	x.cache = false
	for i := range 30 {
		x.make(dir, strings.Repeat("n", 20)+string(rune('a'+i)))
	}
	p = x.do(op(OpPutFH, dir), op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(1<<20), BitmapOf(AttrFileID)))
	p.ok(OpPutFH).ok(OpReadDir)
	if len(r.raw) > 1024 {
		t.Errorf("READDIR of %d bytes", len(r.raw))
	}

	// Sessions that are too small to be of use.
	cid, seq, _ := r.exchange("tiny", 1)
	for _, ch := range []args{
		channelArgs(20, 4096, 0, 8, 1), channelArgs(4096, 0, 0, 8, 1),
		channelArgs(127, 4096, 0, 8, 1), channelArgs(4096, 95, 0, 8, 1), channelArgs(4096, 4096, 0, 0, 1),
		channelArgs(4096, 4096, 0, 8, 0),
	} {
		r.compound(2, op(OpCreateSession, cid, seq, uint32(0), ch, channelArgs(0, 0, 0, 0, 0), uint32(0),
			uint32(0))).fails(OpCreateSession, nfs.ErrTooSmall)
	}
	// What a client asks for beyond all measure is cut.
	p = r.compound(2, op(OpCreateSession, cid, seq, uint32(0), channelArgs(1<<31, 1<<31, 1<<31, 1<<31, 1<<31),
		channelArgs(1<<31, 1<<31, 1<<31, 1<<31, 1<<31), uint32(0), uint32(0)))
	p.ok(OpCreateSession).Skip(16 + 8 + 4)
	if got := [5]uint32{p.Uint32(), p.Uint32(), p.Uint32(), p.Uint32(), p.Uint32()}; got != [5]uint32{
		messageMax,
		messageMax, cachedMax, opsMax, slotsMax,
	} {
		t.Errorf("%v", got)
	}
}

// TestSmallSessions: a session of 512 bytes of request and 400 of response is granted, and its
// bounds hold. So is the smallest that a SEQUENCE fits into.
func TestSmallSessions(t *testing.T) {
	r := newRig(t)
	fh := r.session(2, "big").handle("one")
	x := r.sessionOf(2, "small", channelArgs(512, 400, 400, 8, 2))
	x.do(op(OpPutFH, fh), op(OpGetAttr, BitmapOf(AttrType))).ok(OpPutFH).ok(OpGetAttr)
	get := op(OpGetAttr, supportedBy[2].without(writeOnly))
	x.do(op(OpPutFH, fh), get, get).ok(OpPutFH).fails(OpGetAttr, nfs.ErrRepTooBig)
	x.cache = true
	x.do(op(OpPutFH, fh), get, get).ok(OpPutFH).fails(OpGetAttr, nfs.ErrRepTooBig)
	x.cache = false
	x.seq++
	r.compound(2, x.sequence(x.seq, 0), op(OpPutFH, fh), op(OpLookup, strings.Repeat("n", 400))).fails(OpSequence,
		nfs.ErrReqTooBig)
	id, seq, _ := r.exchange("least", 1)
	p := r.compound(2, op(OpCreateSession, id, seq, uint32(0), channelArgs(requestMin, responseMin, 0, 8, 1),
		channelArgs(0, 0, 0, 0, 0), uint32(0), uint32(0))).ok(OpCreateSession)
	least := &sess{r: r, minor: 2, client: id, id: DecodeSessionID(p.Decoder)}
	least.seq++
	if st := r.compound(2, least.sequence(1, 0)).next(OpSequence); st != nfs.OK {
		t.Errorf("SEQUENCE: %v", st)
	}
}

// TestSessionOps: the operations about clients and sessions, and their refusals.
func TestSessionOps(t *testing.T) {
	r := newRig(t)
	x := r.session(1, "one")
	y := r.session(2, "one") // of the same client
	if x.client != y.client || x.id == y.id {
		t.Fatalf("clients %x and %x", x.client, y.client)
	}
	if _, _, flags := r.exchange("one", 1); flags != exchNonPNFS|exchConfirmed {
		t.Errorf("flags %x", flags)
	}
	bind := func(id state.SessionID, dir uint32) *reply {
		return r.compound(1, op(OpBindConnToSession, id, dir, false))
	}
	p := bind(x.id, 3).ok(OpBindConnToSession)
	if id, dir, rdma := DecodeSessionID(p.Decoder), p.Uint32(), p.Bool(); id != x.id || dir != 1 || rdma {
		t.Errorf("bound %x %d %v", id, dir, rdma)
	}
	p.end()
	bind(x.id, 2).fails(OpBindConnToSession, nfs.ErrInval)
	bind(state.SessionID{1}, 1).fails(OpBindConnToSession, nfs.ErrBadSession)
	x.do(op(OpBackchannelCtl, uint32(1), uint32(1), uint32(1), uint32(0), "host", uint32(0), uint32(0), uint32(1),
		uint32(5))).ok(OpBackchannelCtl).end()
	x.do(op(OpBackchannelCtl, uint32(1), uint32(1), uint32(9))).fails(OpBackchannelCtl, nfs.ErrBadXDR)
	x.do(op(OpReclaimComplete, false)).fails(OpReclaimComplete, nfs.ErrCompleteAlready)
	x.do(op(OpReclaimComplete, true)).fails(OpReclaimComplete, nfs.ErrNoFileHandle)
	x.do(op(OpPutRootFH), op(OpReclaimComplete, true)).ok(OpPutRootFH).ok(OpReclaimComplete).end()
	for _, c := range []struct {
		a    args
		want nfs.Status
	}{
		{exchangeArgs("one", 1, 0x80000000), nfs.ErrInval},
		{exchangeArgs("one", 1, exchFenceOps), nfs.ErrInval},
		{exchangeArgs("none", 1, exchUpdate), nfs.ErrNoEnt},
		{exchangeArgs("one", 2, exchUpdate), nfs.ErrNotSame},
		{op(OpExchangeID, [8]byte{}, "x", uint32(0), uint32(protectMachCred)), nfs.ErrBadXDR},
		{protectArgs("x", 1, 0), nfs.ErrInval},
		{op(OpExchangeID, [8]byte{}, "x", uint32(0), uint32(protectSSV)), nfs.ErrEncrAlgUnsupp},
		{op(OpExchangeID, [8]byte{}, "x", uint32(0), uint32(7)), nfs.ErrBadXDR},
		{op(OpExchangeID, [8]byte{}, strings.Repeat("x", 1025), uint32(0), uint32(0), uint32(0)), nfs.ErrBadXDR},
		{op(OpExchangeID, [8]byte{}, "x", uint32(0), uint32(0), uint32(2)), nfs.ErrBadXDR},
	} {
		r.compound(1, c.a).fails(OpExchangeID, c.want)
	}
	r.compound(2, exchangeArgs("one", 1, exchFenceOps)).ok(OpExchangeID)
	// With an implementation's name, as the kernel has it.
	r.compound(1, op(OpExchangeID, [8]byte{}, "x", uint32(0), uint32(0), uint32(1), "kernel.org", "Linux 6.1", uint64(0),
		uint32(0))).ok(OpExchangeID)
	r.compound(1, op(OpDestroyClientID, x.client)).fails(OpDestroyClientID, nfs.ErrClientIDBusy)
	x.do(op(OpDestroySession, x.id)).ok(OpDestroySession).end()
	r.compound(1, x.sequence(x.seq+1, 0)).fails(OpSequence, nfs.ErrBadSession)
	y.do(op(OpDestroySession, x.id)).fails(OpDestroySession, nfs.ErrBadSession)
	r.compound(1, op(OpDestroySession, y.id)).ok(OpDestroySession).end()
	r.compound(1, op(OpDestroyClientID, x.client)).ok(OpDestroyClientID).end()
	r.compound(1, op(OpDestroyClientID, x.client)).fails(OpDestroyClientID, nfs.ErrStaleClientID)
}

// TestReclaim: after a restart a client gets back what it had, and nobody else gets
// anything before.
func TestReclaim(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	lockOp := func(id state.Stateid, reclaim bool) args {
		return op(OpLock, LockWrite, reclaim, uint64(0), uint64(10), true, uint32(0), id, uint32(0), uint64(0), "o")
	}
	reclaim := op(OpOpen, uint32(0), uint32(3), uint32(0), uint64(0), "owner", uint32(OpenNoCreate),
		uint32(ClaimPrevious), uint32(0))
	x.do(op(OpPutFH, fh), lockOp(id, false)).ok(OpPutFH).ok(OpLock)
	r.locks = lock.New(0)
	r.start(8)
	y := r.session(2, "two")
	y.do(op(OpPutFH, dir), openOp(1, 0, "o", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrGrace)
	y.do(op(OpPutFH, dir), openCreateOp(1, "o", "new", CreateUnchecked, attrs(Bitmap{}))).ok(OpPutFH).fails(OpOpen,
		nfs.ErrGrace)
	if _, st := y.tryHandle("one", "new"); st != nfs.ErrNoEnt {
		t.Errorf("it was made all the same: %v", st)
	}
	y.do(op(OpPutFH, dir), op(OpRemove, "file")).ok(OpPutFH).fails(OpRemove, nfs.ErrGrace)
	y.do(op(OpPutFH, dir), op(OpSaveFH), op(OpRename, "file", "x")).ok(OpPutFH).ok(OpSaveFH).fails(OpRename, nfs.ErrGrace)
	y.do(op(OpPutFH, fh), op(OpRead, state.Anonymous, uint64(0), uint32(1))).ok(OpPutFH).fails(OpRead, nfs.ErrGrace)
	y.do(op(OpPutFH, fh), reclaim).ok(OpPutFH).fails(OpOpen, nfs.ErrNoGrace)
	cid, seq, _ := r.exchange("one", 1)
	p := r.compound(2, op(OpCreateSession, cid, seq, uint32(0), channelArgs(4096, 4096, 512, 8, 1),
		channelArgs(0, 0, 0, 0, 0), uint32(0), uint32(0))).ok(OpCreateSession)
	x = &sess{r: r, minor: 2, client: cid, id: DecodeSessionID(p.Decoder)}
	r.uid = 0
	id, _, _ = x.do(op(OpPutFH, fh), reclaim).ok(OpPutFH).ok(OpOpen).opened()
	x.do(op(OpPutFH, fh), lockOp(id, true)).ok(OpPutFH).ok(OpLock)
	x.do(op(OpReclaimComplete, false)).ok(OpReclaimComplete)
	his, _, _ := y.do(op(OpPutFH, dir), openOp(3, 0, "o", "file")).ok(OpPutFH).ok(OpOpen).opened()
	y.do(op(OpPutFH, fh), lockOp(his, false)).ok(OpPutFH).fails2(OpLock, nfs.ErrDenied, 8+8+4+8+4+4)
}

// TestRestart: nothing of an earlier start is taken for something of this one.
func TestRestart(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir := x.handle("one")
	fh, id := x.make(dir, "file")
	r.known = nil
	r.start(8)
	r.compound(2, x.sequence(x.seq+1, 0)).fails(OpSequence, nfs.ErrBadSession)
	r.compound(2, op(OpCreateSession, x.client, uint32(2), uint32(0), channelArgs(4096, 4096, 0, 8, 1),
		channelArgs(0, 0, 0, 0, 0), uint32(0), uint32(0))).fails(OpCreateSession, nfs.ErrStaleClientID)
	y := r.session(2, "one")
	y.do(op(OpPutFH, fh), op(OpRead, id, uint64(0), uint32(1))).ok(OpPutFH).fails(OpRead, nfs.ErrBadStateID)
	y.do(op(OpPutFH, fh), op(OpOpen, uint32(0), uint32(1), uint32(0), uint64(0), "o", uint32(0), uint32(ClaimPrevious),
		uint32(0))).ok(OpPutFH).fails(OpOpen, nfs.ErrNoGrace)
	y.do(op(OpPutFH, fh), op(OpGetAttr, BitmapOf(AttrSize))).ok(OpPutFH).ok(OpGetAttr)
}

// TestPanic: a fault of ours costs a call; its slot is free for the next.
func TestPanic(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	fh, _ := x.make(x.handle("one"), "file")
	r.fs.panics = true
	x.seq++
	var e xdr.Encoder
	encodeCompound(&e, "tag", 2, x.sequence(x.seq, 0), op(OpPutFH, fh), op(OpCommit, uint64(0), uint32(0)))
	if _, st := r.send(e.B); st != rpc.SystemErr {
		t.Errorf("accept status %d", st)
	}
	p := r.parse(r.send(e.B))
	p.ok(OpSequence).Skip(36)
	p.fails(OpPutFH, nfs.ErrRetryUncachedRep)
	x.do(op(OpPutFH, fh)).ok(OpPutFH).end()
}
