package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// cache is a DelegationUser of a test.
type cache struct {
	recalled, lost chan *Delegation
	back           atomic.Pointer[func(*Delegation)] // what it writes back, if not nil
	changed        atomic.Bool
	size           atomic.Uint64
}

func newCache() *cache {
	return &cache{recalled: make(chan *Delegation, 100), lost: make(chan *Delegation, 100)}
}

func (u *cache) Recalled(_ context.Context, d *Delegation) {
	if f := u.back.Load(); f != nil {
		(*f)(d)
	}
	u.recalled <- d
}
func (u *cache) Lost(d *Delegation)                 { u.lost <- d }
func (u *cache) Changed(*Delegation) (uint64, bool) { return u.size.Load(), u.changed.Load() }
func (s *server) caching() (*Client, *cache)        { return s.cachingOf(s.client()) }
func (s *server) cachingOf(c *Client) (*Client, *cache) {
	u := newCache()
	c.UseDelegations(u)
	return c, u
}

// delegated opens a file until the server delegates it: it does not before the client has answered
// its first callback.
func (s *server) delegated(c *Client, h Handle, access uint32) (d *Delegation, release func() error) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		release, err := c.OpenHandle(context.Background(), h, access)
		must(s.t, err)
		if d := c.Delegation(h); d != nil {
			return d, release
		}
		must(s.t, release())
		if time.Now().After(end) {
			s.t.Fatal("the server grants no delegation")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// object is a file at the server.
func (s *server) object(c *Client, name string, data []byte) Handle {
	s.t.Helper()
	put(s.t, c, name, data)
	n, err := c.Resolve(context.Background(), name)
	must(s.t, err)
	return n.Handle
}

func got[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not come", what)
	}
	return v
}

// TestDelegationForReading: a file that is delegated is opened without a call, by a user for whom
// the server has opened it before. Another client that writes gets it back, and the file stays
// open.
func TestDelegationForReading(t *testing.T) {
	for _, v := range []Version{Version41, Version42} {
		s := newServer(t)
		s.vers = v
		other := s.client()
		h := s.object(other, "/data/f", []byte("data"))
		var calls atomic.Int64
		c, u := s.cachingOf(s.meddled(v, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
			calls.Add(1)
			return call(r)
		}))
		ctx := context.Background()
		d, release := s.delegated(c, h, ShareRead)
		if d.Write() || !d.Valid() {
			t.Errorf("%+v", d)
		}
		must(t, release())
		before := calls.Load()
		for range 3 {
			release, err := c.OpenHandle(ctx, h, ShareRead)
			must(t, err)
			must(t, release())
		}
		if n := calls.Load() - before; n != 0 {
			t.Errorf("%d calls for opens of a delegated file", n)
		}
		another := WithCred(ctx, &rpc.Cred{Flavor: rpc.AuthSys, UID: 7, GID: 7})
		release, err := c.OpenHandle(another, h, ShareRead)
		must(t, err)
		if calls.Load() == before {
			t.Error("the server has not been asked about another user")
		}
		opened, err := other.OpenHandle(ctx, h, ShareWrite)
		must(t, err)
		if r := got(t, u.recalled, "the recall"); r != d || d.Valid() || d.Lost() || c.Delegation(h) != nil {
			t.Errorf("%+v instead of %+v", r, d)
		}
		if n, _, err := c.Read(ctx, h, make([]byte, 10), 0); n != 4 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		must(t, release())
		must(t, opened())
		// The return makes opens of the server, and closes them in its own time.
		n := s.four.State().Counts()
		for end := time.Now().Add(10 * time.Second); n.Opens != 0 && time.Now().Before(end); n = s.four.State().Counts() {
			time.Sleep(time.Millisecond)
		}
		if n.Opens != 0 || n.Delegations != 0 {
			t.Errorf("%+v", n)
		}
		if st := c.Stats(); st.Delegated == 0 || st.Recalled != 1 || st.Returned != 1 || st.Delegations != 0 {
			t.Errorf("%+v", st)
		}
	}
}

