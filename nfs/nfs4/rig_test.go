package nfs4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

const (
	friend   = "10.0.0.1:700" // may do everything
	reader   = "10.0.0.2:700" // read-only by its rule
	stranger = "192.0.2.1:700"
)

// store is memory, and what its fields say.
type store struct {
	*memfs.FS
	reads     func(nowait bool) error
	ready     int // the most bytes that can be read without waiting; 0: all
	panics    bool
	clones    bool
	quota     *blockstore.Quota // nil: there are none
	copies    func()            // before each Copy
	copyFails func() error
	whole     bool // Copy copies all that it is asked for
	willNeed  func(off, n uint64) bool
	labels    map[blockstore.Handle][]byte // nil: there are none
	stripes   bool                         // Seek tells of data and holes in turn, 8 bytes each
}

func (f *store) Limits() blockstore.Limits {
	l := f.FS.Limits()
	l.Clones, l.Quotas, l.Labels = f.clones, f.quota != nil, f.labels != nil
	return l
}

func (f *store) WillNeed(_ *blockstore.Cred, _ blockstore.Handle, off, n uint64) (bool, error) {
	if f.willNeed == nil {
		return false, blockstore.ErrNotSupp
	}
	return f.willNeed(off, n), nil
}

func (f *store) Quota(c *blockstore.Cred, h blockstore.Handle) (blockstore.Quota, error) {
	_, err := f.GetAttr(c, h)
	q := *f.quota
	q.Used += uint64(c.UID)
	return q, err
}

func (f *store) GetLabel(_ *blockstore.Cred, h blockstore.Handle) ([]byte, error) {
	return f.labels[h], nil
}

func (f *store) SetLabel(c *blockstore.Cred, h blockstore.Handle, label []byte) (w blockstore.Wcc, err error) {
	if !c.Privileged() {
		return w, blockstore.ErrPerm
	}
	f.labels[h] = label
	return w, nil
}

func (f *store) Seek(c *blockstore.Cred, h blockstore.Handle, off uint64, hole bool) (uint64, error) {
	if !f.stripes {
		return f.FS.Seek(c, h, off, hole)
	}
	if off%16 >= 8 == hole {
		return off, nil
	}
	return off/8*8 + 8, nil
}

func (f *store) Copy(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff,
	n uint64,
) (uint64, error) {
	if f.copies != nil {
		f.copies()
	}
	if f.copyFails != nil {
		if err := f.copyFails(); err != nil {
			return 0, err
		}
	}
	done, err := f.FS.Copy(c, from, fromOff, to, toOff, n)
	for m := done; f.whole && err == nil && m > 0 && done < n; done += m {
		m, err = f.FS.Copy(c, from, fromOff+done, to, toOff+done, n-done)
	}
	return done, err
}

func (f *store) Clone(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff,
	n uint64,
) error {
	if !f.clones {
		return blockstore.ErrNotSupp
	}
	_, err := f.Copy(c, from, fromOff, to, toOff, n)
	return err
}

func (f *store) ReadAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, nowait bool) (int, bool, error) {
	if f.reads != nil {
		if err := f.reads(nowait); err != nil {
			return 0, false, err
		}
	}
	if nowait && f.ready > 0 {
		p = p[:min(len(p), f.ready)]
	}
	return f.FS.ReadAt(c, h, p, off, nowait)
}

func (f *store) Commit(c *blockstore.Cred, h blockstore.Handle, off uint64, n uint32) (blockstore.Wcc, error) {
	if f.panics {
		panic("as the test wants it")
	}
	return f.FS.Commit(c, h, off, n)
}

// rig is a server with exports at /one, /deep/two (read-only), and /one/nested.
type rig struct {
	t     testing.TB
	s     *Server
	srv   *rpc.Server
	table *nfs.Table
	codec *nfs.Codec
	count nfs.Counters
	locks *lock.Table
	fs    *store
	now   time.Time

	xid     uint32
	peer    string
	conn    rpc.Peer // of the connection, beside the address
	uid     uint32
	bulkMax int
	blocks  int    // of memory that the transport has for a call; 0 means enough
	raw     []byte // the last reply, as it was sent
	noBlock bool   // the last call was served without a worker
	known   []string
	broken  bool         // known cannot be changed
	back    rpc.Caller   // of the connection; nil: it has none
	limits  state.Config // of the server
	calls   []byte       // its journal

	seenMu sync.Mutex
	seen   map[opStatus]bool // every status that an operation had
}

func newRig(t testing.TB) *rig {
	return newRigOver(t, func(fs blockstore.FS) blockstore.FS { return fs })
}

