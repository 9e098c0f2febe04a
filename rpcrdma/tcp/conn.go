package tcp

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// conn is one connection. One goroutine reads calls and dispatches them, another writes replies, so
// a peer that does not read delays only itself.
//
//	socket --read--> call --Dispatch--> rpc.Server --reply--> replies --write--> socket
//	                   ^                                                  |
//	                   +-------------------- free <-----------------------+
//
// A call belongs to the reader, then to the server, then to the writer, and is in free otherwise.
// There are MaxCalls of them: a reader that finds none waits, the socket's buffer fills, and TCP
// stops the client.
type conn struct {
	s     *Listener
	c     net.Conn // the socket
	out   net.Conn // what is written to: c, or TLS over it
	peer  rpc.Peer // changed by the reader, with s.mu held
	since time.Time
	calls atomic.Uint64
	// draining: no more calls are read, but replies are still written.
	draining atomic.Bool
	writing  atomic.Bool
	calling  atomic.Int32 // calls to the peer that are not written yet

	// The state of a paused reader, under pausing.
	pausing sync.Mutex
	paused  bool
	reader  *rpc.Records
	record  []byte
	rest    []byte // was read by another process

	// The writer sends on asked after the reply to an AUTH_TLS probe. Then it receives from begin
	// whether the connection has TLS.
	asked chan struct{}
	begin chan bool

	gate    gate
	acks    *acks
	free    chan *call // calls that are not in progress
	replies chan *call // and calls to the peer
	back    *rpc.Backward
}

// call is a Call with the memory of its record and of its bulk result.
type call struct {
	rpc.Call
	c       *conn
	charged int // bytes of it in the gate
	record  []byte
	mark    [rpc.MarkLen]byte
	payload []*[]byte
	back    bool // a call to the peer
}

// end closes the connection, which ends its reader.
func (c *conn) end() {
	c.gate.open()
	c.acks.Settle()
	c.c.Close()
}

// drain ends the connection when the calls that it has read are answered.
func (c *conn) drain() {
	c.draining.Store(true)
	c.gate.open()
	_ = c.c.SetReadDeadline(longPast) // wakes the reader
}

// idleMax is the most memory that an idle call retains for its next record or reply.
const idleMax = 16 << 10

// newConn makes a connection that serve serves. It has no calls yet: each is made when it is first
// used, so an idle connection costs little.
func newConn(s *Listener, nc net.Conn, peer rpc.Peer) *conn {
	if tc, ok := nc.(*net.TCPConn); ok && s.cfg.Reset {
		_ = tc.SetLinger(0) // it fails on a socket that has ended
	}
	c := &conn{s: s, c: nc, out: nc, since: time.Now(), peer: peer, acks: newAcks(nc)}
	c.free = make(chan *call, s.cfg.MaxCalls)
	c.begin, c.asked = make(chan bool), make(chan struct{})
	c.replies = make(chan *call, s.cfg.MaxCalls+rpc.BackwardCalls)
	c.back = rpc.NewBackward(c.callBack, s.cfg.MaxRecord, rpc.BackwardCalls)
	for range s.cfg.MaxCalls {
		c.free <- nil // made when first used
	}
	c.gate.init(s.cfg.ConnMemory)
	return c
}

// serve reads and writes until the connection ends. The socket is closed when no call uses it.
//
//	reader ends --> backward calls fail --> all calls are in free --> replies is closed
//	            --> writer ends --> socket closed --> Closed
func (c *conn) serve() {
	s := c.s
	defer s.done.Done()
	defer s.cfg.Limiter.Release(c.peer.Addr.Addr(), true)
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.write()
	}()
	err := c.read()
	if !c.draining.Load() {
		c.gate.open()
		c.hangUp()
	}
	c.back.Close()
	switch {
	case c.draining.Load(), errors.Is(err, net.ErrClosed), errors.Is(err, io.EOF):
	case errors.Is(err, rpc.ErrRecordTooLong), errors.Is(err, rpc.ErrTooManyFragments):
		s.n.badRecords.Add(1)
		s.cfg.Logger.Warn("closing a connection", "peer", c.peer.Addr.String(), "error", err)
	default:
		s.cfg.Logger.Debug("connection lost", "peer", c.peer.Addr.String(), "error", err)
	}
	for range s.cfg.MaxCalls { // wait for the calls in progress
		<-c.free
	}
	close(c.replies)
	<-written
	c.hangUp()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	if s.cfg.Closed != nil {
		s.cfg.Closed(c.peer)
	}
}

// hangUp closes the connection, TLS with its closing alert. The reader calls it.
func (c *conn) hangUp() {
	c.acks.Settle()
	c.out.Close()
}

