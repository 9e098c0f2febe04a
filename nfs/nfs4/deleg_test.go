package nfs4

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// callee is the client's end of a backchannel: it reads what it is sent as the RFC says,
// and answers by answer, or not at all.
type callee struct {
	t      testing.TB
	mu     sync.Mutex
	gone   bool
	seqs   map[uint32]uint32 // by slot
	null   int               // callbacks that ask for nothing
	recall []recalled
	calls  []*rpc.BackwardCall // not answered
	// answer decides about a callback; nil means yes to all.
	answer func(k *callback) verdict
}

type recalled struct {
	id state.Stateid
	fh []byte
}

// callback is a CB_COMPOUND as it arrived.
type callback struct {
	session   state.SessionID
	seq, slot uint32
	refers    []uint32 // sequence and slot, in pairs
	op        uint32   // beside CB_SEQUENCE; 0: none
	recall    *recalled
	offload   *offloaded
	getattr   []byte // the handle of a CB_GETATTR
	asked     Bitmap // what it asks for
	notify    *lockNotified
	any       *anyRecalled
}

type verdict struct {
	silent   bool
	err      error
	sequence nfs.Status // of CB_SEQUENCE
	recall   nfs.Status // of the other operation, whatever it is
	result   args       // behind it
	illegal  bool       // the client does not know it
	noOp     bool       // a reply without operations
}

func newCallee(t testing.TB) *callee { return &callee{t: t, seqs: make(map[uint32]uint32)} }

func (c *callee) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone
}

// end loses the connection, with what was not answered.
func (c *callee) end() {
	c.mu.Lock()
	c.gone = true
	calls := c.calls
	c.calls = nil
	c.mu.Unlock()
	for _, b := range calls {
		b.Done(nil, rpc.ErrClosed)
	}
}

func (c *callee) Call(b *rpc.BackwardCall) {
	if !c.Connected() {
		b.Done(nil, rpc.ErrClosed)
		return
	}
	if b.Prog != 0x40000000 || b.Vers != 1 || b.Proc != 1 || b.Timeout <= 0 {
		c.t.Errorf("call of %x %d %d, %v", b.Prog, b.Vers, b.Proc, b.Timeout)
	}
	k := c.parse(b.Args)
	var v verdict
	if c.answer != nil {
		v = c.answer(k)
	}
	c.mu.Lock()
	if v.silent && c.gone {
		c.mu.Unlock()
		b.Done(nil, rpc.ErrClosed)
		return
	}
	if v.silent {
		c.calls = append(c.calls, b)
		c.mu.Unlock()
		return
	}
	if v.err == nil && v.sequence == nfs.OK && !v.noOp {
		if k.seq != c.seqs[k.slot]+1 {
			c.t.Errorf("sequence %d in slot %d after %d", k.seq, k.slot, c.seqs[k.slot])
		}
		c.seqs[k.slot] = k.seq
		switch {
		case k.op == 0:
			c.null++
		case k.recall != nil:
			c.recall = append(c.recall, *k.recall)
		}
	}
	c.mu.Unlock()
	if v.err != nil {
		b.Done(nil, v.err)
		return
	}
	d := xdr.NewDecoder(k.reply(v))
	b.Done(&d, nil)
}

func (c *callee) parse(args []byte) *callback {
	d := xdr.NewDecoder(args)
	k := new(callback)
	d.Opaque(100)
	minor, ident, n := d.Uint32(), d.Uint32(), d.Uint32()
	if op := d.Uint32(); op != opCBSequence || ident != 0 || minor != 1 && minor != 2 {
		c.t.Errorf("operation %d, ident %d, minor version %d", op, ident, minor)
	}
	k.session = DecodeSessionID(&d)
	k.seq, k.slot = d.Uint32(), d.Uint32()
	if highest := d.Uint32(); highest < k.slot {
		c.t.Errorf("slot %d, highest %d", k.slot, highest)
	}
	d.Bool()
	for range d.Uint32() {
		DecodeSessionID(&d)
		for range d.Uint32() {
			k.refers = append(k.refers, d.Uint32(), d.Uint32())
		}
	}
	if n == 2 {
		switch k.op = d.Uint32(); k.op {
		case opCBRecall:
			k.recall = &recalled{id: DecodeStateid(&d)}
			d.Bool()
			k.recall.fh = bytes.Clone(d.Opaque(FHMax))
		case opCBRecallAny:
			k.any = &anyRecalled{keep: d.Uint32()}
			k.any.kinds, _ = DecodeBitmap(&d)
		case opCBGetattr:
			k.getattr = bytes.Clone(d.Opaque(FHMax))
			k.asked, _ = DecodeBitmap(&d)
			if k.asked.without(delegTimes) != BitmapOf(AttrChange, AttrSize) {
				c.t.Errorf("asked for attributes %x", k.asked)
			}
		case opCBNotifyLock:
			k.notify = &lockNotified{fh: bytes.Clone(d.Opaque(FHMax)), client: d.Uint64(), owner: d.String(OwnerMax)}
		case opCBOffload:
			k.offload = parseOffload(c.t, &d)
		default:
			c.t.Errorf("operation %d", k.op)
		}
	}
	if d.Err() != nil || d.Remaining() > 0 || n > 2 {
		c.t.Errorf("%d operations, %v, %d bytes left", n, d.Err(), d.Remaining())
	}
	return k
}

