package client

import (
	"context"
	"time"
)

// renewLater starts the goroutine that renews the lease, if there is none. opens.mu is held.
func (o *opens) renewLater() {
	if !o.renewing && !o.stopped {
		o.renewing = true
		go o.renew()
	}
}

// leasePart is the part of the lease time after which the lease is renewed.
const leasePart = 3

// renew renews the lease while files are open. Every SEQUENCE renews it (RFC 8881 section 8.3).
//
// If the lease expires, the server may end the state of the client. The client then sees one of
// these:
//
//	flags in the reply to a SEQUENCE         the server has revoked some state: see reactions
//	NFS4ERR_BADSESSION, STALE_CLIENTID       the server has ended all state: see session4.recover
//	NFS4ERR_EXPIRED, BAD_STATEID, ...        the server does not know a stateid: see lostState
//
// Opens are opened again. Locks are lost (ErrLockLost), and so are delegations (ErrDelegationLost).
func (o *opens) renew() {
	for {
		lease := 30 * time.Second
		if x := o.s.current(); x != nil && x.lease > 0 {
			lease = x.lease
		}
		t := time.NewTimer(lease / leasePart)
		select {
		case <-t.C:
		case <-o.stop:
			t.Stop()
			return
		}
		o.mu.Lock()
		o.renewing = len(o.byFile) > 0
		idle := !o.renewing
		o.giveIdle()
		o.mu.Unlock()
		if idle {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), lease)
		_ = o.s.do(ctx, &compound4{}) // if the server cannot be reached, the next round tries again
		cancel()
	}
}

// renewed records that the server has answered a SEQUENCE. sent is when it was sent, on the clock
// of package clock. The new lease begins when the server executes the SEQUENCE, so not before sent.
func (o *opens) renewed(x *live, sent time.Time) {
	until := sent.Add(x.lease).UnixNano()
	for {
		old := o.leaseUntil.Load()
		if until <= old || o.leaseUntil.CompareAndSwap(old, until) {
			return
		}
	}
}
