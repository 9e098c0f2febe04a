package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ticking makes the clock of a server go by hand.
func (s *server) ticking() (pass func(time.Duration)) {
	var mu sync.Mutex
	now := time.Now()
	s.cfg.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	s.restart()
	return func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) }
}

// revoke has other open a file while c does not answer its recall, until the server has revoked the
// delegation of c. c renews its lease until then, and makes no call afterwards.
func (s *server) revoke(c, other *Client, u *cache, h Handle, pass func(time.Duration)) (opened func() error) {
	s.t.Helper()
	ctx := context.Background()
	deaf := make(chan struct{})
	s.t.Cleanup(func() { close(deaf) })
	back := func(*Delegation) { <-deaf }
	u.back.Store(&back)
	type result struct {
		release func() error
		err     error
	}
	done := make(chan result, 1)
	go func() {
		release, err := other.OpenHandle(ctx, h, ShareBoth)
		done <- result{release, err}
	}()
	for {
		select {
		case r := <-done:
			must(s.t, r.err)
			u.back.Store(nil)
			return r.release
		case <-time.After(20 * time.Millisecond):
		}
		pass(5 * time.Second)
		must(s.t, four(s.t, c).do(ctx, &compound4{}))
	}
}

// TestRevokedWrite: the first call of a client after the server has revoked its delegation is a
// WRITE of data that it had cached. Its session and its open live on, but the server refuses the
// WRITE, so that what another client wrote meanwhile stays. Data that a program writes now is
// written.
func TestRevokedWrite(t *testing.T) {
	s := newServer(t)
	pass := s.ticking()
	other := s.client()
	h := s.object(other, "/data/f", []byte("old"))
	c, u := s.caching()
	ctx := context.Background()
	d, release := s.delegated(c, h, ShareBoth)
	opened := s.revoke(c, other, u, h, pass)
	_, err := other.Write(ctx, h, []byte("newer"), 0, blockstore.FileSync)
	must(t, err)
	if _, err := c.Write(d.Under(ctx), h, []byte("stale"), 0, blockstore.FileSync); !errors.Is(err, ErrDelegationLost) {
		t.Errorf("a write under the delegation: %v", err)
	}
	b := make([]byte, 10)
	if n, _, err := other.Read(ctx, h, b, 0); err != nil || string(b[:n]) != "newer" {
		t.Errorf("%q, %v", b[:n], err)
	}
	if l := got(t, u.lost, "the loss"); l != d || !d.Lost() {
		t.Errorf("%+v", l)
	}
	must(t, c.SetAttr(ctx, h, &blockstore.SetAttr{Size: new(uint64(2))}, nil))
	_, err = c.Write(ctx, h, []byte("x"), 2, blockstore.FileSync)
	must(t, err)
	if n, _, err := other.Read(ctx, h, b, 0); err != nil || string(b[:n]) != "nex" {
		t.Errorf("%q, %v", b[:n], err)
	}
	must(t, opened())
	must(t, release())
	await(t, "the stateid to be freed", func() bool { return s.revoked() == 0 })
}

// TestRevokedSize: a SETATTR of the size is the first call after the revocation.
func TestRevokedSize(t *testing.T) {
	s := newServer(t)
	pass := s.ticking()
	other := s.client()
	h := s.object(other, "/data/f", []byte("data"))
	c, u := s.caching()
	d, release := s.delegated(c, h, ShareBoth)
	opened := s.revoke(c, other, u, h, pass)
	must(t, c.SetAttr(context.Background(), h, &blockstore.SetAttr{Size: new(uint64(2))}, nil))
	if !d.Lost() {
		t.Error("the SETATTR has another stateid")
	}
	must(t, opened())
	must(t, release())
}

// TestUnchanged: a WRITE that needs the file as it was changes nothing if the file has changed.
func TestUnchanged(t *testing.T) {
	s := newServer(t)
	c, ctx := s.client(), context.Background()
	h := s.object(c, "/data/f", []byte("data"))
	a, err := c.GetAttr(ctx, h)
	must(t, err)
	_, err = c.Write(Unchanged(ctx, a.Ctime), h, []byte("1"), 0, blockstore.FileSync)
	must(t, err)
	_, err = c.Write(Unchanged(ctx, a.Ctime), h, []byte("2"), 1, blockstore.FileSync)
	if !IsStatus(err, nfs.ErrNotSync) {
		t.Error(err)
	}
	b := make([]byte, 10)
	if n, _, err := c.Read(ctx, h, b, 0); err != nil || string(b[:n]) != "1ata" {
		t.Errorf("%q, %v", b[:n], err)
	}
}

