package nfs4

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// offloaded is a CB_OFFLOAD.
type offloaded struct {
	fh     []byte
	id     state.Stateid
	status nfs.Status
	count  uint64
	how    uint32
	verf   [VerifierLen]byte
}

func parseOffload(t testing.TB, d *xdr.Decoder) *offloaded {
	o := &offloaded{fh: bytes.Clone(d.Opaque(FHMax)), id: DecodeStateid(d), status: nfs.Status(d.Uint32())}
	if o.status != nfs.OK {
		o.count = d.Uint64()
		return o
	}
	if n := d.Uint32(); n != 0 {
		t.Errorf("%d stateids in the result of a copy", n)
	}
	o.count, o.how, o.verf = d.Uint64(), d.Uint32(), decodeVerifier(d)
	return o
}

// offloadRig is a rig with a client that copies from one file to another.
type offloadRig struct {
	*rig
	x            *sess
	cl           *callee
	from, to     []byte
	fromID, toID state.Stateid
	data         []byte
	seen         chan *callback // CB_OFFLOADs
	verdicts     chan verdict   // for them; yes if there is none
	steps        chan struct{}  // if not nil, a step of the store waits for one
	begun        chan struct{}  // and says so before
}

const offloadSize = 3*copyStep + 12345

// newOffloadRig makes the files, the target in an export.
func newOffloadRig(t *testing.T, export ...string) *offloadRig {
	r := &offloadRig{rig: newRig(t), cl: newCallee(t), seen: make(chan *callback, 64), verdicts: make(chan verdict, 64)}
	t.Cleanup(r.s.Close)
	r.cl.answer = r.answer
	r.fs.whole = true
	r.x = r.called("copier", r.cl)
	rnd := rand.NewChaCha8([32]byte{1})
	r.data = make([]byte, offloadSize)
	_, _ = rnd.Read(r.data)
	r.from, r.fromID = r.x.make(r.x.handle("one"), "from")
	p := r.x.do(op(OpPutFH, r.x.handle(export...)), openCreateOp(state.Both|WantNoDeleg, "owner", "to", CreateUnchecked,
		attrs(Bitmap{})), op(OpGetFH))
	r.toID, _, _ = p.ok(OpPutFH).ok(OpOpen).opened()
	r.to = bytes.Clone(p.ok(OpGetFH).Opaque(FHMax))
	_, h, err := r.codec.Parse(r.from)
	if err != nil {
		t.Fatal(err)
	}
	for off := 0; off < len(r.data); {
		n, _, _, err := r.fs.WriteAt(&blockstore.Cred{}, h, r.data[off:], uint64(off), blockstore.Unstable)
		if err != nil {
			t.Fatal(err)
		}
		off += n
	}
	return r
}

func (r *offloadRig) answer(k *callback) verdict {
	if k.offload == nil {
		return verdict{}
	}
	v := verdict{}
	select {
	case v = <-r.verdicts:
	default:
	}
	r.seen <- k
	return v
}

// stepwise has the store wait before each step until it is let go on.
func (r *offloadRig) stepwise() {
	r.steps, r.begun = make(chan struct{}), make(chan struct{})
	quit := make(chan struct{})
	r.t.Cleanup(func() { close(quit) })
	r.fs.copies = func() {
		select {
		case r.begun <- struct{}{}:
		case <-quit:
		}
		select {
		case <-r.steps:
		case <-quit:
		}
	}
}

func (r *offloadRig) copyOp(synchronous bool) []args {
	return []args{
		op(OpPutFH, r.from), op(OpSaveFH), op(OpPutFH, r.to),
		op(OpCopy, r.fromID, r.toID, uint64(0), uint64(0), uint64(offloadSize), true, synchronous, uint32(0)),
	}
}

// copy asks for the whole file, and returns the copy stateid, if there is one, and how
// much was copied.
func (r *offloadRig) copy() (id state.Stateid, async bool, n uint64, verf [VerifierLen]byte) {
	r.t.Helper()
	p := r.x.do(r.copyOp(false)...).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpCopy)
	if ids := p.Uint32(); ids == 1 {
		id, async = DecodeStateid(p.Decoder), true
	}
	n = p.Uint64()
	if how := p.Uint32(); how != uint32(blockstore.Unstable) {
		r.t.Errorf("stable as %d", how)
	}
	verf = decodeVerifier(p.Decoder)
	if consecutive, synchronous := p.Bool(), p.Bool(); !consecutive || synchronous == async {
		r.t.Errorf("consecutive %v, synchronous %v, stateid %v", consecutive, synchronous, async)
	}
	p.end()
	return id, async, n, verf
}

// status is OFFLOAD_STATUS.
func (r *offloadRig) status(id state.Stateid) (n uint64, done bool, result, st nfs.Status) {
	r.t.Helper()
	p := r.x.do(op(OpPutFH, r.to), op(OpOffloadStatus, id)).ok(OpPutFH)
	if st = p.next(OpOffloadStatus); st != nfs.OK {
		return 0, false, nfs.OK, st
	}
	n = p.Uint64()
	if done = p.Uint32() == 1; done {
		result = nfs.Status(p.Uint32())
	}
	p.end()
	return n, done, result, nfs.OK
}

