package nfs4

import (
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

func (x *sess) bind(dir uint32) (got uint32, st nfs.Status) {
	x.r.t.Helper()
	p := x.r.compound(x.minor, op(OpBindConnToSession, x.id, dir, false))
	if st := p.next(OpBindConnToSession); st != nfs.OK {
		return 0, st
	}
	if id := DecodeSessionID(p.Decoder); id != x.id {
		x.r.t.Errorf("session %x", id)
	}
	got = p.Uint32()
	if p.Bool() {
		x.r.t.Error("the connection is to change to RDMA")
	}
	p.end()
	return got, nfs.OK
}

func TestBindDirections(t *testing.T) {
	for _, c := range []struct {
		dir  uint32
		back bool
		got  uint32
		want nfs.Status
	}{
		{bindFore, true, 1, nfs.OK},
		{bindBack, true, 2, nfs.OK},
		{bindForeOrBoth, true, 3, nfs.OK},
		{bindBackOrBoth, true, 3, nfs.OK},
		{bindFore, false, 1, nfs.OK},
		{bindBack, false, 0, nfs.ErrInval},
		{bindForeOrBoth, false, 1, nfs.OK},
		{bindBackOrBoth, false, 0, nfs.ErrInval},
		{0, true, 0, nfs.ErrInval},
		{4, true, 0, nfs.ErrInval},
	} {
		r := newRig(t)
		x := r.session(1, "o")
		cl := newCallee(t)
		if c.back {
			r.back = cl
		}
		got, st := x.bind(c.dir)
		if got != c.got || st != c.want {
			t.Errorf("direction %d, %v: %d %v", c.dir, c.back, got, st)
		}
		if want := c.got & 2 / 2; cl.null != int(want) {
			t.Errorf("direction %d: %d callbacks", c.dir, cl.null)
		}
		if f := x.flags(); f != 0 {
			t.Errorf("flags %x", f)
		}
	}
}

// TestPathDown: a client hears that it cannot be called, binds another connection, and
// what was on its way is sent again as it was.
func TestPathDown(t *testing.T) {
	r := newRig(t)
	maker := r.session(2, "maker")
	fh, other := maker.file("f"), maker.file("g")
	ca := newCallee(t)
	a := r.called("a", ca)
	p := a.openFH(fh, state.Read, "o").ok(OpOpen)
	p.opened()
	if f := a.flags(); f != 0 || p.delegKind == DelegNone {
		t.Fatalf("flags %x, delegation %d", f, p.delegKind)
	}
	f := r.file(fh)
	ca.answer = func(*callback) verdict { return verdict{silent: true} }
	if r.s.state.Free(r.now, f, nil, true) {
		t.Fatal("not delegated")
	}
	if len(ca.calls) != 1 {
		t.Fatalf("%d calls", len(ca.calls))
	}
	sent := ca.parse(ca.calls[0].Args)
	if sent.recall == nil || len(sent.refers) != 2 || sent.refers[1] != 0 || sent.refers[0] >= a.seq {
		t.Errorf("%+v", sent)
	}
	ca.end()
	if f := a.flags(); f != statusPathDown|statusSessionPathDown {
		t.Errorf("flags %x", f)
	}
	if n := r.s.Faults()["nfs4_callbacks_lost"]; n != 1 {
		t.Errorf("%d lost", n)
	}
	// Nothing can be given now, and nothing be asked for.
	q := a.openFH(other, state.Read, "o").ok(OpOpen)
	q.opened()
	if q.delegKind != DelegNone {
		t.Errorf("delegation %d without a backchannel", q.delegKind)
	}
	r.now = r.now.Add(2 * time.Second)
	r.s.state.Free(r.now, f, nil, true)
	// Another session of the same client does not help this one, but the client.
	again := newCallee(t)
	r.back = again
	seqs := []uint32{}
	again.answer = func(k *callback) verdict {
		seqs = append(seqs, k.seq, k.slot)
		if k.recall != nil && k.recall.id != p.deleg {
			t.Errorf("%+v", k)
		}
		return verdict{}
	}
	again.seqs[sent.slot] = sent.seq - 1
	if got, st := a.bind(bindForeOrBoth); got != 3 || st != nfs.OK {
		t.Fatal(got, st)
	}
	// The recall first, and again the question whether the client answers.
	if len(seqs) != 4 || seqs[0] != sent.seq || seqs[1] != sent.slot || again.recalls() != 1 || again.null != 1 {
		t.Errorf("%v, %d recalls", seqs, again.recalls())
	}
	if f := a.flags(); f != 0 {
		t.Errorf("flags %x", f)
	}
	if n := r.s.state.Free(r.now, f, nil, true); n {
		t.Error("still delegated")
	}
	a.do(op(OpPutFH, fh), op(OpDelegReturn, p.deleg)).ok(OpPutFH).ok(OpDelegReturn)
	if !r.s.state.Free(r.now, f, nil, true) {
		t.Error("returned")
	}
}

// TestAnswers: what a client can say to a callback, and what follows.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		v     verdict
		told  bool // not asked again
		flags uint32
	}{
		{"yes", verdict{}, true, 0},
		{"come again", verdict{sequence: nfs.ErrJukebox}, false, 0},
		{"recall later", verdict{recall: nfs.ErrJukebox}, false, 0},
		{"no such delegation yet", verdict{recall: nfs.ErrBadStateID}, false, 0},
		{"no such handle", verdict{recall: nfs.ErrBadHandle}, false, 0},
		{"something else", verdict{recall: nfs.ErrServerFault}, true, 0},
		{"executed before", verdict{sequence: nfs.ErrRetryUncachedRep}, true, 0},
		{"no such session", verdict{sequence: nfs.ErrBadSession}, false, statusBackFault},
		{"no such program", verdict{err: &rpc.AcceptError{Stat: rpc.ProgUnavail}}, false, statusBackFault},
		{"credential refused", verdict{err: &rpc.DeniedError{Auth: rpc.AuthTooWeak}}, false, statusBackFault},
		{"nothing in the reply", verdict{noOp: true}, false, statusBackFault},
		{"another sequence", verdict{sequence: nfs.ErrSeqMisordered}, false, 0},
		{"no such slot", verdict{sequence: nfs.ErrBadSlot}, false, 0},
		{"no reply", verdict{err: rpc.ErrTimeout}, false, statusPathDown | statusSessionPathDown},
		{"garbage", verdict{err: rpc.ErrReply}, false, statusPathDown | statusSessionPathDown},
		{"too many calls", verdict{err: rpc.ErrTooMany}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			fh := r.session(2, "maker").file("f")
			ca := newCallee(t)
			a := r.called("a", ca)
			p := a.openFH(fh, state.Read, "o").ok(OpOpen)
			p.opened()
			asked := 0
			ca.answer = func(k *callback) verdict {
				if k.recall != nil {
					asked++
				}
				return c.v
			}
			f := r.file(fh)
			for range 2 {
				if r.s.state.Free(r.now, f, nil, true) {
					t.Fatal("not delegated")
				}
				r.now = r.now.Add(1500 * time.Millisecond)
			}
			want := 2
			if c.told || c.flags != 0 {
				want = 1 // or there is nothing to ask it by
			}
			if c.flags&statusBackFault != 0 {
				want = 2 // who knows
			}
			if asked != want {
				t.Errorf("asked %d times instead of %d", asked, want)
			}
			ca.answer = func(*callback) verdict { return verdict{silent: true} }
			if f := a.flags(); f != c.flags {
				t.Errorf("flags %x", f)
			}
		})
	}
}