// newRigOver is newRig with something between the server and the store of /one.
func newRigOver(t testing.TB, wrap func(blockstore.FS) blockstore.FS) *rig {
	r := &rig{
		t: t, table: nfs.NewTable(nil), codec: nfs.NewCodec([]byte("secret")), peer: friend, bulkMax: -1,
		locks: lock.New(0),
	}
	r.now = time.Unix(1_700_000_000, 0)
	r.fs = &store{FS: memfs.New(memfs.Options{FSID: 77, MaxBytes: 128 << 20})}
	one := wrap(r.fs)
	rules := []nfs.ClientRule{
		{CIDR: netip.MustParsePrefix("10.0.0.1/32"), Squash: nfs.NoRootSquash, AnonUID: nfs.AnonID, AnonGID: nfs.AnonID},
		{CIDR: netip.MustParsePrefix("10.0.0.2/32"), Squash: nfs.NoRootSquash, RO: true},
	}
	if err := r.table.Replace([]*nfs.Export{
		{ID: 1, Pseudo: "/one", FS: one, Clients: rules, Labels: true},
		{ID: 2, Pseudo: "/deep/two", FS: memfs.New(memfs.Options{FSID: 78}), ReadOnly: true},
		{ID: 3, Pseudo: "/one/nested", FS: memfs.New(memfs.Options{FSID: 79, MaxBytes: 128 << 20}), Clients: rules},
		{ID: 1, Pseudo: "/", FS: one, Clients: rules, Labels: true},
	}); err != nil {
		t.Fatal(err)
	}
	r.start(7)
	return r
}

// Add implements state.Journal.
func (r *rig) Add(owner string) error {
	if r.broken {
		return errors.New("as the test wants it")
	}
	_ = r.Remove(owner)
	r.known = append(r.known, owner)
	return nil
}

// Remove implements state.Journal.
func (r *rig) Remove(owners ...string) error {
	if r.broken {
		return errors.New("as the test wants it")
	}
	r.known = slices.DeleteFunc(slices.Clone(r.known), func(o string) bool { return slices.Contains(owners, o) })
	return nil
}

// start starts the server, or another one in its place.
func (r *rig) start(boot uint32) {
	r.s = New(Config{
		Config: nfs.Config{Exports: r.table, Codec: r.codec, Counters: &r.count}, Identity: []byte("id"),
		Boot: boot, Locks: r.locks, Now: func() time.Time { return r.now },
		Known: r.known, Journal: r, Limits: r.limits, Calls: r.calls,
	})
	r.s.observe = r.see
	r.srv = rpc.NewServer(rpc.ServerConfig{Programs: r.s.Programs(), Workers: 2})
	r.t.Cleanup(r.srv.Close)
}

// args is a nfs_argop4.
type args func(e *xdr.Encoder)

func op(n uint32, rest ...any) args {
	return func(e *xdr.Encoder) {
		e.Uint32(n)
		for _, v := range rest {
			switch v := v.(type) {
			case uint32:
				e.Uint32(v)
			case int:
				e.Uint32(uint32(v))
			case uint64:
				e.Uint64(v)
			case bool:
				e.Bool(v)
			case string:
				e.String(v)
			case []byte:
				e.Opaque(v)
			case state.Stateid:
				EncodeStateid(e, v)
			case state.SessionID:
				e.Fixed(v[:])
			case [8]byte:
				e.Fixed(v[:])
			case Bitmap:
				v.Encode(e)
			case args:
				v(e)
			default:
				panic(fmt.Sprintf("%T", v))
			}
		}
	}
}

// part is a piece of an operation's arguments.
func part(rest ...any) args {
	whole := op(0, rest...)
	return func(e *xdr.Encoder) {
		var one xdr.Encoder
		whole(&one)
		e.B = append(e.B, one.B[4:]...)
	}
}

func encodeCompound(e *xdr.Encoder, tag string, minor uint32, ops ...args) {
	e.String(tag)
	e.Uint32(minor)
	e.Uint32(uint32(len(ops)))
	for _, o := range ops {
		o(e)
	}
}

// who is the client of the connection.
func (r *rig) who() rpc.Peer {
	p := r.conn
	p.Addr = netip.MustParseAddrPort(r.peer)
	return p
}

func (r *rig) from() state.From {
	p := r.who()
	return state.FromPeer(&p)
}

// send sends arguments of COMPOUND and returns what follows an accepted reply.
func (r *rig) send(a []byte) (*xdr.Decoder, rpc.AcceptStat) {
	r.t.Helper()
	r.xid++
	var e xdr.Encoder
	rpc.EncodeCall(&e, r.xid, Program, Version, ProcCompound,
		&rpc.Cred{Flavor: rpc.AuthSys, Machine: "client", UID: r.uid})
	e.B = append(e.B, a...)
	done := make(chan []byte, 1)
	c := &rpc.Call{Peer: r.who(), BulkMax: r.bulkMax, Back: r.back}
	if left := r.blocks; left > 0 {
		c.Alloc = func(n int) []byte {
			if left--; left < 0 {
				return nil
			}
			return make([]byte, n)
		}
	}
	c.Reply = func(c *rpc.Call, drop bool) {
		r.noBlock = !c.Detached()
		done <- c.Res.AppendFlat(nil)
	}
	r.srv.Dispatch(c, xdr.NewDecoder(e.B), false)
	select {
	case r.raw = <-done:
		d := xdr.NewDecoder(r.raw)
		d.Skip(20)
		return &d, rpc.AcceptStat(d.Uint32())
	case <-time.After(10 * time.Second):
		r.t.Fatal("no reply")
		return nil, 0
	}
}

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
