package tcp

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ErrXIDInUse is a request whose XID another call in flight on the connection
// has.
var ErrXIDInUse = errors.New("tcp: another call with this XID is in flight")

// clientHandshakeTimeout bounds the beginning of TLS.
const clientHandshakeTimeout = 20 * time.Second

// clientWriteTimeout ends connections whose server does not take calls.
const clientWriteTimeout = time.Minute

// Client sends calls over one connection and keeps any number of them in
// flight. It does not reconnect. It implements rpc.Client.
type Client struct {
	conn net.Conn
	peer string

	writing sync.Mutex // holds the stream for one record, and the following
	mark    [rpc.MarkLen]byte
	parts   [][]byte    // of the record
	left    net.Buffers // what is left of them

	mu      sync.Mutex
	pending map[uint32]*pending
	nextXID uint32
	err     error // why the connection is gone
}

// pending is a call and its reply. It serves further calls after one that was answered:
// then nobody but the caller knows it any more. A call that was given up, or lost with the
// connection, may still be known to the reader.
type pending struct {
	call  xdr.Encoder
	done  chan struct{} // has one element when reply or err is there
	reply []byte        // before that, memory for it
	err   error

	// dst is where the end of the reply goes if it is of its length, and tail what went
	// there.
	dst, tail []byte
	pad       [3]byte
	placing   bool // the reader is at it; under the client's lock
	gone      bool // the caller wants dst back; under the client's lock
	segments  [3][]byte
	results   xdr.Decoder // the caller's
}

var idle = sync.Pool{New: func() any { return &pending{done: make(chan struct{}, 1)} }}

// recycle keeps the memory of a call that was answered for another.
func (p *pending) recycle() {
	p.call.Reset()
	clear(p.call.Refs[:cap(p.call.Refs)])
	if cap(p.call.B) > keepMax {
		p.call.B = nil
	}
	*p = pending{call: p.call, done: p.done, reply: keep(p.reply)}
	idle.Put(p)
}

// keep is the memory of a message for another, or none.
func keep(b []byte) []byte {
	if cap(b) > keepMax {
		rpc.FreeRecord(b)
		return nil
	}
	return b[:0]
}

// Dial connects to a server.
func Dial(ctx context.Context, addr string) (*Client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, &rpc.ConnError{Peer: addr, Err: err}
	}
	return NewClient(conn), nil
}

// DialTLS connects to a server and has it begin TLS (RFC 9289), which the configuration is for;
// the program and the version are those that the connection is for. A server that does not, or
// whose certificate is no good, is an error: nothing but the question for TLS was said to it.
func DialTLS(ctx context.Context, addr string, cfg *tls.Config, prog, vers uint32) (*Client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, &rpc.ConnError{Peer: addr, Err: err}
	}
	_ = conn.SetDeadline(time.Now().Add(clientHandshakeTimeout))                     // before the end of ctx can set another
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // long past
	secure, err := clientTLS(conn, cfg, prog, vers, rand.Uint32())
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, &TLSError{Peer: addr, Err: err}
	}
	_ = conn.SetDeadline(time.Time{})
	c := NewClient(secure)
	// In TLS 1.3 the client is done before the server has looked at its certificate: a first answer
	// says that it was accepted.
	ctx, cancel := context.WithTimeout(ctx, clientHandshakeTimeout)
	defer cancel()
	var lost *rpc.ConnError
	if err := c.Call(ctx, &rpc.Request{Prog: prog, Vers: vers}); errors.As(err, &lost) || ctx.Err() != nil {
		c.Close()
		if lost != nil {
			err = lost.Err
		}
		return nil, &TLSError{Peer: addr, Err: err}
	}
	return c, nil
}

// TLSError is a connection that has no TLS where it has to.
type TLSError struct {
	Peer string
	Err  error
}

func (e *TLSError) Error() string {
	if errors.Is(e.Err, rpc.ErrNoTLS) {
		return fmt.Sprintf("%s does not offer TLS, and nothing is sent to it without", e.Peer)
	}
	var alert tls.AlertError
	var op *net.OpError
	if errors.As(e.Err, &alert) || errors.As(e.Err, &op) && op.Op == "remote error" {
		return fmt.Sprintf("%s refuses TLS with this client: %v", e.Peer, e.Err)
	}
	return fmt.Sprintf("no TLS with %s: %v", e.Peer, e.Err)
}

func (e *TLSError) Unwrap() error { return e.Err }

// NewClient sends calls over a connection that exists. The client owns conn.
func NewClient(conn net.Conn) *Client {
	c := &Client{conn: conn, peer: conn.RemoteAddr().String(), pending: make(map[uint32]*pending), nextXID: rand.Uint32()}
	go c.read()
	return c
}

// Close ends the connection.
func (c *Client) Close() error {
	c.fail(rpc.ErrClosed)
	return nil
}

