package nfs4

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	folds     bool              // case does not count
	quota     *blockstore.Quota // nil: there are none
	copies    func()            // before each Copy
	copyFails func() error
	whole     bool // Copy copies all that it is asked for
	willNeed  func(off, n uint64) bool
	dontNeed  func(off, n uint64) bool
	labels    map[blockstore.Handle][]byte // nil: there are none
	stripes   bool                         // Seek tells of data and holes in turn, 8 bytes each
}

func (f *store) Limits() blockstore.Limits {
	l := f.FS.Limits()
	l.Clones, l.Quotas, l.Labels, l.CaseInsensitive = f.clones, f.quota != nil, f.labels != nil, f.folds
	return l
}

func (f *store) WillNeed(_ *blockstore.Cred, _ blockstore.Handle, off, n uint64) (bool, error) {
	if f.willNeed == nil {
		return false, blockstore.ErrNotSupp
	}
	return f.willNeed(off, n), nil
}

func (f *store) DontNeed(_ *blockstore.Cred, _ blockstore.Handle, off, n uint64) (bool, error) {
	if f.dontNeed == nil {
		return false, blockstore.ErrNotSupp
	}
	return f.dontNeed(off, n), nil
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
	gss     *rpc.Cred // of the caller, as if it were proven; nil: AUTH_SYS of uid
	bulkMax int
	blocks  int    // of memory that the transport has for a call; 0 means enough
	raw     []byte // the last reply, as it was sent
	noBlock bool   // the last call was served without a worker
	known   []string
	broken  bool         // known cannot be changed
	back    rpc.Caller   // of the connection; nil: it has none
	limits  state.Config // of the server
	calls   []byte       // its journal

	partners fakePartners

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
	r.partners.off.Store(true)
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
		CopyPartners: &r.partners,
	})
	r.s.observe = r.see
	programs := r.s.Programs()
	serve := &programs[0].Procs[ProcCompound].Serve
	compound := *serve
	*serve = func(c *rpc.Call, mayBlock bool) rpc.Status {
		if r.gss != nil {
			c.Cred = *r.gss
		}
		return compound(c, mayBlock)
	}
	r.srv = rpc.NewServer(rpc.ServerConfig{Programs: programs, Workers: 2})
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
