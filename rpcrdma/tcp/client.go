package tcp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ErrXIDInUse is a request whose XID another call in flight on the connection
// has.
var ErrXIDInUse = errors.New("tcp: another call with this XID is in flight")

// clientWriteTimeout ends connections whose server does not take calls.
const clientWriteTimeout = time.Minute

// Client sends calls over one connection and keeps any number of them in
// flight. It does not reconnect. It implements rpc.Client.
type Client struct {
	conn net.Conn
	peer string

	writing sync.Mutex // holds the stream for one record

	mu      sync.Mutex
	pending map[uint32]*pending
	nextXID uint32
	err     error // why the connection is gone
}

type pending struct {
	done  chan struct{}
	reply []byte
	err   error
}

// Dial connects to a server.
func Dial(ctx context.Context, addr string) (*Client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, &rpc.ConnError{Peer: addr, Err: err}
	}
	return NewClient(conn), nil
}

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
	waiting := c.pending
	c.pending = nil
	c.mu.Unlock()
	c.conn.Close()
	for _, p := range waiting {
		p.err = c.err
		close(p.done)
	}
}

// register enters a call, choosing its XID if it is 0.
func (c *Client) register(xid uint32) (uint32, *pending, error) {
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
	p := &pending{done: make(chan struct{})}
	c.pending[xid] = p
	return xid, p, nil
}

func (c *Client) forget(xid uint32) {
	c.mu.Lock()
	delete(c.pending, xid)
	c.mu.Unlock()
}

// Call implements rpc.Client.
func (c *Client) Call(ctx context.Context, r *rpc.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	xid, p, err := c.register(r.XID)
	if err != nil {
		return err
	}
	r.XID = xid
	var e xdr.Encoder
	rpc.EncodeCall(&e, xid, r.Prog, r.Vers, r.Proc, r.Cred)
	if r.Args != nil {
		r.Args(&e)
	}
	if e.Len() > rpc.FragmentMax {
		c.forget(xid)
		return fmt.Errorf("tcp: a call of %d bytes is longer than a record can be", e.Len())
	}
	reply, err := c.exchange(ctx, xid, p, &e)
	if err != nil {
		return err
	}
	d := xdr.NewDecoder(reply)
	if err := rpc.DecodeReply(&d, xid); err != nil {
		return err
	}
	if r.Res == nil {
		return nil
	}
	return r.Res(&d)
}

// Forward sends a call message as it is and returns the reply message. Its XID
// must not be that of another call in flight.
func (c *Client) Forward(ctx context.Context, msg []byte) ([]byte, error) {
	if len(msg) < 4 || len(msg) > rpc.FragmentMax {
		return nil, fmt.Errorf("tcp: %d bytes are no RPC call", len(msg))
	}
	xid := binary.BigEndian.Uint32(msg)
	c.mu.Lock()
	p := &pending{done: make(chan struct{})}
	err := c.err
	if err == nil && c.pending[xid] != nil {
		err = ErrXIDInUse
	}
	if err == nil {
		c.pending[xid] = p
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return c.exchange(ctx, xid, p, &xdr.Encoder{B: msg})
}

func (c *Client) exchange(ctx context.Context, xid uint32, p *pending, e *xdr.Encoder) ([]byte, error) {
	if err := c.send(e); err != nil {
		c.fail(err)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		c.forget(xid)
		return nil, ctx.Err()
	}
	return p.reply, p.err
}

func (c *Client) send(e *xdr.Encoder) error {
	mark := rpc.RecordMark(e.Len())
	parts := net.Buffers(appendMessage([][]byte{mark[:]}, e))
	c.writing.Lock()
	defer c.writing.Unlock()
	// Not the deadline of the call: half a record would end the stream for
	// all of them.
	c.conn.SetWriteDeadline(time.Now().Add(clientWriteTimeout))
	_, err := parts.WriteTo(c.conn)
	return err
}

func (c *Client) read() {
	r := bufio.NewReaderSize(c.conn, 32<<10)
	for {
		b, err := rpc.ReadRecord(r, nil, rpc.MaxRecord)
		if err != nil {
			c.fail(fmt.Errorf("reading a reply: %w", err))
			return
		}
		xid := rpc.ReplyXID(b)
		c.mu.Lock()
		p := c.pending[xid] // nil if the caller gave up
		delete(c.pending, xid)
		c.mu.Unlock()
		if p != nil {
			p.reply = b
			close(p.done)
		}
	}
}
