package nfs4

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// client40 is a client of version 4.0.
type client40 struct {
	r    *rig
	id   uint64
	seqs map[string]uint32 // of the last request, by owner
}

const uaddr = "10.0.0.1.3.232" // port 1000

func setClientOp(owner string, verf byte, netid, addr string) args {
	return op(OpSetClientID, [8]byte{verf}, owner, uint32(0x40000000), netid, addr, uint32(99))
}

// setClient is SETCLIENTID.
func (r *rig) setClient(owner string, verf byte) (id uint64, confirm [8]byte) {
	r.t.Helper()
	p := r.compound(0, setClientOp(owner, verf, "tcp", uaddr)).ok(OpSetClientID)
	id, confirm = p.Uint64(), decodeVerifier(p.Decoder)
	p.end()
	return id, confirm
}

func confirmOp(id uint64, confirm [8]byte) args { return op(OpSetClientIDConfirm, id, confirm) }

// client40 makes a confirmed client.
func (r *rig) client40(owner string, verf byte) *client40 {
	r.t.Helper()
	id, confirm := r.setClient(owner, verf)
	r.compound(0, confirmOp(id, confirm)).ok(OpSetClientIDConfirm).end()
	return &client40{r: r, id: id, seqs: make(map[string]uint32)}
}

// next is the next number of an owner.
func (c *client40) next(owner string) uint32 {
	c.seqs[owner]++
	return c.seqs[owner]
}

func (c *client40) openOp(seq, access, deny uint32, owner, name string) args {
	return op(OpOpen, seq, access, deny, c.id, owner, uint32(OpenNoCreate), uint32(ClaimNull), name)
}

func (c *client40) createOp(seq, access uint32, owner, name string) args {
	return op(OpOpen, seq, access, uint32(0), c.id, owner, uint32(OpenCreate), uint32(CreateUnchecked),
		attrs(BitmapOf(AttrMode), uint32(0o644)),
		uint32(ClaimNull), name)
}

func (c *client40) reclaimOp(seq, access uint32, owner string) args {
	return op(OpOpen, seq, access, uint32(0), c.id, owner, uint32(OpenNoCreate), uint32(ClaimPrevious), uint32(DelegNone))
}

// lockOp is a LOCK by a new lock-owner, lockMore one by its stateid.
func (c *client40) lockOp(seq uint32, id state.Stateid, lockSeq uint32, owner string, typ uint32, off, n uint64) args {
	return op(OpLock, typ, false, off, n, true, seq, id, lockSeq, c.id, owner)
}

func lockMore(seq uint32, id state.Stateid, typ uint32, off, n uint64) args {
	return op(OpLock, typ, false, off, n, false, id, seq)
}

func lockUOp(seq uint32, id state.Stateid, off, n uint64) args {
	return op(OpLockU, LockWrite, seq, id, off, n)
}

// root is the handle of the export /one.
func (r *rig) root() []byte {
	r.t.Helper()
	p := r.compound(0, op(OpPutRootFH), op(OpLookup, "one"), op(OpGetFH)).ok(OpPutRootFH).ok(OpLookup).ok(OpGetFH)
	return p.Opaque(FHMax)
}

// opened40 reads an OPEN4resok.
type opened40 struct {
	id      state.Stateid
	confirm bool
	deleg   uint32
	delegID state.Stateid
	recall  bool
}

func (p *reply) opened40() (o opened40) {
	p.t.Helper()
	o.id = DecodeStateid(p.Decoder)
	p.change()
	flags := p.Uint32()
	if flags&^resultConfirm != resultLocktype {
		p.t.Errorf("flags of OPEN: %x", flags)
	}
	o.confirm = flags&resultConfirm != 0
	DecodeBitmap(p.Decoder)
	if o.deleg = p.Uint32(); o.deleg != DelegNone {
		o.delegID = DecodeStateid(p.Decoder)
		o.recall = p.Bool()
		p.Skip(12)
		p.String(10)
	}
	return o
}

// open opens a file of the export and confirms that where it has to be.
func (c *client40) open(access, deny uint32, owner, name string) ([]byte, opened40) {
	c.r.t.Helper()
	return c.opens(c.openOp(c.next(owner), access, deny, owner, name), owner)
}