// TestDelegationForWriting: another client that asks for the size of a file is answered by the
// client with the delegation, and one that opens the file waits until the data is written back.
func TestDelegationForWriting(t *testing.T) {
	s := newServer(t)
	other := s.client()
	h := s.object(other, "/data/f", []byte("data"))
	c, u := s.caching()
	ctx := context.Background()
	d, release := s.delegated(c, h, ShareBoth)
	if !d.Write() {
		t.Fatal("it is for reading")
	}
	sizes := func(want uint64) {
		t.Helper()
		a, err := other.GetAttr(ctx, h)
		must(t, err)
		if a.Size != want {
			t.Errorf("size %d instead of %d", a.Size, want)
		}
	}
	u.size.Store(4)
	sizes(4)
	u.size.Store(9)
	u.changed.Store(true)
	sizes(9)
	back := func(d *Delegation) {
		if _, err := c.Write(d.Under(ctx), d.Handle(), []byte("123456789"), 0, blockstore.FileSync); err != nil {
			t.Error(err)
		}
		u.changed.Store(false)
	}
	u.back.Store(&back)
	opened, err := other.OpenHandle(ctx, h, ShareRead)
	must(t, err)
	got(t, u.recalled, "the recall")
	b := make([]byte, 20)
	if n, _, err := other.Read(ctx, h, b, 0); err != nil || string(b[:n]) != "123456789" {
		t.Errorf("%q, %v", b[:n], err)
	}
	must(t, opened())
	must(t, release())
}

// TestDelegationsGoOn: a server that restarts gets the opens and delegations back, and does not
// lose one of them; ReturnDelegation and the end of the client leave nothing.
func TestDelegationsGoOn(t *testing.T) {
	s := newServer(t)
	c, u := s.caching()
	ctx := context.Background()
	a, b := s.object(c, "/data/a", []byte("a")), s.object(c, "/data/b", []byte("b"))
	read, release := s.delegated(c, a, ShareRead)
	must(t, release()) // the client has it open all the same
	write, _ := s.delegated(c, b, ShareBoth)
	s.restart()
	must(t, c.Null(ctx))
	_, err := c.GetAttr(ctx, a)
	must(t, err)
	if !read.Valid() || !write.Valid() || c.Stats().Redelegated != 2 {
		t.Errorf("%t, %t, %+v", read.Valid(), write.Valid(), c.Stats())
	}
	if n := s.four.State().Counts(); n.Opens != 2 || n.Delegations != 2 {
		t.Errorf("%+v", n)
	}
	c.ReturnDelegation(ctx, a)
	if r := got(t, u.recalled, "the return"); r != read {
		t.Errorf("%+v", r)
	}
	for end := time.Now().Add(10 * time.Second); s.four.State().Counts().Opens != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", s.four.State().Counts())
		}
	}
	must(t, c.Close())
	if n := s.four.State().Counts(); n.Opens != 0 || n.Delegations != 0 || n.Clients != 0 {
		t.Errorf("%+v", n)
	}
}

