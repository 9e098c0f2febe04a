package nfs4

import (
	"bytes"
	"sync"
	"testing"

	"github.com/rstored/rstored/nfs"
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
	dir       *dirNotified
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
		case opCBNotify:
			k.dir = parseDirNotified(c.t, &d)
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
