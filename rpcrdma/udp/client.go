package udp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A call is sent again after resendFirst, and then after twice as long each time.
const resendFirst = 500 * time.Millisecond

// Client sends calls in datagrams, one at a time, each again until it is answered or its context
// ends. It implements rpc.Client.
type Client struct {
	c    *net.UDPConn
	peer string

	mu  sync.Mutex
	xid uint32
	in  [MaxMessage]byte
}

// Dial makes a Client of a server. It sends nothing.
func Dial(addr netip.AddrPort) (*Client, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, &rpc.ConnError{Peer: addr.String(), Err: err}
	}
	return &Client{c: c, peer: addr.String(), xid: rand.Uint32()}, nil
}

// Close ends the client, and a call in flight.
func (c *Client) Close() error { return c.c.Close() }

// Call implements rpc.Client. A server may execute a call more than once.
func (c *Client) Call(ctx context.Context, r *rpc.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.XID == 0 {
		c.xid++
		r.XID = max(c.xid, 1)
	}
	var e xdr.Encoder
	r.Encode(&e)
	msg := e.AppendFlat(nil)
	if len(msg) > MaxMessage {
		return fmt.Errorf("udp: a call of %d bytes is longer than a datagram can be", len(msg))
	}
	stop := context.AfterFunc(ctx, func() { _ = c.c.SetReadDeadline(longPast) })
	defer stop()
	for wait := resendFirst; ; wait *= 2 {
		if _, err := c.c.Write(msg); err != nil {
			return &rpc.ConnError{Peer: c.peer, Err: err}
		}
		_ = c.c.SetReadDeadline(time.Now().Add(wait))
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := c.receive(r.XID)
		switch {
		case err == nil:
			d := xdr.NewDecoder(c.in[:n])
			return r.Decode(&d)
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return &rpc.ConnError{Peer: c.peer, Err: err}
		}
	}
}

// receive waits for the reply of a call. Late replies of other calls are dropped.
func (c *Client) receive(xid uint32) (int, error) {
	for {
		n, err := c.c.Read(c.in[:])
		if err != nil || n >= 8 && binary.BigEndian.Uint32(c.in[:]) == xid {
			return n, err
		}
	}
}