// revoked is the number of delegations that the server has revoked and whose stateids are not
// freed.
func (s *server) revoked() (n int) {
	for _, c := range s.four.State().Clients(s.cfg.Now()) {
		n += c.Revoked
	}
	return n
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s", what)
		}
	}
}

// TestSecondRevocation: the server revokes a second delegation before it has dropped its flag for
// the first one, because the FREE_STATEID of the first one is on its way.
func TestSecondRevocation(t *testing.T) {
	s := newServer(t)
	pass := s.ticking()
	other := s.client()
	var hold atomic.Pointer[chan struct{}]
	var held atomic.Bool
	c, u := s.cachingOf(s.meddled(Version42, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		if wait := hold.Load(); wait != nil && secondOf(r) == nfs4.OpFreeStateID {
			held.Store(true)
			<-*wait
		}
		return call(r)
	}))
	ctx := context.Background()
	a, b := s.object(other, "/data/a", []byte("a")), s.object(other, "/data/b", []byte("b"))
	first, _ := s.delegated(c, a, ShareBoth)
	second, _ := s.delegated(c, b, ShareBoth)
	wait := make(chan struct{})
	hold.Store(&wait)
	s.revoke(c, other, u, a, pass)
	must(t, four(t, c).do(ctx, &compound4{})) // its reply has the flag
	await(t, "FREE_STATEID", held.Load)
	s.revoke(c, other, u, b, pass)
	must(t, four(t, c).do(ctx, &compound4{}))
	if second.Valid() {
		t.Error("a delegation is valid while the client tests its stateids")
	}
	close(wait)
	for range 2 {
		if d := got(t, u.lost, "the loss"); d != first && d != second {
			t.Errorf("%+v", d)
		}
	}
	await(t, "both stateids to be freed", func() bool { return s.revoked() == 0 })
}

// TestFreeFails: the first FREE_STATEID of a revoked delegation fails without an answer of the
// server. The client repeats it.
func TestFreeFails(t *testing.T) {
	s := newServer(t)
	pass := s.ticking()
	other := s.client()
	var failed atomic.Bool
	c, u := s.cachingOf(s.meddled(Version42, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		if secondOf(r) == nfs4.OpFreeStateID && !failed.Swap(true) {
			return errResults
		}
		return call(r)
	}))
	h := s.object(other, "/data/f", []byte("data"))
	s.delegated(c, h, ShareBoth)
	s.revoke(c, other, u, h, pass)
	must(t, four(t, c).do(context.Background(), &compound4{})) // its reply has the flag
	got(t, u.lost, "the loss")
	await(t, "the stateid to be freed", func() bool { return failed.Load() && s.revoked() == 0 })
}

// secondOf is the second operation of a call, if the first one is SEQUENCE.
func secondOf(r *rpc.Request) uint32 {
	if first, n := opsOf(r); first != nfs4.OpSequence || n < 2 {
		return 0
	}
	var e xdr.Encoder
	r.Args(&e)
	d := xdr.NewDecoder(e.AppendFlat(nil))
	d.Skip(4 + 4 + 4 + 4 + 16 + 4*4) // tag, minor version, count; SEQUENCE and its arguments
	return d.Uint32()
}

// TestReactions: what flags make the client do. The flag stays up in between.
func TestReactions(t *testing.T) {
	var r reactions
	var doubt atomic.Bool
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	check := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v instead of %v", what, got, want)
		}
	}
	check("the first flag", r.flagged(statusRecallRevoked, at(0), &doubt), true)
	check("another reply", r.flagged(statusRecallRevoked, at(1), &doubt), false)
	check("doubt", doubt.Load(), true)
	check("flags", r.next(), uint32(statusRecallRevoked))
	r.flagged(statusRecallRevoked, at(5), &doubt) // of the TEST_STATEID
	r.done(statusRecallRevoked, true, true, at(10), &doubt)
	check("doubt", doubt.Load(), false)
	r.flagged(statusRecallRevoked, at(9), &doubt)
	check("doubt by a reply from before", doubt.Load(), false)
	r.flagged(statusRecallRevoked, at(11), &doubt)
	check("doubt by the second revocation", doubt.Load(), true)
	check("flags", r.next(), uint32(statusRecallRevoked))
	r.flagged(statusPathDown, at(15), &doubt) // another flag comes meanwhile
	wait := r.done(statusRecallRevoked, true, false, at(20), &doubt)
	check("doubt after a failure", doubt.Load(), true)
	check("the wait after a failure", wait, reactionPauseFirst)
	check("flags after a failure", r.next(), uint32(statusRecallRevoked|statusPathDown))
	check("the wait", r.done(statusRecallRevoked, true, true, at(21), &doubt), time.Duration(0))
	check("doubt after the repetition", doubt.Load(), false)
	check("flags", r.next(), uint32(0))
	check("flags later", r.flagged(statusRecallRevoked, at(22), &doubt), true)
	pause := time.Duration(0)
	for ms := 22; ms < 60_000; {
		r.next()
		r.done(statusRecallRevoked, false, true, at(ms), &doubt)
		check("flags", r.next(), uint32(0))
		check("flags at once", r.flagged(statusRecallRevoked, at(ms+1), &doubt), false)
		begin := ms
		for !r.flagged(statusRecallRevoked, at(ms), &doubt) {
			ms += 10
		}
		pause = time.Duration(ms-begin) * time.Millisecond
	}
	check("the pause", pause, reactionPauseMax)
	for range 20 {
		r.flagged(statusReclaimNeeded, at(1e6), &doubt)
		wait = r.done(r.next(), false, false, at(0), &doubt)
	}
	check("the wait after many failures", wait, reactionFailedMax)
	check("doubt after many failures", doubt.Load(), true)
}

