package nlm

import (
	"context"
	"net/netip"
	"time"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// poll tries the waiting requests again as long as there are any: the host does not say when one of
// its programs unlocks a file. At most one goroutine polls.
func (s *Server) poll() {
	if !s.cfg.Locks.OnHost() || !s.polling.CompareAndSwap(false, true) {
		return
	}
	s.background(func(ctx context.Context) {
		t := time.NewTicker(s.pollEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-ctx.Done():
				s.polling.Store(false)
				return
			}
			if s.cfg.Locks.Retry() > 0 {
				continue
			}
			s.polling.Store(false)
			// A request may have begun to wait before polling was false, and started no goroutine.
			if _, waiting := s.cfg.Locks.Count(); waiting == 0 || !s.polling.CompareAndSwap(false, true) {
				return
			}
		}
	})
}

// notifyGranted sends GRANTED on a goroutine. It does not wait, as lock.Waiter.Granted must not.
func (s *Server) notifyGranted(g *grant) {
	s.mu.Lock()
	s.grants[g] = struct{}{}
	s.mu.Unlock()
	s.background(func(ctx context.Context) { s.granted(ctx, g) })
}

// granted calls GRANTED of a client that has waited for a lock. If the client does not answer, or
// refuses the lock because its process has stopped waiting, the server unlocks it: no other call
// would.
func (s *Server) granted(ctx context.Context, g *grant) {
	st := Failed
	call := func() error {
		return s.call(ctx, g.who.Addr, Program, Version, ProcGranted, func(e *xdr.Encoder) {
			e.Opaque(g.cookie)
			e.Bool(g.have.Exclusive)
			EncodeLock(e, &g.lock)
		}, func(d *xdr.Decoder) error {
			d.Opaque(stringMax)
			st = Stat(d.Uint32())
			return d.Err()
		})
	}
	err := call()
	if err == nil && st != Granted {
		// GRANTED may have overtaken the reply of LOCK.
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
		}
		err = call()
	}
	if ctx.Err() != nil && (err != nil || st != Granted) {
		return // paused: Pause(false), or the successor, calls again
	}
	s.mu.Lock()
	delete(s.grants, g)
	s.mu.Unlock()
	if err == nil && st == Granted {
		return
	}
	if err != nil {
		s.log.Warn("a client could not be notified of the lock that it waited for; the next waiter gets it",
			"client", g.who.Name, "addr", g.who.Addr.String(), "error", err.Error())
	}
	s.cfg.Locks.Unlock(g.file, g.have.Owner, g.have.Start, g.have.End)
}

// call calls a client, up to callTries times.
func (s *Server) call(
	parent context.Context, host netip.Addr, prog, vers, proc uint32,
	args func(*xdr.Encoder), res func(*xdr.Decoder) error,
) error {
	var err error
	for i := range callTries {
		if i > 0 {
			select {
			case <-time.After(time.Duration(i) * time.Second):
			case <-parent.Done():
				return parent.Err()
			}
		}
		ctx, cancel := context.WithTimeout(parent, callLimit)
		err = s.cfg.Call(ctx, host, prog, vers, proc, args, res)
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}
