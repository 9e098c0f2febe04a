package nlm

import (
	"context"
	"net/netip"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// poll calls lock.Table.Retry once a second while requests wait: the host does not report when one
// of its programs unlocks a file. At most one goroutine polls.
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

// granted calls GRANTED of a client that has waited for a lock and now has it. If the client does
// not answer, or refuses the lock because its process has stopped waiting, the server unlocks it.
// The client would never send UNLOCK for such a lock.
func (s *Server) granted(ctx context.Context, g *grant) {
	st := Failed
	call := func() error {
		return s.call(ctx, callTries, g.who.Addr, Program, Version, ProcGranted, func(e *xdr.Encoder) {
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

// answer sends the answer to a _MSG: a call to its sender, on a goroutine. After a _MSG by UDP it
// tries only once, because the source address can be forged.
func (s *Server) answer(peer *rpc.Peer, proc uint32, args func(*xdr.Encoder)) {
	to, tries := peer.Addr.Addr(), callTries
	if peer.Transport == rpc.TransportUDP {
		tries = 1
	}
	s.mu.Lock()
	all := 0
	for _, n := range s.answers {
		all += n
	}
	full := all >= answersMax || s.answers[to] >= answersHost
	if !full {
		s.answers[to]++
	}
	s.mu.Unlock()
	if full {
		s.log.Debug("a lock message gets no answer: too many are under way", "client", to.String())
		return
	}
	s.background(func(ctx context.Context) {
		if err := s.call(ctx, tries, to, Program, Version, proc, args, nil); err != nil {
			s.log.Debug("answering a lock message", "client", to.String(), "error", err.Error())
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.answers[to]--; s.answers[to] == 0 {
			delete(s.answers, to)
		}
	})
}

// call calls a procedure of a client. It tries at most tries times, and waits a second longer after
// each failure.
func (s *Server) call(
	parent context.Context, tries int, host netip.Addr, prog, vers, proc uint32,
	args func(*xdr.Encoder), res func(*xdr.Decoder) error,
) error {
	var err error
	for i := range tries {
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
