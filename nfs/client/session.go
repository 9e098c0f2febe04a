package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Delays between attempts to connect again. The first attempt comes at once: a restarted server may
// be reachable already.
const (
	backoffFirst = 20 * time.Millisecond
	backoffMax   = 2 * time.Second
)

// session is a set of connections to a server. It replaces a connection that is lost, and sends the
// calls in flight again with their XIDs. The server's duplicate request cache then recognizes those
// that it has executed (RFC 1813 section 4.5; RFC 8166 section 3.3.3 on retransmission). It is no
// session of NFS version 4: that is session4.
type session struct {
	peer string
	dial func(context.Context) (rpc.Client, error)
	// giveUp bounds how long a call waits without a connection.
	giveUp time.Duration

	xid        atomic.Uint32
	reconnects atomic.Uint64
	resent     atomic.Uint64
	waited     atomic.Int64 // nanoseconds of all calls

	ctx  context.Context // for background attempts; ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // the background attempts

	mu       sync.Mutex
	most     int // connections at once
	links    []*link
	memory   map[*Memory]struct{}
	enrolled uint64                                  // counts additions to memory
	onDial   func(context.Context, rpc.Client) error // called for every new connection before its first use
	dialing  chan struct{}                           // closed when the current attempt has ended; nil: there is none
	err      error                                   // of the last attempt
	notAgain time.Time                               // no attempt to add a connection before this time
	closed   bool

	calls callbacks // of the server
}

// newSession makes a session of at most the number most of connections.
func newSession(peer string, most int, giveUp time.Duration, dial func(context.Context) (rpc.Client, error)) *session {
	s := &session{peer: peer, most: max(most, 1), dial: dial, giveUp: giveUp}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.xid.Store(rand.Uint32())
	return s
}

// Call sends r. If the connection is lost, it sends r again over another one, until r is answered,
// ctx ends, or there was no connection for giveUp. If there has never been a connection, Call
// returns the error of the first attempt at once.
func (s *session) Call(ctx context.Context, r *rpc.Request) error {
	if r.XID == 0 {
		r.XID = s.nextXID()
	}
	var lost time.Time
	wait, after, losses := time.Duration(0), uint64(0), 0
	for sent := 0; ; {
		l, err := s.get(ctx, after)
		if err == nil {
			if sent > 0 {
				s.resent.Add(1)
			}
			sent++
			begin := time.Now()
			err = l.conn.Call(ctx, r)
			s.put(l)
			s.waited.Add(int64(time.Since(begin)))
			if err == nil {
				return nil
			}
			var gone *rpc.ConnError
			if !errors.As(err, &gone) {
				return err
			}
			s.drop(l.conn)
			if r.Vers != nfs4.Version {
				// A server recognizes a call by its XID only on a newer connection: on an older one
				// the XID can be that of another call. In version 4 the slot of the session
				// identifies the call.
				after = l.since
			}
			if lost.IsZero() {
				lost = time.Now()
			}
			if losses++; losses <= s.most {
				continue // at once: another may be there, or all are lost and the server was restarted
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
