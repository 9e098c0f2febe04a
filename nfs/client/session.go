package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Delays between attempts to connect again. The first attempt has no delay: a server that was
// restarted is reachable at once.
const (
	backoffFirst = 20 * time.Millisecond
	backoffMax   = 2 * time.Second
)

// session is a connection to a server that is made again whenever it is lost. It sends calls
// that were in flight again with their XIDs, so that the server's duplicate request cache
// recognises those that it has executed (RFC 1813 section 4.5; RFC 8166 section 3.3.3 on
// retransmission). It is no session of NFS version 4: that is session4.
type session struct {
	peer string
	dial func(context.Context) (rpc.Client, error)
	// giveUp bounds how long a call waits without a connection.
	giveUp time.Duration

	xid        atomic.Uint32
	reconnects atomic.Uint64
	resent     atomic.Uint64
	waited     atomic.Int64 // nanoseconds of all calls

	mu       sync.Mutex
	conn     rpc.Client
	memory   map[*Memory]struct{}
	enrolled uint64                                  // counts additions to memory
	onDial   func(context.Context, rpc.Client) error // of every new connection, before it is used
	dialing  chan struct{}                           // closed when the current attempt has ended; nil: there is none
	err      error                                   // of the last attempt
	closed   bool
}

func newSession(peer string, giveUp time.Duration, dial func(context.Context) (rpc.Client, error)) *session {
	s := &session{peer: peer, dial: dial, giveUp: giveUp}
	s.xid.Store(rand.Uint32())
	return s
}

// Call sends r. When the connection is lost it sends r again over a new one, until r is
// answered, ctx ends, or there was no connection for giveUp. If there has never been a
// connection it returns the error of the first attempt at once.
func (s *session) Call(ctx context.Context, r *rpc.Request) error {
	if r.XID == 0 {
		r.XID = s.nextXID()
	}
	var lost time.Time
	wait := time.Duration(0)
	for sent := 0; ; {
		c, err := s.get(ctx)
		if err == nil {
			if sent > 0 {
				s.resent.Add(1)
			}
			sent++
			begin := time.Now()
			err = c.Call(ctx, r)
			s.waited.Add(int64(time.Since(begin)))
			if err == nil {
				return nil
			}
			var gone *rpc.ConnError
			if !errors.As(err, &gone) {
				return err
			}
			s.drop(c)
			if lost.IsZero() {
				lost = time.Now()
				continue // at once: the server may have been restarted
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.isClosed() {
			return err // Close has ended the connection
		}
		if lost.IsZero() {
			if s.reconnects.Load() == 0 {
				return err // there has never been a connection
			}
			lost = time.Now()
		}
		if time.Since(lost) > s.giveUp {
			return fmt.Errorf("%s has not answered for %v: %w", s.peer, s.giveUp, err)
		}
		wait = min(max(2*wait, backoffFirst), backoffMax)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// nextXID returns a new XID. 0 stands for none.
func (s *session) nextXID() uint32 {
	for {
		if x := s.xid.Add(1); x != 0 {
			return x
		}
	}
}

// hook makes get call f with every new connection before it is used. A connection for which f
// fails is closed.
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

// connected reports whether there is a connection.
func (s *session) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil
}

// get returns the connection, and makes one if there is none. Only one attempt runs at a time.
// Calls that come meanwhile wait for its outcome.
func (s *session) get(ctx context.Context) (rpc.Client, error) {
	s.mu.Lock()
	for {
		switch {
		case s.closed:
			s.mu.Unlock()
			return nil, &rpc.ConnError{Peer: s.peer, Err: rpc.ErrClosed}
		case s.conn != nil:
			c := s.conn
			s.mu.Unlock()
			return c, nil
		case s.dialing == nil:
			done := make(chan struct{})
			s.dialing = done
			hook := s.onDial
			s.mu.Unlock()
			c, err := s.complete(ctx, hook)
			s.dialing, s.err = nil, err
			close(done)
			if err != nil {
				s.mu.Unlock()
				return nil, err
			}
			s.reconnects.Add(1)
			if s.closed {
				s.mu.Unlock()
				_ = c.Close()
				s.mu.Lock()
				continue
			}
			s.conn = c
		default:
			done := s.dialing
			s.mu.Unlock()
			select {
			case <-done:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			s.mu.Lock()
			if s.conn == nil && s.err != nil && s.dialing == nil && !errors.Is(s.err, context.Canceled) {
				err := s.err
				s.mu.Unlock()
				return nil, err
			}
		}
	}
}

// complete makes a connection with which hook was called and all memory is registered. It
// returns with mu held, so that a call that registers memory from then on finds the connection.
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
		if c, err = s.dial(ctx); err != nil {
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
		// The first memory of another device was enrolled meanwhile, for which this connection was not
		// made.
	}
}

// drop closes a connection that is lost, or was not made for the memory of the client.
func (s *session) drop(c rpc.Client) {
	s.mu.Lock()
	mine := s.conn == c
	if mine {
		s.conn = nil
	}
	s.mu.Unlock()
	if mine {
		_ = c.Close()
	}
}

// Close ends the connection and all calls.
func (s *session) Close() error {
	s.mu.Lock()
	c := s.conn
	s.conn, s.closed = nil, true
	s.mu.Unlock()
	if c != nil {
		return c.Close()
	}
	return nil
}