// make makes a file.
func (c *client40) make(owner, name string) ([]byte, state.Stateid) {
	c.r.t.Helper()
	fh, o := c.opens(c.createOp(c.next(owner), state.Both, owner, name), owner)
	return fh, o.id
}

func (c *client40) opens(open args, owner string) ([]byte, opened40) {
	c.r.t.Helper()
	p := c.r.compound(0, op(OpPutFH, c.r.root()), open, op(OpGetFH)).ok(OpPutFH).ok(OpOpen)
	o := p.opened40()
	fh := bytes.Clone(p.ok(OpGetFH).Opaque(FHMax))
	p.end()
	if o.confirm {
		o.id = c.on(fh, op(OpOpenConfirm, o.id, c.next(owner))).ok(OpOpenConfirm).id()
	}
	return fh, o
}

// on sends an operation on a file.
func (c *client40) on(fh []byte, ops ...args) *reply {
	c.r.t.Helper()
	return c.r.compound(0, append([]args{op(OpPutFH, fh)}, ops...)...).ok(OpPutFH)
}

// id reads a stateid that is the result.
func (p *reply) id() state.Stateid {
	p.t.Helper()
	id := DecodeStateid(p.Decoder)
	p.end()
	return id
}

// twice sends the same operations in two calls, and returns what follows the XIDs.
func (r *rig) twice(ops ...args) (first, second []byte) {
	r.t.Helper()
	var e xdr.Encoder
	encodeCompound(&e, "tag", 0, ops...)
	r.send(e.B)
	first = bytes.Clone(r.raw[4:])
	r.send(e.B)
	return first, bytes.Clone(r.raw[4:])
}

// callee40 is the callback program of a client of version 4.0.
type callee40 struct {
	t      *testing.T
	silent bool
	refuse nfs.Status
	null   int
	recall []recalled
	to     netip.AddrPort
	secure *state.Secure
}

func (c *callee40) Connected() bool { return true }

func (c *callee40) Call(b *rpc.BackwardCall) {
	if b.Prog != 0x40000000 || b.Vers != 1 || b.Timeout <= 0 || b.Timeout > time.Minute {
		c.t.Errorf("call of %x %d %d, %v", b.Prog, b.Vers, b.Proc, b.Timeout)
	}
	if c.silent {
		b.Done(nil, rpc.ErrTimeout)
		return
	}
	if b.Proc == procCBNull {
		c.null++
		b.Done(new(xdr.Decoder), nil)
		return
	}
	if (b.Cred == nil || b.Cred.Flavor != rpc.AuthSys) != (c.secure != nil) {
		c.t.Errorf("credential %+v", b.Cred)
	}
	d := xdr.NewDecoder(b.Args)
	d.Opaque(100)
	if minor, ident, n, op := d.Uint32(), d.Uint32(), d.Uint32(),
		d.Uint32(); minor != 0 || ident != 99 || n != 1 || op != opCBRecall {
		c.t.Errorf("minor version %d, ident %d, %d operations, the first %d", minor, ident, n, op)
	}
	r := recalled{id: DecodeStateid(&d)}
	d.Bool()
	r.fh = bytes.Clone(d.Opaque(FHMax))
	if d.Err() != nil || d.Remaining() > 0 {
		c.t.Errorf("%v, %d bytes left", d.Err(), d.Remaining())
	}
	c.recall = append(c.recall, r)
	var e xdr.Encoder
	e.Uint32(uint32(c.refuse))
	e.String("")
	e.Uint32(1)
	e.Uint32(opCBRecall)
	e.Uint32(uint32(c.refuse))
	res := xdr.NewDecoder(e.B)
	b.Done(&res, nil)
}

// called40 has the server call its clients of version 4.0 by c.
func (r *rig) called40(c *callee40) {
	r.s.cfg.CallBack = func(cb *state.Callback) rpc.Caller {
		c.to, c.secure = cb.To, cb.Secure
		return c
	}
}

func (f *store) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Handle, blockstore.Attr,
	error,
) {
	if f.panics {
		panic("as the test wants it")
	}
	return f.FS.Lookup(c, dir, name)
}
