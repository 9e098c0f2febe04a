package rpcrdma

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// snapshot is the connections of a Listener on which nothing is under way.
type snapshot struct{ Conns []snapshotConn }

// snapshotConn is one connection. What it does with memory is not in it: whoever goes on with it posts receives of
// its own.
type snapshotConn struct {
	QPN                          uint32
	Peer                         rpc.Peer
	Since                        time.Time
	Established                  bool
	InlineOut                    int
	Invalidates                  bool
	Depth                        int
	Grant                        int
	Credits                      int
	Calls, WriteBytes, ReadBytes uint64
	First, Last                  RPC
	Kept                         [][]byte // messages that came while the Listener was held
}

// Busy is a connection with something under way.
type Busy struct {
	Remote netip.AddrPort
	// Calls are those that wait or are served, Replies those whose data or reply the client has not
	// acknowledged. With neither the client is in the middle of a message.
	Calls, Replies int
}

// kept is a message that was received and is not looked at yet: the number of its buffer, and its length.
type kept struct{ index, n int }

// Pause keeps calls that arrive from now on, of which there are no more than clients have credits, or begins to
// serve them. That goes for connections that are made meanwhile, too. Calls that have arrived before go on, but for those that wait for the limits of their clients:
// nothing of them has begun, and they are kept too. It must not be called on a loop.
func (l *Listener) Pause(on bool) {
	l.mu.Lock()
	l.holding = on
	l.mu.Unlock()
	l.ask(func(c *serverConn) {
		c.keeping = on
		if on {
			c.putBack()
			c.throttle.takeBack()
		} else {
			c.replay()
		}
	})
}

// putBack makes calls that wait for their data, of which nothing is asked for yet, messages again.
func (c *serverConn) putBack() {
	if c.dead {
		return
	}
	c.noWait()
	for {
		q, a, f := &c.admit, c.admit.head, c.fetch.head
		if a == nil && f == nil {
			return
		}
		if a == nil || f != nil && f.came < a.came {
			q = &c.fetch
		}
		s := q.head
		q.pop()
		c.unarrived(s)
	}
}

// keep takes a message while the connection is held, unless it is the reply to a call to the client.
func (c *serverConn) keep(index, n int) bool {
	var h Header
	if !c.keeping {
		return false
	}
	if inline, err := h.Parse(c.recvs[index].Buf[:n]); err == nil && h.Type == TypeMsg && rpc.IsReply(inline) {
		return false
	}
	c.kept = append(c.kept, kept{index, n})
	return true
}