func (k *callback) reply(v verdict) []byte {
	var e xdr.Encoder
	if v.noOp {
		e.Uint32(uint32(nfs.ErrBadXDR))
		e.String("")
		e.Uint32(0)
		return e.B
	}
	e.Uint32(uint32(max(v.sequence, v.recall)))
	e.String("")
	if k.op == 0 || v.sequence != nfs.OK {
		e.Uint32(1)
	} else {
		e.Uint32(2)
	}
	e.Uint32(opCBSequence)
	e.Uint32(uint32(v.sequence))
	if v.sequence != nfs.OK {
		return e.B
	}
	e.Fixed(k.session[:])
	for _, w := range []uint32{k.seq, k.slot, 7, 7} {
		e.Uint32(w)
	}
	switch {
	case v.illegal:
		e.Uint32(opCBIllegal)
		e.Uint32(uint32(nfs.ErrOpIllegal))
	case k.op != 0:
		e.Uint32(k.op)
		e.Uint32(uint32(v.recall))
		if v.result != nil {
			v.result(&e)
		}
	}
	return e.B
}

func (c *callee) recalls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.recall)
}

// called makes a client whose session has a backchannel that was tried out.
func (r *rig) called(owner string, c *callee) *sess {
	r.t.Helper()
	r.back = c
	x := r.session(2, owner)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.null != 1 && !c.gone && c.answer == nil {
		r.t.Errorf("%d callbacks to try the backchannel", c.null)
	}
	return x
}

// flags is what SEQUENCE says now.
func (x *sess) flags() uint32 {
	x.r.t.Helper()
	x.seq++
	p := x.r.compound(x.minor, x.sequence(x.seq, 0)).ok(OpSequence)
	p.Skip(16 + 4*4)
	return p.Uint32()
}

func (x *sess) openFH(fh []byte, access uint32, owner string) *reply {
	x.r.t.Helper()
	return x.do(op(OpPutFH, fh), op(OpOpen, uint32(0), access, uint32(0), uint64(0), owner, uint32(OpenNoCreate),
		uint32(ClaimFH))).ok(OpPutFH)
}

