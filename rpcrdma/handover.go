package rpcrdma

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// snapshot is the quiescent connections of a Listener. Connections go to another process in these
// steps:
//
//	old process                                       new process
//	Pause(true)   messages are postponed
//	Busy, Drop    until all connections are quiescent
//	(the device stops its loops)
//	Export        connections, postponed messages --> Import  restore, receives are posted
//	                                                  (the device starts its loops)
//	                                                  postponed messages are served
//	ends without closing the connections
//
// If the new process fails before the device starts its loops there, the device of the old
// process starts its own again, and then the caller calls Pause(false).
type snapshot struct{ Conns []snapshotConn }

// snapshotConn is one connection. It has no memory: the successor posts receives of its own.
type snapshotConn struct {
	QPN                          uint32
	Peer                         rpc.Peer
	Since                        time.Time
	Established                  bool
	InlineOut                    int
	Receive                      int // longest message that the client may send
	Invalidates                  bool
	Depth                        int
	Grant                        int
	Credits                      int
	Calls, WriteBytes, ReadBytes uint64
	First, Last                  RPC
	Postponed                    [][]byte // messages that arrived while the Listener was paused
}

// Busy is a connection that is not quiescent.
type Busy struct {
	Remote netip.AddrPort
	// Calls wait or are being served. Replies have work requests that the client has not
	// acknowledged. If both are 0 the client is in the middle of a message.
	Calls, Replies int
}

// postponedMsg is a message that was received and not handled yet: its receive, and its length.
type postponedMsg struct{ index, n int }

// Pause with on set postpones the calls that arrive from now on, also on new connections. Their
// number is bounded by the credits. It also postpones calls that wait for memory or for the rate
// limits of their client, because nothing of them has begun. Other calls that arrived before go on.
// Pause with on false serves the postponed calls. Pause must not be called on a loop.
func (l *Listener) Pause(on bool) {
	l.mu.Lock()
	l.paused = on
	l.mu.Unlock()
	l.onLoops(func(c *serverConn) {
		c.paused = on
		if on {
			c.postponeQueued()
			c.throttle.postponeAll()
		} else {
			c.resumePostponed()
		}
	})
}

// postponeQueued turns calls that wait for memory into postponed messages. None of their data has
// been requested.
func (c *serverConn) postponeQueued() {
	if c.dead {
		return
	}
	c.cancelWait()
	for {
		q, a, f := &c.memWait, c.memWait.head, c.memWaitReads.head
		if a == nil && f == nil {
			return
		}
		if a == nil || f != nil && f.order < a.order {
			q = &c.memWaitReads
		}
		s := q.head
		q.pop()
		c.postponeCall(s)
	}
}

// postpone postpones a message while the connection is paused. Replies to calls to the client are
// not postponed: the server waits for them to become quiescent.
func (c *serverConn) postpone(index, n int) bool {
	var h Header
	if !c.paused {
		return false
	}
	if inline, err := h.Parse(c.recvs[index].Buf[:n]); err == nil && h.Type == TypeMsg && rpc.IsReply(inline) {
		return false
	}
	c.postponed = append(c.postponed, postponedMsg{index, n})
	return true
}

// postponeCall turns a call of which nothing has begun into a postponed message, and reverts the
// counters of its arrival.
func (c *serverConn) postponeCall(s *slot) {
	c.postponed = append(c.postponed, postponedMsg{s.index, s.size})
	s.drop()
	c.active--
	c.activeNow.Store(int64(c.active))
	c.calls.Add(^uint64(0))
	c.l.n.inline.Add(-uint64(s.size))
	kind := recvMsg
	if s.hdr.Type == TypeNoMsg {
		kind = recvNoMsg
	}
	c.l.n.n[kind].Add(^uint64(0))
	c.slots[s.index] = nil
	c.spare = append(c.spare, s)
}

// resumePostponed handles the postponed messages.
func (c *serverConn) resumePostponed() {
	list := c.postponed
	c.postponed = nil
	for _, k := range list {
		if c.dead {
			return
		}
		c.arrived(k.index, k.n)
	}
	c.pump()
}