// unarrived keeps a message of which nothing has begun.
func (c *serverConn) unarrived(s *slot) {
	c.kept = append(c.kept, kept{s.index, s.size})
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

// replay begins with what was kept.
func (c *serverConn) replay() {
	list := c.kept
	c.kept = nil
	for _, k := range list {
		if c.dead {
			return
		}
		c.arrived(k.index, k.n)
	}
	c.pump()
}

// Busy lists the connections that cannot be exported yet. It must not be called on a loop.
func (l *Listener) Busy() []Busy {
	var mu sync.Mutex
	var out []Busy
	l.ask(func(c *serverConn) {
		if c.dead || c.still() {
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

// Drop ends the connection of a client that is not there to end what is under way.
func (l *Listener) Drop(remote netip.AddrPort, why error) {
	l.ask(func(c *serverConn) {
		if c.peer.Addr == remote {
			c.fail(errNotMoved, why)
		}
	})
}

// ask has fn called for every connection on its loop, and waits.
func (l *Listener) ask(fn func(*serverConn)) {
	var all sync.WaitGroup
	l.mu.Lock()
	for c := range l.conns {
		all.Add(1)
		if !c.loop.Submit(func() { defer all.Done(); fn(c) }) {
			all.Done()
		}
	}
	l.mu.Unlock()
	all.Wait()
}

// still reports whether nothing is under way. Of a connection that cannot be moved that is nothing of ours.
func (c *serverConn) still() bool {
	m, movable := c.conn.(rdma.Quiescer)
	return c.conn != nil && c.active == 0 && c.readsFree == c.depth && !c.probe.probing && c.replies.head == nil && len(c.back.queue) == 0 && (!movable || m.Quiescent())
}

// Export describes the connections on which nothing is under way, while the loops of the device stand. The
// Listener stays as it is. Calls to clients that are not answered are not in it.
func (l *Listener) Export() ([]byte, []*os.File, error) {
	var s snapshot
	l.mu.Lock()
	for c := range l.conns {
		if _, movable := c.conn.(rdma.Quiescer); !movable || c.dead || !c.still() {
			continue
		}
		x := snapshotConn{
			QPN: c.conn.QP().Num(), Peer: c.peer, Since: c.since, Established: c.probe.conn != nil, InlineOut: c.inlineOut, Invalidates: c.peerInval,
			Depth: c.depth, Grant: c.grant, Credits: int(c.creditsNow.Load()),
			Calls: c.calls.Load(), WriteBytes: c.writeBytes.Load(), ReadBytes: c.readBytes.Load(), First: c.first, Last: c.last,
		}
		for _, k := range c.kept {
			x.Kept = append(x.Kept, bytes.Clone(c.recvs[k.index].Buf[:k.n]))
		}
		s.Conns = append(s.Conns, x)
	}
	l.mu.Unlock()
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(&s); err != nil {
		return nil, nil, fmt.Errorf("rpcrdma: %w", err)
	}
	return b.Bytes(), nil, nil
}

// Import goes on with the connections that another process has exported, as far as the
// device has inherited them, before its loops run. It returns their number.
func (l *Listener) Import(data []byte) (int, error) {
	var s snapshot
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&s); err != nil {
		return 0, fmt.Errorf("rpcrdma: the connections that were handed over: %w", err)
	}
	restorer, ok := l.dev.(rdma.Restorer)
	if !ok {
		return 0, fmt.Errorf("rpcrdma: the device takes no connections over")
	}
	n := 0
	for i := range s.Conns {
		k := &s.Conns[i]
		loop := restorer.Restorable(k.QPN)
		if loop == nil {
			continue // it ended when everything stood
		}
		if err := l.inherit(restorer, loop, k); err != nil {
			return n, fmt.Errorf("rpcrdma: the connection to %v: %w", k.Peer.Addr, err)
		}
		n++
	}
	return n, nil
}

// inherit goes on with one connection.
func (l *Listener) inherit(restorer rdma.Restorer, loop rdma.Loop, k *snapshotConn) error {
	grant := max(min(max(k.Grant, k.Credits), l.cfg.Credits), 1)
	// More messages than credits wait if there were receives for more credits before, or of a client that
	// does not keep to them.
	owned := max(receives(grant), min(len(k.Kept), receives(l.cfg.Credits)))
	if len(k.Kept) > owned {
		return fmt.Errorf("%d messages wait, with %d receives", len(k.Kept), owned)
	}
	l.pool.inherit(owned * l.cfg.Inline)
	c, err := makeConn(l, loop, k.Peer, PrivateMessage{Receive: k.InlineOut, RemoteInvalidation: k.Invalidates}, max(k.Depth, 1), grant, owned)
	if err != nil {
		return err
	}
	l.cfg.Limiter.Restore(k.Peer.Addr.Addr(), false)
	c.since, c.first, c.last = k.Since, k.First, k.Last
	c.creditsNow.Store(int64(k.Credits))
	c.calls.Store(k.Calls)
	c.writeBytes.Store(k.WriteBytes)
	c.readBytes.Store(k.ReadBytes)
	c.heard = true // by the process before
	for i, m := range k.Kept {
		if copy(c.recvs[i].Buf, m) < len(m) {
			c.release()
			return fmt.Errorf("a message of %d bytes", len(m))
		}
		c.kept = append(c.kept, kept{i, len(m)})
	}
	conn, err := restorer.RestoreConn(k.QPN, c.qpConfig(), c.prepare, c.event)
	if err != nil {
		c.release()
		return err
	}
	c.adopt(conn)
	if k.Established {
		c.probe.start(conn, serverProbe, func() bool { return !c.dead })
	}
	l.mu.Lock()
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	loop.Submit(c.replay) // when the loops run
	return nil
}

// Quiescent reports whether nothing is under way on any connection. It is to be called while the loops stand.
func (l *Listener) Quiescent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if !c.dead && !c.still() {
			return false
		}
	}
	return true
}

// Callers are the ways to call the clients of the connections.
func (l *Listener) Callers() map[rpc.Peer]rpc.Caller {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[rpc.Peer]rpc.Caller, len(l.conns))
	for c := range l.conns {
		out[c.peer] = c.back.calls
	}
	return out
}
