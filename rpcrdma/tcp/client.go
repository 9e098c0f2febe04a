package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ErrXIDInUse means that another call in flight on the connection has the XID.
var ErrXIDInUse = errors.New("tcp: another call with this XID is in flight")

// clientHandshakeTimeout bounds the AUTH_TLS probe and the handshake.
const clientHandshakeTimeout = 20 * time.Second

// Client sends calls over one connection, any number at a time. It does not reconnect. It
// implements rpc.Client.
//
// One goroutine reads the replies. Calls are written by the callers: one of them writes what all of
// them have queued (outbox). mu is never held while the socket is read or written, nor together
// with outbox.mu.
type Client struct {
	conn net.Conn
	peer string
	out  outbox

	mu      sync.Mutex
	pending map[uint32]*pending
	nextXID uint32
	err     error // why the connection has ended

	back backward
}

// pending is a call and its reply. After an answered call it is reused, because only the caller
// refers to it. After a call that was given up, or failed with the connection, it is not: the
// reader may still refer to it.
//
//	register --> pending, in the map --reply--> done --recycle--> idle
//	                 |                  |
//	                 | forget           | fail: err is set
//	                 v                  v
//	          not in the map; never reused
type pending struct {
	call  xdr.Encoder
	mark  [rpc.MarkLen]byte
	stage atomic.Uint32 // of writing the call: see outbox
	alone bool          // no other call was in flight when this one began
	done  chan struct{} // has one element when reply or err is there
	reply []byte        // before that, memory for it
	err   error

	// The reader reads the end of the reply into dst if it has the length of dst; tail is that end.
	dst, tail []byte
	pad       [3]byte
	placing   bool // the reader writes to dst; under the client's mu
	gone      bool // the caller has given up; under the client's mu
	segments  [3][]byte
	results   xdr.Decoder // used by the caller
}

var idle = sync.Pool{New: func() any { return &pending{done: make(chan struct{}, 1)} }}

// recycle retains an answered call and its memory for another call.
func (p *pending) recycle() {
	p.call.Reset()
	clear(p.call.Refs[:cap(p.call.Refs)])
	if cap(p.call.B) > idleMax {
		p.call.B = nil
	}
	*p = pending{call: p.call, done: p.done, reply: reuse(p.reply)}
	idle.Put(p)
}

// reuse returns the memory of a message for another one, or nil if it is too large to retain.
func reuse(b []byte) []byte {
	if cap(b) > idleMax {
		rpc.FreeRecord(b)
		return nil
	}
	return b[:0]
}

// Dial connects to a server. The context may have a function for the calls of the server
// (rpc.WithBackward).
func Dial(ctx context.Context, addr string) (*Client, error) {
	conn, err := Connect(ctx, addr)
	if err != nil {
		return nil, &rpc.ConnError{Peer: addr, Err: err}
	}
	c := NewClient(conn)
	c.OnCall(rpc.BackwardOf(ctx))
	return c, nil
}

// NewClient sends calls over a connection that exists. The client owns conn.
func NewClient(conn net.Conn) *Client {
	c := &Client{conn: conn, peer: conn.RemoteAddr().String(), pending: make(map[uint32]*pending), nextXID: rand.Uint32()}
	c.out.finished.L = &c.out.mu
	go c.read()
	return c
}

// Close ends the connection.
func (c *Client) Close() error {
	c.fail(rpc.ErrClosed)
	return nil
}

// Err is why the connection has ended, or nil while it exists.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail ends the connection and every call in flight, once.
//
//	calls without a reply     err is set, and done is sent
//	a reply is being placed   err is set; place sends done when it has left dst
//	later calls               register returns err
func (c *Client) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = &rpc.ConnError{Peer: c.peer, Err: err}
	for _, p := range c.pending {
		p.err = c.err
		if !p.placing { // otherwise place sends, when it does not write to dst any more
			p.done <- struct{}{}
		}
	}
	c.pending = nil
	c.mu.Unlock()
	c.conn.Close()
}

// register adds a call, and chooses an XID if xid is 0. The end of its reply may be read into dst.
func (c *Client) register(xid uint32, dst []byte) (uint32, *pending, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, c.err
	}
	if xid == 0 {
		for c.nextXID == 0 || c.pending[c.nextXID] != nil {
			c.nextXID++
		}
		xid = c.nextXID
		c.nextXID++
	} else if c.pending[xid] != nil {
		return 0, nil, ErrXIDInUse
	}
	p := idle.Get().(*pending)
	p.dst = dst
	c.pending[xid] = p
	p.alone = len(c.pending) == 1
	return xid, p, nil
}