// TestRecoveringIsNotValid: a server that has lost the state of a client is called while the client
// recovers. The delegation is not valid meanwhile.
func TestRecoveringIsNotValid(t *testing.T) {
	s := newServer(t)
	other := s.client()
	h := s.object(other, "/data/f", []byte("data"))
	var watched atomic.Pointer[Delegation]
	var bad atomic.Int32
	c, u := s.cachingOf(s.meddled(Version42, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		err := call(r)
		if d := watched.Load(); d != nil && err == nil && d.Valid() {
			bad.Add(1)
		}
		return err
	}))
	ctx := context.Background()
	d, _ := s.delegated(c, h, ShareBoth)
	_ = s.ports.Close()
	s.rpc.Close()
	s.known = nil
	s.start()
	s.listen(s.addr)
	_, err := other.GetAttr(ctx, h)
	must(t, err)
	must(t, c.Null(ctx))                     // connects again
	four(t, c).abandon(four(t, c).current()) // as BADSESSION does
	watched.Store(d)
	_, err = c.GetAttr(ctx, h)
	must(t, err)
	if l := got(t, u.lost, "the loss"); l != d {
		t.Errorf("%+v", l)
	}
	if n := bad.Load(); n > 0 {
		t.Errorf("the delegation was valid after %d calls", n)
	}
}

// TestCallbackSize: CB_GETATTR is answered with the size that programs see, also if the server has
// all data: it can be another than at the grant.
func TestCallbackSize(t *testing.T) {
	s := newServer(t)
	h := s.object(s.client(), "/data/f", []byte("data"))
	c, u := s.caching()
	d, _ := s.delegated(c, h, ShareBoth)
	u.size.Store(9)
	if change, size, st := four(t, c).opens.callbackAttr(h); change != d.change || size != 9 || st != nfs.OK {
		t.Errorf("%d, %d, %v", change, size, st)
	}
}

// TestChores: functions run in order, at most as many at once as allowed, and more than the limit
// do not wait.
func TestChores(t *testing.T) {
	c := chores{most: 2}
	running, order := make(chan int, 10), make(chan struct{})
	for i := range 5 {
		if !c.add(3, func() { running <- i; <-order }) {
			t.Fatal(i)
		}
		if i < 2 {
			got(t, running, "a function")
		}
	}
	if c.add(3, func() {}) {
		t.Error("a fourth function waits")
	}
	for i := 2; i < 5; i++ {
		if len(running) != 0 {
			t.Error("three run at once")
		}
		order <- struct{}{}
		if n := got(t, running, "the next"); n != i {
			t.Errorf("%d runs instead of %d", n, i)
		}
	}
	close(order)
}

// TestUnknownRecallsAreFew: the client takes no more recalls of delegations that it does not know
// than it can remember.
func TestUnknownRecallsAreFew(t *testing.T) {
	s := newServer(t)
	o := four(t, s.client()).opens
	stop := make(chan struct{})
	defer close(stop)
	running := make(chan struct{}, choresMax)
	for range choresMax {
		o.chores.add(0, func() { running <- struct{}{}; <-stop })
	}
	for range choresMax {
		got(t, running, "a function")
	}
	var st nfs.Status
	n := 0
	for ; st == nfs.OK && n < 2*earlyMax; n++ {
		st = o.recall(Handle(fmt.Sprint(n)), state.Stateid{Seq: 1})
	}
	if st != nfs.ErrJukebox || n != earlyMax+1 {
		t.Errorf("%d recalls, %v", n, st)
	}
}