func (r *offloadRig) cancel(id state.Stateid) nfs.Status {
	r.t.Helper()
	return r.x.do(op(OpPutFH, r.to), op(OpOffloadCancel, id)).ok(OpPutFH).next(OpOffloadCancel)
}

// told waits for the next CB_OFFLOAD.
func (r *offloadRig) told() *callback {
	r.t.Helper()
	select {
	case k := <-r.seen:
		return k
	case <-time.After(10 * time.Second):
		r.t.Fatal("the client was not called")
		return nil
	}
}

// over waits until no copy has a stateid.
func (r *offloadRig) over() {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Second); r.s.State().Offloads() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatal("the copy stateid is still there")
		}
	}
}

// same holds what is in the target against the source.
func (r *offloadRig) same(n int) {
	r.t.Helper()
	x := r.table.ByID(r.file(r.to).Export)
	got := make([]byte, n)
	for off := 0; off < n; {
		m, _, err := x.FS.ReadAt(&blockstore.Cred{}, r.file(r.to).Handle, got[off:], uint64(off), false)
		if err != nil || m == 0 {
			r.t.Fatalf("%d bytes of %d, %v", off, n, err)
		}
		off += m
	}
	if !bytes.Equal(got, r.data[:n]) {
		r.t.Error("the copy is another one")
	}
}

// TestOffload: a long COPY is answered at once, goes on by the store or through the
// server, and the client is told of the end.
func TestOffload(t *testing.T) {
	for _, export := range [][]string{{"one"}, {"one", "nested"}} {
		r := newOffloadRig(t, export...)
		seq := r.x.seq + 1
		id, async, n, verf := r.copy()
		if !async || n != 0 {
			t.Fatalf("%v: asynchronous %v, %d bytes", export, async, n)
		}
		if id.Seq == 0 {
			t.Error("the seqid is 0")
		}
		k := r.told()
		o := k.offload
		if o.status != nfs.OK || o.count != offloadSize || o.id != id || !bytes.Equal(o.fh, r.to) || o.verf != verf ||
			o.how != 0 {
			t.Errorf("%v: told of %d bytes, %v, %v, %x, stable as %d", export, o.count, o.status, o.id, o.verf, o.how)
		}
		if len(k.refers) != 2 || k.refers[0] != seq || k.refers[1] != 0 {
			t.Errorf("the callback refers to %v, the call was %d", k.refers, seq)
		}
		r.over()
		if _, _, _, st := r.status(id); st != nfs.ErrBadStateID {
			t.Errorf("the stateid of a copy that the client knows the end of: %v", st)
		}
		r.same(offloadSize)
		if f := r.s.Faults(); f[CountOffloads] != 1 || f[CountCancelled] != 0 {
			t.Errorf("counted %v", f)
		}
	}
}

// TestOffloadNot: what has to be synchronous, or may be.
func TestOffloadNot(t *testing.T) {
	for name, prepare := range map[string]func(r *offloadRig){
		"no backchannel": func(r *offloadRig) { r.cl.end() },
		"closed":         func(r *offloadRig) { r.s.Close() },
		"version 4.1 has no such callback": func(r *offloadRig) {
			// The session of minor version 2 has none, another of the client has.
			r.cl.end()
			r.back = newCallee(r.t.(*testing.T))
			p := r.compound(1, exchangeArgs("copier", 1, exchMovedRefer)).ok(OpExchangeID)
			client, seq := p.Uint64(), p.Uint32()
			fore := channelArgs(1<<20+4096, 1<<20+4096, 2048, 16, 8)
			p = r.compound(1, op(OpCreateSession, client, seq, uint32(2), fore, channelArgs(4096, 4096, 0, 2, 16),
				uint32(0x40000000), uint32(0)))
			y := &sess{r: r.rig, minor: 1, client: client, id: DecodeSessionID(p.ok(OpCreateSession).Decoder)}
			y.flags()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newOffloadRig(t, "one")
			r.t = t
			prepare(r)
			if _, async, n, _ := r.copy(); async || n != offloadSize {
				t.Errorf("asynchronous %v, %d bytes", async, n)
			}
			r.same(offloadSize)
		})
	}
	r := newOffloadRig(t, "one")
	p := r.x.do(r.copyOp(true)...).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpCopy)
	if ids, n := p.Uint32(), p.Uint64(); ids != 0 || n != offloadSize {
		t.Errorf("a synchronous one: %d stateids, %d bytes", ids, n)
	}
	p = r.x.do(op(OpPutFH, r.from), op(OpSaveFH), op(OpPutFH, r.to),
		op(OpCopy, r.fromID, r.toID, uint64(0), uint64(0), uint64(copyStep), true, false,
			uint32(0))).ok(OpPutFH).ok(OpSaveFH).ok(OpPutFH).ok(OpCopy)
	if ids, n := p.Uint32(), p.Uint64(); ids != 0 || n != copyStep {
		t.Errorf("a short one: %d stateids, %d bytes", ids, n)
	}
}