// TestRevokedOnTheWire: a client that answers and does nothing.
func TestRevokedOnTheWire(t *testing.T) {
	r := newRig(t)
	a := r.called("a", newCallee(t))
	r.back = nil
	b := r.session(2, "b")
	fh := b.file("f")
	p := a.openFH(fh, state.Both, "o").ok(OpOpen)
	open, _, _ := p.opened()
	a.do(op(OpPutFH, fh), op(OpClose, uint32(0), open)).ok(OpPutFH).ok(OpClose)
	b.openFH(fh, state.Read, "o").fails(OpOpen, nfs.ErrJukebox)
	for range 4 {
		r.now = r.now.Add(30 * time.Second)
		if f := a.flags(); f != 0 {
			t.Errorf("flags %x", f)
		}
	}
	b.openFH(fh, state.Read, "o").ok(OpOpen).opened()
	if f := a.flags(); f != statusRevoked {
		t.Errorf("flags %x", f)
	}
	a.do(op(OpPutFH, fh), op(OpWrite, p.deleg, uint64(0), 2, []byte("late"))).ok(OpPutFH).fails(OpWrite,
		nfs.ErrDelegRevoked)
	a.do(op(OpPutFH, fh), op(OpDelegReturn, p.deleg)).ok(OpPutFH).fails(OpDelegReturn, nfs.ErrDelegRevoked)
	q := a.do(op(OpTestStateID, 1, p.deleg)).ok(OpTestStateID)
	if n, st := q.Uint32(), nfs.Status(q.Uint32()); n != 1 || st != nfs.ErrDelegRevoked {
		t.Error(n, st)
	}
	a.do(op(OpFreeStateID, p.deleg)).ok(OpFreeStateID).end()
	if f := a.flags(); f != 0 {
		t.Errorf("flags %x", f)
	}
	if n := r.s.Faults()["nfs4_delegations_revoked"]; n != 1 {
		t.Errorf("%d counted", n)
	}
}

