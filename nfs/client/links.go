package client

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// link is one connection of a session.
type link struct {
	conn  rpc.Client
	since uint64 // how many connections the session had made when this one was made; 1 for the first
	calls int    // in flight; guarded by session.mu
}

// hook makes get call f for every new connection before its first use. If f fails, the connection
// is closed.
func (s *session) hook(f func(context.Context, rpc.Client) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onDial = f
}

func (s *session) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// connections returns the connections that are there now.
func (s *session) connections() (list []rpc.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open()
}

// open is connections. mu is held.
func (s *session) open() (list []rpc.Client) {
	for _, l := range s.links {
		list = append(list, l.conn)
	}
	return list
}

// get returns the connection with the fewest calls in flight, among those whose number (link.since)
// is above after. If there is none, get makes one. Only one attempt runs at a time; other calls
// without a connection wait for its outcome. The caller calls put when its call has ended.
func (s *session) get(ctx context.Context, after uint64) (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return nil, &rpc.ConnError{Peer: s.peer, Err: rpc.ErrClosed}
		case s.idlest(after) != nil:
			l := s.idlest(after)
			if l.calls > 0 {
				s.another()
			}
			l.calls++
			return l, nil
		case s.dialing == nil:
			s.dialing = make(chan struct{})
			hook := s.onDial
			s.mu.Unlock()
			if err := s.made(s.complete(ctx, hook)); err != nil {
				return nil, err
			}
		default:
			done := s.dialing
			s.mu.Unlock()
			select {
			case <-done:
				s.mu.Lock()
			case <-ctx.Done():
				s.mu.Lock()
				return nil, ctx.Err()
			}
			if s.idlest(after) == nil && s.err != nil && s.dialing == nil && !errors.Is(s.err, context.Canceled) {
				return nil, s.err
			}
		}
	}
}

// idlest returns the connection with the fewest calls in flight, among those whose number is above
// after, or nil. mu is held.
func (s *session) idlest(after uint64) (least *link) {
	for _, l := range s.links {
		if l.since > after && (least == nil || l.calls < least.calls) {
			least = l
		}
	}
	return least
}

// put ends the use of a connection by a call.
func (s *session) put(l *link) {
	s.mu.Lock()
	l.calls--
	s.mu.Unlock()
}

// made ends an attempt to connect, and wakes the calls that wait for it. mu is held.
func (s *session) made(c rpc.Client, err error) error {
	close(s.dialing)
	s.dialing, s.err = nil, err
	if err != nil {
		return err
	}
	since := s.reconnects.Add(1)
	if s.closed {
		s.mu.Unlock()
		_ = c.Close()
		s.mu.Lock()
		return nil
	}
	s.links = append(s.links, &link{conn: c, since: since})
	return nil
}

// addTime bounds an attempt to make one more connection. After a failure the client waits for
// addAgain before the next attempt. Meanwhile it uses the connections that it has.
const (
	addTime  = 30 * time.Second
	addAgain = 10 * time.Second
)

// another makes one more connection in the background, if the session may have one more. The caller
// has found all others in use. mu is held.
func (s *session) another() {
	if len(s.links) >= s.most || s.dialing != nil || time.Now().Before(s.notAgain) {
		return
	}
	s.dialing = make(chan struct{})
	hook := s.onDial
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, addTime)
		defer cancel()
		if s.made(s.complete(ctx, hook)) != nil {
			s.notAgain = time.Now().Add(addAgain)
		}
		s.mu.Unlock()
	})
}

// complete makes a connection, calls hook for it, and registers all memory with it. It returns with
// mu held, so that a call that registers memory from then on finds the connection.
func (s *session) complete(ctx context.Context, hook func(context.Context, rpc.Client) error) (rpc.Client, error) {
	c, has, err := s.connect(ctx, hook)
	for {
		s.mu.Lock()
		if err != nil || has == s.enrolled {
			return c, err
		}
		s.mu.Unlock()
		if has, err = s.attachAll(c); err != nil {
			_ = c.Close()
		}
		if errors.Is(err, rpc.ErrNotForDMABufs) {
			c, has, err = s.connect(ctx, hook)
		}
	}
}

// connect makes a connection and registers the memory that is enrolled by then.
func (s *session) connect(ctx context.Context, hook func(context.Context, rpc.Client) error) (c rpc.Client,
	enrolled uint64, err error,
) {
	for {
		if s.hasDMABufs() {
			ctx = rpc.WithDMABufs(ctx)
		}
		if c, err = s.dial(rpc.WithBackward(ctx, s.calls.receive)); err != nil {
			return nil, 0, err
		}
		enrolled, err = s.attachAll(c)
		if err == nil && hook != nil {
			err = hook(ctx, c)
		}
		if err == nil {
			return c, enrolled, nil
		}
		_ = c.Close()
		if !errors.Is(err, rpc.ErrNotForDMABufs) || rpc.ForDMABufs(ctx) {
			return nil, 0, err
		}
		// Meanwhile the first memory of another device was enrolled. This connection cannot
		// register it.
	}
}

// drop closes a connection that is lost, or that cannot register the memory of the client.
func (s *session) drop(c rpc.Client) {
	s.mu.Lock()
	before := len(s.links)
	s.links = slices.DeleteFunc(s.links, func(l *link) bool { return l.conn == c })
	mine := len(s.links) < before
	s.mu.Unlock()
	if mine {
		_ = c.Close()
	}
}

// Close ends the connections and all calls.
func (s *session) Close() error {
	s.mu.Lock()
	list := s.open()
	s.links, s.closed = nil, true
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
	var errs []error
	for _, c := range list {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