// read reads calls and dispatches them until the connection ends.
func (c *conn) read() error {
	in := c.stream()
	r := rpc.NewRecords(in, c.s.cfg.MaxRecord)
	for {
		if c.gate.wait() {
			c.s.n.paused.Add(1)
		}
		k := <-c.free
		if k == nil {
			k = &call{c: c}
			k.Peer, k.Back, k.Settler = c.peer, c.back, c.acks
			k.Alloc = k.alloc
			k.Reply = c.reply
			k.TransportData = k
		}
		var err error
		k.record, err = r.Next(k.record)
		for interrupted(err) && !c.draining.Load() {
			c.waitPaused(r, k.record)
			k.record, err = r.Next(k.record)
		}
		if err != nil {
			c.free <- k
			return err
		}
		c.s.n.bytesIn.Add(uint64(rpc.MarkLen + len(k.record)))
		if rpc.IsReply(k.record) && c.back.Receive(k.record, 0) {
			c.s.n.backReplies.Add(1)
			c.free <- k
			continue
		}
		c.s.n.calls.Add(1)
		c.calls.Add(1)
		c.acks.Settle() // a client that sends a call has probably acknowledged earlier replies
		if c.s.cfg.TLS != nil && rpc.IsTLSProbe(k.record) {
			if cfg := c.s.cfg.TLS(); cfg != nil {
				if err := c.startTLS(k, in, cfg); err != nil {
					return err
				}
				continue
			}
		}
		k.charge(len(k.record))
		k.Reset()
		c.s.srv.Dispatch(&k.Call, xdr.NewDecoder(k.record), false)
	}
}

// reply is rpc.Call.Reply. It does not block: the channel has room for all calls.
func (c *conn) reply(rc *rpc.Call, drop bool) {
	k := rc.TransportData.(*call)
	if drop {
		c.recycle(k)
		return
	}
	k.charge(len(k.Res.B))
	c.replies <- k
}

// callBack queues a call to the peer. It reports false if the peer answers calls before it receives
// them.
// The message belongs to the connection until it is written.
func (c *conn) callBack(msg []byte) bool {
	k := &call{back: true}
	k.Res.B = msg
	c.calling.Add(1)
	select {
	case c.replies <- k:
		c.s.n.backCalls.Add(1)
		return true
	default:
		c.calling.Add(-1)
		return false
	}
}

// recycle ends a call whose reply was written or dropped: its memory is not used any more.
// Afterwards the call belongs to free. Buffers longer than idleMax are not retained: an idle
// connection would otherwise have MaxCalls of them.
func (c *conn) recycle(k *call) {
	if k.back {
		c.calling.Add(-1)
		return
	}
	for _, p := range k.payload {
		freePayload(p)
	}
	k.payload = k.payload[:0]
	k.charge(-k.charged)
	if cap(k.record) > idleMax {
		rpc.FreeRecord(k.record)
		k.record = nil
	}
	if cap(k.Res.B) > idleMax {
		k.Res.B = nil
	}
	k.Res.Reset()
	c.free <- k
}

// write writes replies. It writes the replies that are ready by one call and without a copy.
// After an error it takes the replies without writing, so that their calls end. A reply that
// starts TLS is the last of its batch, because it is the last cleartext. The writer owns a reply
// from the receive from replies to recycle. It does not take s.mu and calls no procedure. So a
// client that takes nothing blocks its own writer for WriteTimeout at most.
func (c *conn) write() {
	var batch []*call
	var parts [][]byte
	var bufs net.Buffers // what is left of parts
	failed := false
	for k := range c.replies {
		c.writing.Store(true)
		batch, parts = append(batch[:0], k), k.appendParts(parts[:0])
		tls := k.StartTLS
		for more := !tls; more && len(batch) < 16; {
			select {
			case k, ok := <-c.replies:
				if more = ok && !k.StartTLS; ok {
					tls = k.StartTLS
					batch, parts = append(batch, k), k.appendParts(parts)
				}
			default:
				more = false
			}
		}
		if !failed {
			c.c.SetWriteDeadline(time.Now().Add(c.s.cfg.WriteTimeout))
			bufs = parts
			n, err := writeParts(c.out, &bufs)
			c.s.n.bytesOut.Add(uint64(n))
			if err != nil {
				failed = true
				c.s.n.writeErrors.Add(1)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					c.s.n.slow.Add(1)
					c.s.cfg.Logger.Warn("closing a connection: the client takes no replies", "peer", c.peer.Addr.String(),
						"timeout", c.s.cfg.WriteTimeout, "memory", c.gate.memory())
				}
				c.end() // and the reader
			} else {
				c.acks.wrote(n, batch)
				for _, k := range batch {
					if !k.back {
						c.s.n.replies.Add(1)
					}
				}
			}
		}
		clear(parts)
		if tls {
			c.asked <- struct{}{}
			failed = !<-c.begin || failed
		}
		for _, k := range batch {
			c.recycle(k)
		}
		c.writing.Store(false)
	}
}

// pad is the source of XDR padding.
var pad [4]byte

// appendParts appends the reply as one record of one fragment.
func (k *call) appendParts(parts [][]byte) [][]byte {
	k.mark = rpc.RecordMark(k.Res.Len())
	return appendMessage(append(parts, k.mark[:]), &k.Res)
}

// appendMessage appends the pieces of an encoded message.
func appendMessage(parts [][]byte, e *xdr.Encoder) [][]byte {
	at := 0
	for _, r := range e.Refs {
		parts = append(parts, e.B[at:r.At], r.Data, pad[:xdr.Pad(len(r.Data))])
		at = r.At
	}
	return append(parts, e.B[at:])
}
