package nfs4

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// reply is a COMPOUND4res, with its results up to where the next one is read.
type reply struct {
	t      testing.TB
	status nfs.Status
	left   uint32
	*xdr.Decoder

	// Of opened.
	rflags    uint32
	delegKind uint32
	why       uint32
	deleg     state.Stateid
	recall    bool
}

func (r *rig) compound(minor uint32, ops ...args) *reply {
	r.t.Helper()
	var e xdr.Encoder
	encodeCompound(&e, "tag", minor, ops...)
	return r.parse(r.send(e.B))
}

func (r *rig) parse(d *xdr.Decoder, st rpc.AcceptStat) *reply {
	r.t.Helper()
	if st != rpc.RPCSuccess {
		r.t.Fatalf("accept status %d", st)
	}
	p := &reply{t: r.t, Decoder: d}
	p.status = nfs.Status(d.Uint32())
	if tag := d.String(100); tag != "tag" {
		r.t.Errorf("tag %q", tag)
	}
	p.left = d.Uint32()
	return p
}

// next reads the head of the next result, which has to be that of op.
func (p *reply) next(op uint32) nfs.Status {
	p.t.Helper()
	if p.left == 0 {
		p.t.Fatalf("no result of operation %d; status %v", op, p.status)
	}
	p.left--
	got, st := p.Uint32(), nfs.Status(p.Uint32())
	if got != op {
		p.t.Fatalf("result of operation %d instead of %d (%v)", got, op, st)
	}
	return st
}

// ok is next for an operation that has to succeed.
func (p *reply) ok(op uint32) *reply {
	p.t.Helper()
	if st := p.next(op); st != nfs.OK {
		p.t.Fatalf("operation %d: %v", op, st)
	}
	return p
}

// fails is for an operation that has to be the last and to fail so.
func (p *reply) fails(op uint32, want nfs.Status) {
	p.t.Helper()
	if st := p.next(op); st != want || p.status != want {
		p.t.Errorf("operation %d: %v (%v in all) instead of %v", op, st, p.status, want)
	}
	p.end()
}

// end checks that a reply was read to its end.
func (p *reply) end() {
	p.t.Helper()
	if p.left != 0 || p.Err() != nil || p.Remaining() != 0 {
		p.t.Errorf("%d results and %d bytes are left, %v", p.left, p.Remaining(), p.Err())
	}
}

// sess is a session of a client.
type sess struct {
	r      *rig
	minor  uint32
	client uint64
	id     state.SessionID
	seq    uint32
	cache  bool
	uid    uint32 // who made it
	peer   string // where it was used last
}

// follow binds the connection to the session where the rig has another address than before.
func (x *sess) follow() {
	r := x.r
	if x.peer == r.peer {
		return
	}
	defer func(uid uint32) { r.uid = uid }(r.uid)
	r.uid, x.peer = x.uid, r.peer
	r.compound(x.minor, op(OpBindConnToSession, x.id, uint32(bindFore), false)).ok(OpBindConnToSession)
}

// channelArgs is a channel_attrs4.
func channelArgs(req, resp, cached, ops, slots uint32) args {
	return part(uint32(0), req, resp, cached, ops, slots, uint32(0))
}

func exchangeArgs(owner string, verf byte, flags uint32) args {
	return op(OpExchangeID, [8]byte{verf}, owner, flags, uint32(protectNone), uint32(0))
}

// exchange is an EXCHANGE_ID.
func (r *rig) exchange(owner string, verf byte) (id uint64, seq uint32, flags uint32) {
	r.t.Helper()
	p := r.compound(1, exchangeArgs(owner, verf, exchMovedRefer)).ok(OpExchangeID)
	id, seq, flags = p.Uint64(), p.Uint32(), p.Uint32()
	if how := p.Uint32(); how != protectNone {
		r.t.Errorf("state protection %d", how)
	}
	p.Uint64()
	if major, scope := p.String(OwnerMax), p.String(OwnerMax); major != scope || !strings.HasPrefix(major, "rstored-") {
		r.t.Errorf("owner %q, scope %q", major, scope)
	}
	if n := p.Uint32(); n != 1 {
		r.t.Errorf("%d implementations", n)
	}
	p.String(100)
	p.String(100)
	p.Skip(12)
	p.end()
	return id, seq, flags
}

// session makes a client with a session of the usual size.
func (r *rig) session(minor uint32, owner string) *sess {
	return r.sessionOf(minor, owner, channelArgs(1<<20+4096, 1<<20+4096, 2048, 16, 8))
}

func (r *rig) sessionOf(minor uint32, owner string, fore args) *sess {
	r.t.Helper()
	id, seq, _ := r.exchange(owner, 1)
	p := r.compound(minor, op(OpCreateSession, id, seq, uint32(2), fore, channelArgs(4096, 4096, 0, 2, 16),
		uint32(0x40000000), uint32(1), uint32(0)))
	p.ok(OpCreateSession)
	x := &sess{r: r, minor: minor, client: id, id: DecodeSessionID(p.Decoder), uid: r.uid, peer: r.peer}
	granted := uint32(0)
	if r.back != nil {
		granted = sessionBack
	}
	if got, flags := p.Uint32(), p.Uint32(); got != seq || flags != granted {
		r.t.Errorf("sequence %d, flags %x", got, flags)
	}
	if st := x.do(op(OpReclaimComplete, false)).next(OpReclaimComplete); st != nfs.OK && st != nfs.ErrCompleteAlready {
		r.t.Fatal(st)
	}
	return x
}

