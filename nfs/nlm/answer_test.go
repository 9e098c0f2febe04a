package nlm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestAnswersBounded: hosts that do not answer are called a few times only, however many messages
// have come in their names, and by UDP once for each.
func TestAnswersBounded(t *testing.T) {
	r := newRig(t, nil, 0)
	r.by = rpc.TransportUDP
	var calls atomic.Int32
	hold := make(chan struct{})
	r.s.cfg.Call = func(context.Context, netip.Addr, uint32, uint32, uint32, func(*xdr.Encoder),
		func(*xdr.Decoder) error,
	) error {
		calls.Add(1)
		<-hold
		return errors.New("no answer")
	}
	send := func(host string) {
		r.do(host, Program, ProcUnlockMsg, func(e *xdr.Encoder) {
			e.Opaque([]byte("c"))
			EncodeLock(e, &Lock{Caller: "host", Handle: r.fh, Owner: []byte("o"), Length: 1})
		})
	}
	for range 2 * answersHost {
		send(alice)
	}
	r.s.mu.Lock()
	if n := r.s.answers[netip.MustParseAddr(alice)]; n != answersHost {
		t.Errorf("%d answers to one host are under way", n)
	}
	r.s.mu.Unlock()
	for i := range 2 * answersMax {
		send(fmt.Sprintf("10.0.0.%d", 2+i))
	}
	close(hold)
	r.s.calls.Wait()
	if n := calls.Load(); n != answersMax {
		t.Errorf("%d calls", n)
	}
	send(alice)
	r.s.calls.Wait()
	if n := calls.Load(); n != answersMax+1 || len(r.s.answers) != 0 {
		t.Errorf("%d calls after the others have ended, %v under way", n, r.s.answers)
	}
}

// TestLateRetransmission: a call that arrives again after the next one of the client is not
// executed again.
func TestLateRetransmission(t *testing.T) {
	for _, by := range []rpc.Transport{rpc.TransportUDP, rpc.TransportTCP} {
		r := newRig(t, nil, 0)
		r.by = by
		again := func(xid uint32, a ask) {
			t.Helper()
			last := r.xid.Swap(xid - 1)
			if st := r.ask(a); st != Granted {
				t.Errorf("by %v: %v when it arrives again", by, st)
			}
			r.xid.Store(last)
		}
		held := func() int { n, _ := r.locks.Count(); return n }
		lock := ask{client: alice, proc: ProcLock, pid: 1, n: 10, ex: true}
		unlock := ask{client: alice, proc: ProcUnlock, pid: 1, n: 10}
		r.ask(lock)
		r.ask(unlock)
		if again(1, lock); held() != 0 {
			t.Errorf("by %v: a late LOCK has taken the lock that was released", by)
		}
		r.ask(lock)
		if again(2, unlock); held() != 1 {
			t.Errorf("by %v: a late UNLOCK has released the lock that was taken anew", by)
		}
	}
}