// Busy lists the connections that are not quiescent. It must not be called on a loop.
func (l *Listener) Busy() []Busy {
	var mu sync.Mutex
	var out []Busy
	l.onLoops(func(c *serverConn) {
		if c.dead || c.quiescent() {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		b := Busy{Remote: c.peer.Addr}
		for _, s := range c.slots {
			switch {
			case s == nil || s.state == slotPosted:
			case s.state == slotReplying:
				b.Replies++
			default:
				b.Calls++
			}
		}
		out = append(out, b)
	})
	return out
}

// Drop ends the connection of a client that does not answer, so that it never becomes quiescent.
func (l *Listener) Drop(remote netip.AddrPort, why error) {
	l.onLoops(func(c *serverConn) {
		if c.peer.Addr == remote {
			c.fail(errNotMoved, why)
		}
	})
}

// onLoops calls fn for every connection on the connection's loop, and waits.
func (l *Listener) onLoops(fn func(*serverConn)) {
	var all sync.WaitGroup
	for _, c := range l.all() {
		all.Add(1)
		if !c.loop.Submit(func() { defer all.Done(); fn(c) }) {
			all.Done()
		}
	}
	all.Wait()
}

// quiescent reports whether nothing is in flight on the connection. If the device cannot hand over
// its connections, only the server's own work counts.
func (c *serverConn) quiescent() bool {
	q, ok := c.conn.(rdma.Quiescer)
	return c.conn != nil && c.active == 0 && c.readsFree == c.depth && !c.probe.probing && c.replies.head == nil &&
		len(c.back.queue) == 0 && (!ok || q.Quiescent())
}

// Export describes the quiescent connections. It is called while the loops of the device are
// stopped. The Listener does not change. Calls to clients without a reply are not exported.
func (l *Listener) Export() ([]byte, []*os.File, error) {
	var s snapshot
	for _, c := range l.all() {
		if _, movable := c.conn.(rdma.Quiescer); !movable || c.dead || !c.quiescent() {
			continue
		}
		x := snapshotConn{
			QPN: c.conn.QP().Num(), Peer: c.peer, Since: c.since, Established: c.probe.conn != nil,
			InlineOut: c.inlineOut, Receive: c.inlineIn, Invalidates: c.peerInval,
			Depth: c.depth, Grant: c.grant, Credits: int(c.creditsNow.Load()),
			Calls: c.calls.Load(), WriteBytes: c.writeBytes.Load(), ReadBytes: c.readBytes.Load(),
			First: c.first, Last: c.last,
		}
		for _, k := range c.postponed {
			x.Postponed = append(x.Postponed, bytes.Clone(c.recvs[k.index].Buf[:k.n]))
		}
		s.Conns = append(s.Conns, x)
	}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(&s); err != nil {
		return nil, nil, fmt.Errorf("rpcrdma: %w", err)
	}
	return b.Bytes(), nil, nil
}

// Import restores the connections that another process exported, as far as the device can restore
// them. It is called before the loops of the device run. It returns the number of connections. One
// that cannot be restored is logged. It ends when the device starts, and its client connects again.
func (l *Listener) Import(data []byte) (int, error) {
	var s snapshot
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&s); err != nil {
		return 0, fmt.Errorf("rpcrdma: decoding the handed-over connections: %w", err)
	}
	restorer, ok := l.dev.(rdma.Restorer)
	if !ok {
		return 0, fmt.Errorf("rpcrdma: the device cannot restore connections")
	}
	n := 0
	for i := range s.Conns {
		k := &s.Conns[i]
		loop := restorer.Restorable(k.QPN)
		if loop == nil {
			continue // the connection ended while the loops were stopped
		}
		if err := l.restore(restorer, loop, k); err != nil {
			l.cfg.Logger.Warn("a connection of the previous process ends", "peer", k.Peer.Addr.String(), "reason", err.Error())
			continue
		}
		n++
	}
	return n, nil
}

// restore restores one connection.
func (l *Listener) restore(restorer rdma.Restorer, loop rdma.Loop, k *snapshotConn) error {
	if k.Receive > l.cfg.Receive {
		return fmt.Errorf("the client may send messages of %d bytes, and a receive has %d", k.Receive, l.cfg.Receive)
	}
	grant := max(min(max(k.Grant, k.Credits), l.cfg.Credits), 1)
	// There can be more messages than credits: if the grant was larger before, or if the client
	// ignores its credits.
	owned := max(receives(grant), min(len(k.Postponed), receives(l.cfg.Credits)))
	if len(k.Postponed) > owned {
		return fmt.Errorf("%d postponed messages need more than the %d receives", len(k.Postponed), owned)
	}
	l.pool.restoreConn(owned * l.cfg.Receive)
	private := PrivateMessage{Receive: k.InlineOut, RemoteInvalidation: k.Invalidates}
	c, err := makeConn(l, loop, k.Peer, private, max(k.Depth, 1), grant, owned)
	if err != nil {
		return err
	}
	l.cfg.Limiter.Restore(k.Peer.Addr.Addr(), false)
	c.inlineIn = k.Receive
	c.since, c.first, c.last = k.Since, k.First, k.Last
	c.creditsNow.Store(int64(k.Credits))
	c.calls.Store(k.Calls)
	c.writeBytes.Store(k.WriteBytes)
	c.readBytes.Store(k.ReadBytes)
	c.received = true // by the previous process
	for i, m := range k.Postponed {
		if copy(c.recvs[i].Buf, m) < len(m) {
			c.release()
			return fmt.Errorf("a postponed message of %d bytes is longer than a receive", len(m))
		}
		c.postponed = append(c.postponed, postponedMsg{i, len(m)})
	}
	conn, err := restorer.RestoreConn(k.QPN, c.qpConfig(), c.prepare, c.event)
	if err != nil {
		c.release()
		return err
	}
	c.adopt(conn)
	if k.Established {
		c.startProbe()
	}
	l.mu.Lock()
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	loop.Submit(c.resumePostponed) // runs when the loop starts
	return nil
}

// Quiescent reports whether all connections are quiescent. It is called while the loops are
// stopped.
func (l *Listener) Quiescent() bool {
	return !slices.ContainsFunc(l.all(), func(c *serverConn) bool { return !c.dead && !c.quiescent() })
}

// Callers returns, for each connection, the Caller that calls its client.
func (l *Listener) Callers() map[rpc.Peer]rpc.Caller {
	out := make(map[rpc.Peer]rpc.Caller)
	for _, c := range l.all() {
		out[c.peer] = c.back.calls
	}
	return out
}