// forget gives a call up, and returns when its memory is not written any more. A read deadline in
// the past interrupts a reader that writes to it, also if the peer sends slowly or not at all.
func (c *Client) forget(xid uint32, p *pending) {
	c.mu.Lock()
	if c.pending[xid] == p {
		delete(c.pending, xid)
	}
	placing := p.placing
	p.gone = true
	if placing {
		_ = c.conn.SetReadDeadline(longPast)
	}
	c.mu.Unlock()
	if placing {
		<-p.done
	}
}

// Call implements rpc.Client.
func (c *Client) Call(ctx context.Context, r *rpc.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	xid, p, err := c.register(r.XID, r.Dst)
	if err != nil {
		return err
	}
	r.XID = xid
	e := &p.call
	r.Encode(e)
	if e.Len() > rpc.FragmentMax {
		c.forget(xid, p)
		return fmt.Errorf("tcp: a call of %d bytes is longer than a record can be", e.Len())
	}
	if err := c.exchange(ctx, xid, p); err != nil {
		return err
	}
	p.results = p.decoder()
	err = r.Decode(&p.results)
	p.recycle()
	return err
}

// exchange sends a call and waits for its reply. When it returns, nothing uses the memory of the
// call.
func (c *Client) exchange(ctx context.Context, xid uint32, p *pending) error {
	c.send(p)
	select {
	case <-p.done:
		c.unsend(p)
	case <-ctx.Done():
		c.unsend(p)
		c.forget(xid, p)
		return ctx.Err()
	}
	return p.err
}

// read reads replies until the connection ends. The end of a reply goes directly to the memory of
// its caller, if its length fits.
//
//	record   | xid, header, a few words (headMin to headMax) | data, pad |
//	Head     b                                               left
//	place                                                    p.dst
func (c *Client) read() {
	r := rpc.NewRecords(bufio.NewReaderSize(c.conn, 32<<10), rpc.MaxRecord)
	var p *pending
	tail := func(xid, kind uint32, size int) int {
		if kind != rpc.MsgReply {
			return 0 // a call of the server, whose XIDs are not ours
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		p = c.pending[xid]
		if p == nil || len(p.dst) == 0 || size-xdr.Padded(len(p.dst)) < headMin || size-xdr.Padded(len(p.dst)) > headMax {
			return 0
		}
		return xdr.Padded(len(p.dst))
	}
	var spare []byte // memory for the next reply
	for {
		b, left, err := r.Head(spare, tail)
		if err == nil && left > 0 {
			err = c.place(r, p)
		}
		if err != nil {
			c.fail(fmt.Errorf("reading a reply: %w", err))
			return
		}
		if !rpc.IsReply(b) {
			c.called(b)
			spare = nil
			continue
		}
		xid := rpc.ReplyXID(b)
		c.mu.Lock()
		p = c.pending[xid] // nil if the caller has given up
		delete(c.pending, xid)
		c.mu.Unlock()
		if p == nil {
			spare = reuse(b)
			continue
		}
		spare, p.reply = p.reply, b
		p.done <- struct{}{}
	}
}

// A reply that ends with as much data as the caller has room for has between headMin and headMax
// bytes before that data: the RPC header and a few words.
const (
	headMin = 24
	headMax = 4 << 10
)

// place reads the end of a reply into the memory of its caller. If the caller gives up meanwhile,
// the rest of the record is read to other memory.
//
//	reader   placing = true ... reads into dst ...  placing = false
//	caller            gone = true, deadline in the past, waits for done
//
// Two orders are possible. If the caller is first, the reader sees gone and reads to other
// memory. If the reader is first, the caller waits until the reader does not write to dst any
// more. Then the deadline is removed, because the other calls of the connection go on.
func (c *Client) place(r *rpc.Records, p *pending) error {
	c.mu.Lock()
	p.placing = !p.gone && p.err == nil
	placing := p.placing
	c.mu.Unlock()
	if !placing { // the caller gave up before
		_, err := r.Tail(make([]byte, xdr.Padded(len(p.dst))))
		return err
	}
	n, err := r.Tail(p.dst)
	c.mu.Lock()
	p.placing = false
	gone, lost := p.gone, p.err != nil
	c.mu.Unlock()
	if gone || lost {
		p.done <- struct{}{}
	}
	if gone && !lost {
		_ = c.conn.SetReadDeadline(time.Time{})
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			_, err = r.Tail(make([]byte, len(p.dst)-n))
		}
	}
	if err == nil {
		p.tail = p.dst
		_, err = r.Tail(p.pad[:xdr.Pad(len(p.dst))])
	}
	return err
}

// decoder decodes the reply from its two parts.
func (p *pending) decoder() xdr.Decoder {
	if p.tail == nil {
		return xdr.NewDecoder(p.reply)
	}
	p.segments = [3][]byte{p.reply, p.tail, p.pad[:xdr.Pad(len(p.tail))]}
	return xdr.NewSegmented(p.segments[:])
}