func (x *sess) sequence(seq, slot uint32) args {
	return op(OpSequence, x.id, seq, slot, slot, x.cache)
}

// do sends operations in the first slot, and returns the results behind SEQUENCE.
func (x *sess) do(ops ...args) *reply {
	x.r.t.Helper()
	x.follow()
	x.seq++
	p := x.r.compound(x.minor, append([]args{x.sequence(x.seq, 0)}, ops...)...)
	p.ok(OpSequence)
	if id := DecodeSessionID(p.Decoder); id != x.id {
		x.r.t.Errorf("session %x", id)
	}
	if seq, slot := p.Uint32(), p.Uint32(); seq != x.seq || slot != 0 {
		x.r.t.Errorf("sequence %d, slot %d", seq, slot)
	}
	p.Skip(12)
	return p
}

// handle walks from the root to a file handle.
func (x *sess) handle(path ...string) []byte {
	x.r.t.Helper()
	fh, st := x.tryHandle(path...)
	if st != nfs.OK {
		x.r.t.Fatalf("%v: %v", path, st)
	}
	return fh
}

func (x *sess) tryHandle(path ...string) ([]byte, nfs.Status) {
	x.r.t.Helper()
	ops := []args{op(OpPutRootFH)}
	for _, name := range path {
		ops = append(ops, op(OpLookup, name))
	}
	p := x.do(append(ops, op(OpGetFH))...)
	if p.status != nfs.OK {
		return nil, p.status
	}
	p.ok(OpPutRootFH)
	for range path {
		p.ok(OpLookup)
	}
	p.ok(OpGetFH)
	fh := p.Opaque(FHMax)
	p.end()
	return fh, nfs.OK
}

// attrs is a fattr4 of values in order.
func attrs(b Bitmap, vals ...any) args {
	return func(e *xdr.Encoder) {
		b.Encode(e)
		var v xdr.Encoder
		part(vals...)(&v)
		e.Opaque(v.B)
	}
}

// openArgs of an OPEN by name, without creating.
func openOp(access, deny uint32, owner, name string) args {
	return op(OpOpen, uint32(0), access, deny, uint64(0), owner, uint32(OpenNoCreate), uint32(ClaimNull), name)
}

func openCreateOp(access uint32, owner, name string, mode uint32, how ...any) args {
	return op(OpOpen, uint32(0), access, uint32(0), uint64(0), owner, uint32(OpenCreate), mode, part(how...),
		uint32(ClaimNull), name)
}

// opened reads an OPEN4resok.
func (p *reply) opened() (id state.Stateid, change changeInfo, set Bitmap) {
	p.t.Helper()
	id = DecodeStateid(p.Decoder)
	change = p.change()
	if p.rflags = p.Uint32(); p.rflags&^(resultMayNotify|resultNoOpen) != resultLocktype {
		p.t.Errorf("flags of OPEN: %x", p.rflags)
	}
	set, _ = DecodeBitmap(p.Decoder)
	p.delegation()
	return id, change, set
}

// delegation reads an open_delegation4.
func (p *reply) delegation() {
	p.t.Helper()
	switch deleg := p.Uint32(); deleg {
	case DelegNone:
	case DelegNoneExt:
		p.delegKind, p.why = deleg, p.Uint32()
		if why := state.WhyNot(p.why); why == state.WhyContention || why == state.WhyResource {
			p.Bool()
		}
	case delegRead, delegWrite, delegWriteTimes:
		p.deleg = DecodeStateid(p.Decoder)
		p.delegKind = deleg
		p.recall = p.Bool()
		if deleg != delegRead {
			if kind, size := p.Uint32(), p.Uint64(); kind != 1 || size != 0 {
				p.t.Errorf("space of %d of kind %d", size, kind)
			}
		}
		if typ, flag, mask, who := p.Uint32(), p.Uint32(), p.Uint32(),
			p.String(100); typ != 0 || flag != 0 || mask != 0 || who != "" {
			p.t.Errorf("permissions %d %d %d %q", typ, flag, mask, who)
		}
	default:
		p.t.Errorf("delegation %d", deleg)
	}
}

func (p *reply) change() changeInfo {
	return changeInfo{atomic: p.Bool(), before: p.Uint64(), after: p.Uint64()}
}

// make makes a file of an export's root, and returns its handle and an open of it.
func (x *sess) make(dir []byte, name string) ([]byte, state.Stateid) {
	x.r.t.Helper()
	p := x.do(op(OpPutFH, dir), openCreateOp(state.Both, "owner", name, CreateUnchecked,
		attrs(BitmapOf(AttrMode), uint32(0o644))), op(OpGetFH))
	id, _, _ := p.ok(OpPutFH).ok(OpOpen).opened()
	p.ok(OpGetFH)
	fh := p.Opaque(FHMax)
	p.end()
	return fh, id
}

func words(b []byte) (w []uint32) {
	for ; len(b) >= 4; b = b[4:] {
		w = append(w, binary.BigEndian.Uint32(b))
	}
	return w
}