// TestCallbackCredential: who callbacks come from is for the client to say, also later.
func TestCallbackCredential(t *testing.T) {
	sys := part(uint32(1), uint32(0), "cb", uint32(5), uint32(6), uint32(1), uint32(7))
	gss := part(uint32(6), uint32(1), "a", "b")
	for _, c := range []struct {
		name string
		list args
		uid  uint32
		sys  bool
		ok   bool
	}{
		{"none", part(uint32(1), uint32(0)), 0, false, true},
		{"nothing", part(uint32(0)), 0, false, true},
		{"a user", part(uint32(1), sys), 5, true, true},
		{"none before a user", part(uint32(2), uint32(0), sys), 0, false, true},
		{"what there is not, and a user", part(uint32(2), gss, sys), 5, true, true},
		{"what there is not", part(uint32(1), gss), 0, false, false},
	} {
		r := newRig(t)
		p := r.compound(1, op(OpExchangeID, [8]byte{1}, "o", uint32(0), uint32(protectNone), uint32(0))).ok(OpExchangeID)
		id, seq := p.Uint64(), p.Uint32()
		cl := newCallee(t)
		r.back = cl
		fore := channelArgs(1<<20, 1<<20, 2048, 16, 8)
		q := r.compound(1, op(OpCreateSession, id, seq, uint32(2), fore, channelArgs(4096, 4096, 0, 2, 16),
			uint32(0x40000000), c.list)).ok(OpCreateSession)
		x := &sess{r: r, minor: 1, client: id, id: DecodeSessionID(q.Decoder)}
		q.Uint32()
		if flags := q.Uint32(); (flags == sessionBack) != c.ok {
			t.Errorf("%s: flags %x", c.name, flags)
		}
		cl.answer = func(*callback) verdict { return verdict{silent: true} }
		x.flags()
		if !c.ok {
			if len(cl.calls) != 0 {
				t.Errorf("%s: called all the same", c.name)
			}
			continue
		}
		if len(cl.calls) != 1 {
			t.Fatalf("%s: %d calls", c.name, len(cl.calls))
		}
		checkCred(t, c.name, cl.calls[0].Cred, c.sys, c.uid)
		cl.end()
		r.back = newCallee(t)
		if st := x.do(op(OpBackchannelCtl, uint32(0x40000000), uint32(1), gss)).next(OpBackchannelCtl); st != nfs.ErrInval {
			t.Error(st)
		}
		x.do(op(OpBackchannelCtl, uint32(0x40000000), uint32(1), uint32(1), uint32(0), "later", uint32(9), uint32(9),
			uint32(0))).ok(OpBackchannelCtl)
		next := newCallee(t)
		next.answer = cl.answer
		r.back = next
		if _, st := x.bind(bindBack); st != nfs.OK {
			t.Fatal(st)
		}
		checkCred(t, "later", next.calls[0].Cred, true, 9)
	}
}

