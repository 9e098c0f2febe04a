package nfs4

import (
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/state"
)

// leaser is a store that tells of others as the test wants it.
type leaser struct {
	blockstore.FS
	err      error
	nobody   bool // else can get at the files
	leases   int
	released int
	write    bool
	broken   func()
}

func (l *leaser) Lease(_ blockstore.Handle, write bool, broken func()) (func(), error) {
	if l.err != nil || l.nobody {
		return nil, l.err
	}
	l.leases++
	l.write, l.broken = write, broken
	return func() { l.released++ }, nil
}

// leased is a rig whose first export has such a store.
func leased(t *testing.T) (*rig, *leaser, *callee, *sess, []byte) {
	r := newRig(t)
	t.Cleanup(r.s.Close)
	l := &leaser{FS: r.fs}
	if err := r.table.Replace([]*nfs.Export{{ID: 1, Pseudo: "/one", FS: l}}); err != nil {
		t.Fatal(err)
	}
	maker := r.session(2, "maker")
	maker.do(op(OpPutRootFH))
	fh := func() []byte {
		root, err := r.fs.Root()
		if err != nil {
			t.Fatal(err)
		}
		mode := uint32(0o666)
		h, _, _, err := r.fs.Create(&blockstore.Cred{}, root, "f", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode},
			[8]byte{})
		if err != nil {
			t.Fatal(err)
		}
		return r.codec.Append(nil, 1, &h)
	}()
	cl := newCallee(t)
	return r, l, cl, r.called("a", cl), fh
}

// TestLeased: a delegation has a lease of the store from when it is given until it ends,
// however that is.
func TestLeased(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(r *rig, a *sess, fh []byte, id state.Stateid)
	}{
		{"returned", func(_ *rig, a *sess, fh []byte, id state.Stateid) {
			a.do(op(OpPutFH, fh), op(OpDelegReturn, id)).ok(OpPutFH).ok(OpDelegReturn)
		}},
		{"evicted", func(r *rig, a *sess, _ []byte, _ state.Stateid) { r.s.State().Evict(a.client) }},
		{"revoked", func(r *rig, a *sess, fh []byte, _ state.Stateid) {
			r.s.state.Free(r.now, r.file(fh), nil, true)
			for range 4 {
				r.now = r.now.Add(30 * time.Second)
				a.flags()
			}
			r.s.state.Free(r.now, r.file(fh), nil, true)
		}},
		{"no longer exported", func(r *rig, _ *sess, _ []byte, _ state.Stateid) { r.s.State().DropExport(1) }},
	} {
		for _, access := range []uint32{state.Read, state.Both} {
			r, l, _, a, fh := leased(t)
			p := a.openFH(fh, access, "o").ok(OpOpen)
			p.opened()
			if p.delegKind == DelegNone || l.leases != 1 || l.write != (access == state.Both) || l.released != 0 {
				t.Fatalf("%s: delegation %d, %d leases, to write %v", c.name, p.delegKind, l.leases, l.write)
			}
			c.end(r, a, fh, p.deleg)
			if l.released != 1 {
				t.Errorf("%s: released %d times", c.name, l.released)
			}
		}
	}
}

// TestNotLeased: what a store that does not tell means for a delegation.
func TestNotLeased(t *testing.T) {
	for _, c := range []struct {
		err      error
		nobody   bool
		given    bool
		unleased uint64
	}{
		{blockstore.ErrJukebox, false, false, 0},
		{blockstore.ErrNotSupp, false, true, 1},
		{errors.New("something"), false, true, 1},
		{nil, true, true, 0},
	} {
		r, l, _, a, fh := leased(t)
		l.err, l.nobody = c.err, c.nobody
		p := a.openFH(fh, state.Read|wantRead, "o").ok(OpOpen)
		p.opened()
		if given := p.delegKind == delegRead; given != c.given || !given && p.why != uint32(state.WhyContention) {
			t.Errorf("%v: delegation %d, %d", c.err, p.delegKind, p.why)
		}
		if n := r.s.Faults()[CountUnleased]; n != c.unleased {
			t.Errorf("%v: %d counted", c.err, n)
		}
		if n := r.s.State().Delegations().Now; (n == 1) != c.given {
			t.Errorf("%v: %d delegations", c.err, n)
		}
	}
}

// TestHostOpens: a program on the host has the delegation asked for, and the lease is
// gone when it is returned.
func TestHostOpens(t *testing.T) {
	r, l, cl, a, fh := leased(t)
	p := a.openFH(fh, state.Read, "o").ok(OpOpen)
	p.opened()
	done := make(chan struct{})
	go func() { l.broken(); close(done) }()
	for end := time.Now().Add(10 * time.Second); cl.recalls() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not asked for")
		}
	}
	select {
	case <-done:
		t.Error("nobody waits for the delegation")
	default:
	}
	a.do(op(OpPutFH, fh), op(OpDelegReturn, p.deleg)).ok(OpPutFH).ok(OpDelegReturn)
	<-done
	if l.released != 1 || cl.recalls() != 1 {
		t.Errorf("released %d times, %d recalls", l.released, cl.recalls())
	}
	if n := r.s.Faults()[CountHostOpens]; n != 1 {
		t.Errorf("%d counted", n)
	}
	// It ends with the server as well.
	r.now = r.now.Add(time.Minute)
	a.openFH(fh, state.Read, "o").ok(OpOpen).opened()
	go func() { l.broken() }()
	for cl.recalls() < 2 {
		time.Sleep(time.Millisecond)
	}
	r.s.Close()
}

// TestClocks: a server goes by a clock that the host's administrator does not set. What files say
// goes by the host's.
func TestClocks(t *testing.T) {
	s := New(Config{Config: nfs.Config{Exports: nfs.NewTable(nil)}})
	if at := s.cfg.Now(); at != at.Round(0) || clock.Until(at).Abs() > time.Minute {
		t.Errorf("leases go by %v, at %v", at, clock.Now())
	}
	if at := s.cfg.Wall(); time.Since(at).Abs() > time.Minute {
		t.Errorf("files go by %v", at)
	}
	// A wall clock that is set back and forth ends no lease, and prolongs none.
	r := newRig(t)
	wall := r.now
	r.s.cfg.Wall = func() time.Time { return wall }
	x := r.session(2, "one")
	_, id := x.make(x.handle("one"), "file")
	read := func(want nfs.Status) {
		t.Helper()
		if st := x.do(op(OpPutFH, x.handle("one", "file")),
			op(OpRead, id, uint64(0), uint32(1))).ok(OpPutFH).next(OpRead); st != want {
			t.Errorf("READ: %v", st)
		}
	}
	for _, by := range []time.Duration{24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
		wall = wall.Add(by)
		r.now = r.now.Add(80 * time.Second)
		if c := r.s.state.Clients(r.now); len(c) != 1 || c[0].Expired {
			t.Errorf("set by %v: %+v", by, c)
		}
		read(nfs.OK)
	}
	wall = wall.Add(-24 * time.Hour)
	if c := r.s.state.Clients(r.now.Add(91 * time.Second)); len(c) != 1 || !c[0].Expired {
		t.Errorf("set back, a lease does not end: %+v", c)
	}
}
