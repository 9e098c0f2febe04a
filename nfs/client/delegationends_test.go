package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestReactionFails: the TEST_STATEID after a flag fails once. The client tests again although no
// reply has a flag any more, because it has freed the stateid meanwhile, and its other delegation is
// valid then.
func TestReactionFails(t *testing.T) {
	s := newServer(t)
	pass := s.ticking()
	other := s.client()
	a, b := s.object(other, "/data/a", []byte("a")), s.object(other, "/data/b", []byte("b"))
	var failing atomic.Bool
	c, u := s.cachingOf(s.meddled(Version42, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		if secondOf(r) == nfs4.OpTestStateID && failing.CompareAndSwap(true, false) {
			return errors.New("broken on purpose")
		}
		return call(r)
	}))
	ctx := context.Background()
	first, _ := s.delegated(c, a, ShareBoth)
	second, _ := s.delegated(c, b, ShareRead)
	s.revoke(c, other, u, a, pass)
	x := four(t, c).current()
	failing.Store(true)
	// A WRITE under the delegation shows the loss, before any flag.
	if _, err := c.Write(first.Under(ctx), a, []byte("x"), 0, blockstore.FileSync); !errors.Is(err, ErrDelegationLost) {
		t.Fatal(err)
	}
	x.doubt.Store(true)
	x.reactions.mu.Lock()
	x.reactions.since = time.Time{}
	x.reactions.mu.Unlock()
	four(t, c).flagged(x, statusRecallRevoked, time.Now())
	await(t, "the second delegation to be valid", func() bool {
		return !failing.Load() && four(t, c).current() == x && second.Valid()
	})
	await(t, "the stateid to be freed", func() bool { return s.revoked() == 0 })
}

// TestReturnIsNotALoss: a test of the stateids is under way while the server executes a DELEGRETURN,
// whose reply the client does not have yet. The delegation is returned, and not lost.
func TestReturnIsNotALoss(t *testing.T) {
	s := newServer(t)
	h := s.object(s.client(), "/data/f", []byte("data"))
	returned, reply := make(chan struct{}), make(chan struct{})
	var watched atomic.Pointer[Delegation]
	c, u := s.cachingOf(s.meddled(Version42, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		err := call(r)
		if d := watched.Load(); d != nil && err == nil {
			d.o.mu.Lock()
			leaving := d.leaving()
			d.o.mu.Unlock()
			if leaving && s.four.State().Counts().Delegations == 0 && watched.CompareAndSwap(d, nil) {
				close(returned)
				<-reply
			}
		}
		return err
	}))
	ctx := context.Background()
	d, release := s.delegated(c, h, ShareRead)
	watched.Store(d)
	go c.ReturnDelegation(ctx, h)
	got(t, u.recalled, "the return")
	<-returned
	if _, err := four(t, c).opens.freeRevoked(ctx, four(t, c).current()); err != nil {
		t.Error(err)
	}
	if d.Lost() {
		t.Error("the delegation is lost")
	}
	close(reply)
	<-d.over
	if st := c.Stats(); st.LostDelegations != 0 || st.Returned != 1 || d.Lost() {
		t.Errorf("%+v", st)
	}
	must(t, release())
}