func checkCred(t *testing.T, what string, c *rpc.Cred, sys bool, uid uint32) {
	t.Helper()
	if (c != nil) != sys || sys && (c.Flavor != rpc.AuthSys || c.UID != uid) {
		t.Errorf("%s: %+v", what, c)
	}
}

// TestNoUseBackchannel: one by which nothing could be recalled is too small, whether or not it is
// wanted at once. One without slots is none.
func TestNoUseBackchannel(t *testing.T) {
	small := newRig(t)
	id, seq, _ := small.exchange("small", 1)
	for _, back := range []args{
		channelArgs(10, 4096, 0, 2, 16), channelArgs(511, 4096, 0, 2, 16), channelArgs(4096, 10, 0, 2, 16),
		channelArgs(4096, 4096, 0, 1, 16),
	} {
		for _, flags := range []uint32{0, sessionBack} {
			small.compound(1, op(OpCreateSession, id, seq, flags, channelArgs(4096, 4096, 0, 8, 8), back, uint32(0x40000000),
				uint32(0))).
				fails(OpCreateSession, nfs.ErrTooSmall)
		}
	}
	small.compound(1, op(OpCreateSession, id, seq, uint32(sessionBack), channelArgs(4096, 4096, 0, 8, 8),
		channelArgs(0, 0, 0, 0, 0), uint32(0x40000000), uint32(0))).
		fails(OpCreateSession, nfs.ErrTooSmall)
	for _, back := range []args{channelArgs(4096, 4096, 0, 2, 0)} {
		r := newRig(t)
		p := r.compound(1, op(OpExchangeID, [8]byte{1}, "o", uint32(0), uint32(protectNone), uint32(0))).ok(OpExchangeID)
		id, seq := p.Uint64(), p.Uint32()
		r.back = newCallee(t)
		q := r.compound(1, op(OpCreateSession, id, seq, uint32(2), channelArgs(1<<20, 1<<20, 2048, 16, 8), back,
			uint32(0x40000000), uint32(0))).ok(OpCreateSession)
		x := &sess{r: r, minor: 1, client: id, id: DecodeSessionID(q.Decoder)}
		q.Uint32()
		if flags := q.Uint32(); flags != 0 {
			t.Errorf("flags %x", flags)
		}
		if f := x.flags(); f != 0 {
			t.Errorf("status %x", f)
		}
		if got, st := x.bind(bindForeOrBoth); got != bindFore || st != nfs.OK {
			t.Error(got, st)
		}
	}
}

// FuzzCallbackReply: no reply of a client does more than it says.
func FuzzCallbackReply(f *testing.F) {
	k := &callback{seq: 1, op: opCBRecall, recall: &recalled{}}
	f.Add(k.reply(verdict{}))
	f.Add(k.reply(verdict{recall: nfs.ErrJukebox}))
	f.Add(k.reply(verdict{sequence: nfs.ErrBadSession}))
	f.Add(k.reply(verdict{noOp: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := xdr.NewDecoder(b)
		o := outcomeOf(&d, nil, opCBRecall)
		if o.received && o.slot != state.Executed || o.slot == state.Lost {
			t.Errorf("%+v", o)
		}
		if o := outcomeOf(nil, errors.New("lost"), opCBRecall); o.slot != state.Lost || o.received {
			t.Errorf("%+v", o)
		}
	})
}