// file makes a file that nobody has open.
func (x *sess) file(name string) []byte {
	x.r.t.Helper()
	x.r.now = x.r.now.Add(time.Minute)
	fh, id := x.make(x.handle("one"), name)
	x.do(op(OpPutFH, fh), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
	return fh
}

// TestDelegationRecalled: given by OPEN, and what each who wants the file gets until it
// is returned.
func TestDelegationRecalled(t *testing.T) {
	zero := state.Stateid{}
	size := attrs(BitmapOf(AttrSize), uint64(3))
	mode := attrs(BitmapOf(AttrMode), uint32(0o600))
	for _, c := range []struct {
		name string
		op   uint32
		do   func(dir, fh []byte) []args
		read bool // goes on beside a read delegation
	}{
		{"OPEN to read", OpOpen, func(_, fh []byte) []args { return []args{op(OpPutFH, fh), openFHOp(state.Read)} }, true},
		{"OPEN to write", OpOpen, func(_, fh []byte) []args { return []args{op(OpPutFH, fh), openFHOp(state.Write)} }, false},
		{"OPEN that truncates", OpOpen, func(dir, _ []byte) []args {
			return []args{op(OpPutFH, dir), openCreateOp(state.Read, "o", "f", CreateUnchecked,
				attrs(BitmapOf(AttrSize), uint64(0)))}
		}, false},
		{"READ", OpRead, func(_, fh []byte) []args { return []args{op(OpPutFH, fh), op(OpRead, zero, uint64(0), 10)} }, true},
		{"WRITE", OpWrite, func(_, fh []byte) []args {
			return []args{op(OpPutFH, fh), op(OpWrite, zero, uint64(0), 2, []byte("x"))}
		}, false},
		{
			"SETATTR of the size", OpSetAttr,
			func(_, fh []byte) []args { return []args{op(OpPutFH, fh), op(OpSetAttr, zero, size)} }, false,
		},
		{
			"SETATTR of the mode", OpSetAttr,
			func(_, fh []byte) []args { return []args{op(OpPutFH, fh), op(OpSetAttr, zero, mode)} }, false,
		},
		{"GETATTR of the size", OpGetAttr, func(_, fh []byte) []args {
			return []args{
				op(OpPutFH, fh),
				op(OpGetAttr, BitmapOf(AttrSize)),
			}
		}, true},
		{"VERIFY", OpVerify, func(_, fh []byte) []args {
			return []args{op(OpPutFH, fh), op(OpVerify, attrs(BitmapOf(AttrSize), uint64(0)))}
		}, true},
		{"ALLOCATE", OpAllocate, func(_,
			fh []byte,
		) []args {
			return []args{op(OpPutFH, fh), op(OpAllocate, zero, uint64(0), uint64(10))}
		}, false},
		{"SETXATTR", OpSetXattr, func(_,
			fh []byte,
		) []args {
			return []args{op(OpPutFH, fh), op(OpSetXattr, uint32(0), "x", "value")}
		}, false},
		{"REMOVE", OpRemove, func(dir, _ []byte) []args { return []args{op(OpPutFH, dir), op(OpRemove, "f")} }, false},
		{"RENAME away", OpRename, func(dir, _ []byte) []args {
			return []args{op(OpPutFH, dir), op(OpSaveFH), op(OpRename, "f", "g")}
		}, false},
		{"RENAME over", OpRename, func(dir, _ []byte) []args {
			return []args{op(OpPutFH, dir), op(OpSaveFH), op(OpRename, "other", "f")}
		}, false},
		{"LINK", OpLink, func(dir, fh []byte) []args {
			return []args{op(OpPutFH, fh), op(OpSaveFH), op(OpPutFH, dir), op(OpLink, "g")}
		}, false},
	} {
		for _, access := range []uint32{state.Read, state.Both} {
			t.Run(fmt.Sprint(c.name, " ", access), func(t *testing.T) {
				r := newRig(t)
				ca := newCallee(t)
				a := r.called("a", ca)
				r.back = nil
				b := r.session(2, "b")
				dir := b.handle("one")
				fh := b.file("f")
				b.file("other")
				p := a.openFH(fh, access, "o").ok(OpOpen)
				open, _, _ := p.opened()
				want := uint32(delegRead)
				if access == state.Both {
					want = delegWrite
				}
				if p.delegKind != want || p.recall || p.deleg == open {
					t.Fatalf("delegation %d %v", p.delegKind, p.deleg)
				}
				// The open goes, the delegation stays.
				a.do(op(OpPutFH, fh), op(OpClose, uint32(0), open)).ok(OpPutFH).ok(OpClose)
				a.do(op(OpPutFH, fh), op(OpRead, p.deleg, uint64(0), 10)).ok(OpPutFH).ok(OpRead)
				w := a.do(op(OpPutFH, fh), op(OpWrite, p.deleg, uint64(0), 2, []byte("by a"))).ok(OpPutFH)
				if access == state.Read {
					w.fails(OpWrite, nfs.ErrOpenMode)
				} else {
					w.ok(OpWrite)
				}
				last := func(p *reply) nfs.Status {
					for p.left > 1 {
						switch n := p.Uint32(); {
						case p.Uint32() != 0:
							t.Fatalf("operation %d failed", n)
						}
						p.left--
					}
					return p.next(c.op)
				}
				got := last(b.do(c.do(dir, fh)...))
				if c.read && access == state.Read {
					if (got != nfs.OK && got != nfs.ErrNotSame) || ca.recalls() != 0 {
						t.Errorf("%v, %d recalls", got, ca.recalls())
					}
					return
				}
				if got != nfs.ErrJukebox {
					t.Fatalf("%v while it is delegated", got)
				}
				if ca.recalls() != 1 || ca.recall[0].id != p.deleg || !bytes.Equal(ca.recall[0].fh, fh) {
					t.Fatalf("recalls %+v", ca.recall)
				}
				if got := last(b.do(c.do(dir, fh)...)); got != nfs.ErrJukebox || ca.recalls() != 1 {
					t.Errorf("%v, %d recalls", got, ca.recalls())
				}
				// What the client opened by itself it claims before it returns the delegation.
				a.do(op(OpPutFH, fh), op(OpOpen, uint32(0), uint32(state.Read), uint32(0), uint64(0), "o", uint32(OpenNoCreate),
					uint32(claimDelegCurFH), p.deleg)).ok(OpPutFH).ok(OpOpen).opened()
				a.do(op(OpPutFH, dir), op(OpOpen, uint32(0), uint32(state.Read), uint32(0), uint64(0), "o2", uint32(OpenNoCreate),
					uint32(claimDelegCur), p.deleg, "f")).ok(OpPutFH).ok(OpOpen).opened()
				a.do(op(OpPutFH, fh), op(OpDelegReturn, p.deleg)).ok(OpPutFH).ok(OpDelegReturn).end()
				a.do(op(OpPutFH, fh), op(OpOpen, uint32(0), uint32(state.Read), uint32(0), uint64(0), "o", uint32(OpenNoCreate),
					uint32(claimDelegCurFH), p.deleg)).ok(OpPutFH).fails(OpOpen, nfs.ErrBadStateID)
				if got := last(b.do(c.do(dir, fh)...)); got != nfs.OK && got != nfs.ErrNotSame {
					t.Errorf("%v after it was returned", got)
				}
				if n := r.s.State().Delegations(); n.Revoked != 0 || n.Recalls != 1 {
					t.Errorf("%+v", n)
				}
			})
		}
	}
}

func openFHOp(access uint32) args {
	return op(OpOpen, uint32(0), access, uint32(0), uint64(0), "q", uint32(OpenNoCreate), uint32(ClaimFH))
}

// TestReturnedInTime: who wants a file that is returned at once hears nothing of it.
func TestReturnedInTime(t *testing.T) {
	r := newRig(t)
	ca := newCallee(t)
	a := r.called("a", ca)
	r.back = nil
	b := r.session(2, "b")
	fh := b.file("f")
	p := a.openFH(fh, state.Both, "o").ok(OpOpen)
	open, _, _ := p.opened()
	a.do(op(OpPutFH, fh), op(OpClose, uint32(0), open)).ok(OpPutFH).ok(OpClose)
	f := lock.File{Export: 1}
	_, h, _ := r.codec.Parse(fh)
	f.Handle = h
	ca.answer = func(k *callback) verdict {
		c, _ := r.s.State().Client(a.client)
		time.AfterFunc(time.Millisecond, func() { c.ReturnDelegation(k.recall.id, f) })
		return verdict{}
	}
	// A busy machine may take longer than the server waits.
	for try := 0; ; try++ {
		q := b.openFH(fh, state.Write, "q")
		if st := q.next(OpOpen); st == nfs.OK {
			q.opened()
			break
		} else if st != nfs.ErrJukebox || try > 100 {
			t.Fatal(st)
		}
	}
	if _, ok := r.s.BeginChange(f); ok {
		r.s.EndChange(f)
	}
	if n := r.s.State().Delegations(); n.Now != 0 {
		t.Errorf("%+v", n)
	}
}

// TestWantedDelegations: what the flags of an OPEN get.
func TestWantedDelegations(t *testing.T) {
	for _, c := range []struct {
		want, access uint32
		back         bool
		kind, why    uint32
	}{
		{0, state.Read, true, delegRead, 0},
		{0, state.Write, true, DelegNone, 0},
		{wantAny, state.Write, true, delegWrite, 0},
		{0, state.Both, true, delegWrite, 0},
		{0, state.Read, false, DelegNone, 0},
		{wantRead, state.Read, true, delegRead, 0},
		{wantRead, state.Both, true, DelegNoneExt, 2},
		{wantWrite, state.Read, true, delegWrite, 0},
		{wantAny, state.Read, true, delegRead, 0},
		{wantAny | wantWhenAvail, state.Read, true, delegRead, 0},
		{wantAny, state.Read, false, DelegNoneExt, 2},
		{WantNoDeleg, state.Read, true, DelegNoneExt, whyNotWanted},
		{wantCancel, state.Read, true, DelegNoneExt, whyWantCancelled},
	} {
		r := newRig(t)
		fh := r.session(2, "maker").file("f")
		if c.back {
			r.back = newCallee(t)
		}
		x := r.session(2, "a")
		p := x.openFH(fh, c.access|c.want, "o").ok(OpOpen)
		p.opened()
		if p.delegKind != c.kind || p.why != c.why {
			t.Errorf("want %x, access %d, backchannel %v: %d, %d", c.want, c.access, c.back, p.delegKind, p.why)
		}
		p.end()
		q := x.openFH(fh, c.access, "o").ok(OpOpen)
		q.opened()
		if (c.kind == delegRead || c.kind == delegWrite) && q.delegKind != DelegNone {
			t.Errorf("a second delegation of the same file, %d", q.delegKind)
		}
	}
}

func (r *rig) file(fh []byte) lock.File {
	r.t.Helper()
	id, h, err := r.codec.Parse(fh)
	if err != nil {
		r.t.Fatal(err)
	}
	return lock.File{Export: id, Handle: h}
}