// TestDelegationLost: a client that does not answer a recall loses the delegation after a lease,
// and cannot write what it has cached. Data that it writes without the delegation goes on.
func TestDelegationLost(t *testing.T) {
	s := newServer(t)
	var mu sync.Mutex
	now := time.Now()
	s.cfg.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	s.restart()
	pass := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) }
	other := s.client()
	h := s.object(other, "/data/f", []byte("data"))
	c, u := s.caching()
	ctx := context.Background()
	d, release := s.delegated(c, h, ShareBoth)
	hang := make(chan struct{})
	back := func(*Delegation) { <-hang }
	u.back.Store(&back)
	opened := make(chan error, 1)
	go func() {
		_, err := other.OpenHandle(ctx, h, ShareRead)
		opened <- err
	}()
	for done := false; !done; {
		pass(5 * time.Second)
		must(t, four(t, c).do(ctx, &compound4{})) // it renews its lease, and does not return the delegation
		select {
		case err := <-opened:
			must(t, err)
			done = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	must(t, four(t, c).do(ctx, &compound4{})) // its reply has the flag
	if l := got(t, u.lost, "the loss"); l != d || !d.Lost() || d.Valid() {
		t.Errorf("%+v", l)
	}
	close(hang)
	if _, err := c.Write(d.Under(ctx), h, []byte("x"), 0, blockstore.FileSync); !errors.Is(err, ErrDelegationLost) {
		t.Errorf("a write under the delegation: %v", err)
	}
	_, err := c.Write(ctx, h, []byte("x"), 0, blockstore.FileSync)
	must(t, err)
	must(t, release())
	if st := c.Stats(); st.LostDelegations != 1 {
		t.Errorf("%+v", st)
	}
}

// TestRecallOvertakesOpen: the server recalls a delegation before the client has the reply to its
// OPEN. The client returns it when the reply comes.
func TestRecallOvertakesOpen(t *testing.T) {
	s := newServer(t)
	other := s.client()
	h := s.object(other, "/data/f", []byte("data"))
	ctx := context.Background()
	var table atomic.Pointer[opens]
	var overtaken atomic.Bool
	ended := make(chan error, 1000)
	c, u := s.cachingOf(s.meddled(Version42, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		_, n := opsOf(r)
		err, o := call(r), table.Load()
		if n != 4 || o == nil || overtaken.Load() { // SEQUENCE, PUTFH, OPEN, GETATTR
			return err
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			release, err := other.OpenHandle(ctx, h, ShareWrite)
			if err == nil {
				err = release()
			}
			ended <- err
		}()
		for {
			o.mu.Lock()
			early := len(o.early) > 0
			o.mu.Unlock()
			select {
			case <-done:
				return err
			case <-time.After(time.Millisecond):
			}
			if early {
				overtaken.Store(true)
				return err
			}
		}
	}))
	table.Store(four(t, c).opens)
	for end := time.Now().Add(20 * time.Second); !overtaken.Load(); {
		release, err := c.OpenHandle(ctx, h, ShareRead)
		must(t, err)
		must(t, release())
		must(t, got(t, ended, "the other open"))
		if time.Now().After(end) {
			t.Fatal("no recall overtakes a reply")
		}
	}
	if d := got(t, u.recalled, "the recall"); d.Valid() || d.Lost() {
		t.Errorf("%+v", d)
	}
}

// TestDelegationsAreFew: a client returns delegations that it has used least when the server asks
// it to keep fewer.
func TestDelegationsAreFew(t *testing.T) {
	s := newServer(t)
	c, u := s.caching()
	var all []*Delegation
	for _, name := range []string{"a", "b", "c", "d"} {
		d, release := s.delegated(c, s.object(c, "/data/"+name, []byte(name)), ShareRead)
		if name != "a" {
			must(t, release())
		}
		all = append(all, d)
	}
	four(t, c).opens.recallAny(2, nfs4.BitmapOf(kindRead, kindWrite))
	gone := map[*Delegation]bool{got(t, u.recalled, "a return"): true, got(t, u.recalled, "a return"): true}
	if !gone[all[1]] || !gone[all[2]] || !all[0].Valid() || !all[3].Valid() {
		t.Errorf("%v of %v", gone, all)
	}
}

// TestLockNotified: a client that waits for a lock is called when the lock is free.
func TestLockNotified(t *testing.T) {
	s := newServer(t)
	c, other := s.client(), s.client()
	put(t, c, "/data/f", []byte("data"))
	ctx := context.Background()
	f, err := c.OpenShare(ctx, "/data/f", ShareBoth, 0)
	must(t, err)
	g, err := other.OpenShare(ctx, "/data/f", ShareBoth, 0)
	must(t, err)
	for end := time.Now().Add(20 * time.Second); other.Stats().Notified == 0; {
		must(t, f.TryLock(0, 10, true))
		locked := make(chan error, 1)
		go func() { locked <- g.Lock(ctx, 0, 10, true) }()
		time.Sleep(50 * time.Millisecond) // the request waits in the queue of the server
		must(t, f.Unlock(0, 10))
		must(t, got(t, locked, "the lock"))
		must(t, g.Unlock(0, 10))
		// Until the client has answered its first callback the server does not promise to call, and an
		// open has the promise of its OPEN.
		must(t, g.Close())
		g, err = other.OpenShare(ctx, "/data/f", ShareBoth, 0)
		must(t, err)
		if time.Now().After(end) {
			t.Fatal("the client polls")
		}
	}
}