// Err is why the connection is gone, or nil while it is there.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail ends the connection and every call in flight, once.
func (c *Client) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = &rpc.ConnError{Peer: c.peer, Err: err}
	for _, p := range c.pending {
		p.err = c.err
		if !p.placing { // else by the reader, when it has let go
			p.done <- struct{}{}
		}
	}
	c.pending = nil
	c.mu.Unlock()
	c.conn.Close()
}

// register enters a call, choosing its XID if it is 0. The end of its reply may go to dst.
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
	return xid, p, nil
}

// forget gives a call up. What is being placed in its memory is interrupted, however
// slowly it comes.
func (c *Client) forget(xid uint32, p *pending) {
	c.mu.Lock()
	if c.pending[xid] == p {
		delete(c.pending, xid)
	}
	placing := p.placing
	p.gone = true
	if placing {
		_ = c.conn.SetReadDeadline(time.Unix(1, 0)) // long past: wakes the reader
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
	rpc.EncodeCall(e, xid, r.Prog, r.Vers, r.Proc, r.Cred)
	if r.Args != nil {
		r.Args(e)
	}
	if e.Len() > rpc.FragmentMax {
		c.forget(xid, p)
		return fmt.Errorf("tcp: a call of %d bytes is longer than a record can be", e.Len())
	}
	if err := c.exchange(ctx, xid, p, e); err != nil {
		return err
	}
	p.results = p.decoder()
	err = rpc.DecodeReply(&p.results, xid)
	if err == nil && r.Res != nil {
		err = r.Res(&p.results)
	}
	p.recycle()
	return err
}

// exchange sends a call and waits for its reply. Its memory is not touched any more when it
// returns.
func (c *Client) exchange(ctx context.Context, xid uint32, p *pending, e *xdr.Encoder) error {
	if err := c.send(e); err != nil {
		c.unsendable(err)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		c.forget(xid, p)
		return ctx.Err()
	}
	return p.err
}

// drainTimeout is how long replies are read of a connection that nothing can be written to. It
// has been closed by the server, so that what is there comes at once.
const drainTimeout = 5 * time.Second

// unsendable ends a connection that nothing can be written to. Replies that have come already are
// read first: the server has the acknowledgment of the client's host for them, and need not know
// them when they are asked for again.
func (c *Client) unsendable(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		c.fail(err)
		return
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(drainTimeout))
}

func (c *Client) send(e *xdr.Encoder) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mark = rpc.RecordMark(e.Len())
	c.parts = appendMessage(append(c.parts[:0], c.mark[:]), e)
	c.left = c.parts
	// Not the deadline of the call: half a record would end the stream for
	// all of them.
	c.conn.SetWriteDeadline(time.Now().Add(clientWriteTimeout))
	_, err := writeParts(c.conn, &c.left)
	clear(c.parts)
	return err
}

func (c *Client) read() {
	r := rpc.NewRecords(bufio.NewReaderSize(c.conn, 32<<10), rpc.MaxRecord)
	var p *pending
	tail := func(xid uint32, size int) int {
		c.mu.Lock()
		defer c.mu.Unlock()
		p = c.pending[xid]
		if p == nil || len(p.dst) == 0 || size-padded(len(p.dst)) < headMin || size-padded(len(p.dst)) > headMax {
			return 0
		}
		return padded(len(p.dst))
	}
	var spare []byte // memory for the next reply: that of the call that was answered last
	for {
		b, left, err := r.Head(spare, tail)
		if err == nil && left > 0 {
			err = c.place(r, p)
		}
		if err != nil {
			c.fail(fmt.Errorf("reading a reply: %w", err))
			return
		}
		xid := rpc.ReplyXID(b)
		c.mu.Lock()
		p = c.pending[xid] // nil if the caller gave up
		delete(c.pending, xid)
		c.mu.Unlock()
		if p == nil {
			spare = keep(b)
			continue
		}
		spare, p.reply = p.reply, b
		p.done <- struct{}{}
	}
}

// A reply whose results end with as much data as the caller has room for is that much
// longer than what is before it: the RPC header and a few words.
const (
	headMin = 24
	headMax = 4 << 10
)

func padded(n int) int { return n + xdr.Pad(n) }

// place reads the end of a reply into its caller's memory, until he wants it back.
func (c *Client) place(r *rpc.Records, p *pending) error {
	c.mu.Lock()
	p.placing = !p.gone && p.err == nil
	placing := p.placing
	c.mu.Unlock()
	if !placing { // given up since
		_, err := r.Tail(make([]byte, padded(len(p.dst))))
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
		// The stream has to be read to the end of the record all the same.
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

// decoder reads the reply, wherever it is.
func (p *pending) decoder() xdr.Decoder {
	if p.tail == nil {
		return xdr.NewDecoder(p.reply)
	}
	p.segments = [3][]byte{p.reply, p.tail, p.pad[:xdr.Pad(len(p.tail))]}
	return xdr.NewSegmented(p.segments[:])
}
