package gonfs

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// proxy serves over RPC-over-RDMA what a server speaks over a stream with record marking.
type proxy struct {
	// dial opens a stream to the server, one for each RDMA connection.
	dial func(ctx context.Context, client rpc.Peer) (net.Conn, error)
	// cut says which bytes of a reply are a bulk result that a Write chunk may take: n bytes at offset
	// at of the reply message, or n = 0 for none.
	cut func(prog, vers, proc uint32, reply []byte) (at, n int)
	log *slog.Logger
}

// serveStream serves p on a port of dev until the Listener is closed.
func serveStream(dev rdma.Device, port uint16, cfg rpcrdma.Config, p *proxy) (*rpcrdma.Listener, error) {
	return rpcrdma.ServeHandler(dev, port, func(peer rpc.Peer, disconnect func()) (rpcrdma.Handler, error) {
		c := &proxyConn{p: p, peer: peer, disconnect: disconnect, pending: make(map[uint32]*proxyCall)}
		c.ready.L = &c.mu
		c.ctx, c.cancel = context.WithCancel(context.Background())
		go c.write()
		return c, nil
	}, cfg)
}

const (
	proxyDialTime  = 10 * time.Second
	proxyWriteTime = time.Minute
)

// proxyConn forwards the calls of one client. How many there are at a time is
// bounded by the receives of its connection.
type proxyConn struct {
	p          *proxy
	peer       rpc.Peer
	disconnect func()
	ctx        context.Context
	cancel     context.CancelFunc

	mu      sync.Mutex
	ready   sync.Cond // queue or closed
	queue   []*proxyCall
	pending map[uint32]*proxyCall // by XID
	stream  net.Conn
	closed  bool
}

type proxyCall struct {
	c                *rpc.Call
	prog, vers, proc uint32
	record           []byte
}

// Dispatch implements Handler.
func (c *proxyConn) Dispatch(call *rpc.Call, msg xdr.Decoder, _ bool) {
	n := msg.Remaining()
	k := &proxyCall{c: call, record: make([]byte, 0, rpc.MarkLen+n)}
	head := msg
	call.XID = head.Uint32()
	kind := head.Uint32()
	head.Uint32()
	k.prog, k.vers, k.proc = head.Uint32(), head.Uint32(), head.Uint32()
	if head.Err() != nil || kind != rpc.MsgCall {
		call.Reply(call, true)
		return
	}
	mark := rpc.RecordMark(n)
	k.record = msg.AppendRest(append(k.record, mark[:]...))
	call.Detach()
	c.mu.Lock()
	if c.closed || c.pending[call.XID] != nil {
		c.mu.Unlock()
		call.Reply(call, true)
		return
	}
	c.pending[call.XID] = k
	c.queue = append(c.queue, k)
	c.ready.Signal()
	c.mu.Unlock()
}

// Close implements io.Closer: the client is gone.
func (c *proxyConn) Close() error {
	c.fail(nil)
	return nil
}

// fail ends both connections. The client will send its calls again.
func (c *proxyConn) fail(why error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	c.cancel()
	if c.stream != nil {
		c.stream.Close()
	}
	lost := c.pending
	c.pending, c.queue = nil, nil
	c.ready.Signal()
	c.mu.Unlock()
	if why != nil {
		c.p.log.Warn("disconnecting a client", "peer", c.peer.Addr.String(), "reason", why.Error())
		c.disconnect()
	}
	for _, k := range lost {
		k.c.Reply(k.c, true)
	}
}

// write opens the stream and writes calls to it.
func (c *proxyConn) write() {
	ctx, cancel := context.WithTimeout(c.ctx, proxyDialTime)
	stream, err := c.p.dial(ctx, c.peer)
	cancel()
	if err != nil {
		c.fail(fmt.Errorf("the server cannot be reached: %w", err))
		return
	}
	c.mu.Lock()
	c.stream = stream
	if c.closed {
		stream.Close()
	}
	c.mu.Unlock()
	go c.read(stream)
	for {
		c.mu.Lock()
		for len(c.queue) == 0 && !c.closed {
			c.ready.Wait()
		}
		queue := c.queue
		c.queue = nil
		closed := c.closed
		c.mu.Unlock()
		if closed {
			return
		}
		var records net.Buffers
		for _, k := range queue {
			records = append(records, k.record)
		}
		stream.SetWriteDeadline(time.Now().Add(proxyWriteTime))
		if _, err := records.WriteTo(stream); err != nil {
			c.fail(fmt.Errorf("writing to the server: %w", err))
			return
		}
	}
}

// read takes replies from the stream.
func (c *proxyConn) read(stream io.Reader) {
	r := bufio.NewReaderSize(stream, 32<<10)
	for {
		b, err := rpc.ReadRecord(r, nil, rpc.MaxRecord)
		if err != nil {
			c.fail(fmt.Errorf("reading from the server: %w", err))
			return
		}
		if len(b) < 8 || binary.BigEndian.Uint32(b[4:]) != rpc.MsgReply {
			continue
		}
		xid := rpc.ReplyXID(b)
		c.mu.Lock()
		k := c.pending[xid]
		delete(c.pending, xid)
		c.mu.Unlock()
		if k != nil {
			c.p.reply(k, b)
		}
	}
}

// reply answers a call with a reply message, which it keeps by reference.
func (p *proxy) reply(k *proxyCall, b []byte) {
	res := &k.c.Res
	at, n := p.cut(k.prog, k.vers, k.proc, b)
	if end := at + n + xdr.Pad(n); n <= 0 || n > len(b) || end > len(b) {
		res.B = append(res.B, b...)
	} else {
		res.B = append(append(res.B, b[:at]...), b[end:]...)
		res.Refs = append(res.Refs, xdr.Ref{At: at, Data: b[at : at+n]})
	}
	k.c.Reply(k.c, false)
}
