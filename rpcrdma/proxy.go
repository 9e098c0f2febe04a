package rpcrdma

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Proxy serves over RPC-over-RDMA what a server behind it serves over a stream
// with record marking, so that a server that knows nothing of RDMA can be
// reached by it.
type Proxy struct {
	// Dial opens a stream to the server behind, one for each client.
	Dial func(ctx context.Context, client rpc.Peer) (net.Conn, error)
	// Cut says which bytes of a reply are a bulk result that a Write chunk may
	// take: n bytes at offset at of the reply message, or n = 0 for none. It
	// may be nil.
	Cut func(prog, vers, proc uint32, reply []byte) (at, n int)
	// MaxRecord bounds a reply in bytes. 0 means rpc.MaxRecord.
	MaxRecord int
	Logger    *slog.Logger
}

// Serve serves the proxy on a port of dev until the Listener is closed.
func (p *Proxy) Serve(dev rdma.Device, port uint16, cfg Config) (*Listener, error) {
	q := *p
	q.MaxRecord = cmp.Or(q.MaxRecord, rpc.MaxRecord)
	if q.Logger == nil {
		q.Logger = slog.New(slog.DiscardHandler)
	}
	return ServeHandler(dev, port, func(peer rpc.Peer, disconnect func()) (Handler, error) {
		c := &proxyConn{p: &q, peer: peer, disconnect: disconnect, pending: make(map[uint32]*proxyCall)}
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
	p          *Proxy
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
		c.p.Logger.Warn("disconnecting a client", "peer", c.peer.Addr.String(), "reason", why.Error())
		c.disconnect()
	}
	for _, k := range lost {
		k.c.Reply(k.c, true)
	}
}

// write opens the stream and writes calls to it.
func (c *proxyConn) write() {
	ctx, cancel := context.WithTimeout(c.ctx, proxyDialTime)
	stream, err := c.p.Dial(ctx, c.peer)
	cancel()
	if err != nil {
		c.fail(fmt.Errorf("the server behind cannot be reached: %w", err))
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
			c.fail(fmt.Errorf("writing to the server behind: %w", err))
			return
		}
	}
}

// read takes replies from the stream.
func (c *proxyConn) read(stream io.Reader) {
	r := bufio.NewReaderSize(stream, 32<<10)
	for {
		b, err := rpc.ReadRecord(r, nil, c.p.MaxRecord)
		if err != nil {
			c.fail(fmt.Errorf("reading from the server behind: %w", err))
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
func (p *Proxy) reply(k *proxyCall, b []byte) {
	res := &k.c.Res
	at, n := 0, 0
	if p.Cut != nil {
		at, n = p.Cut(k.prog, k.vers, k.proc, b)
	}
	if n <= 0 || at < 8 || at%4 != 0 || n > len(b)-at || padded(n) > len(b)-at {
		res.B = append(res.B, b...)
	} else {
		res.B = append(append(res.B, b[:at]...), b[at+padded(n):]...)
		res.Refs = append(res.Refs, xdr.Ref{At: at, Data: b[at : at+n]})
	}
	k.c.Reply(k.c, false)
}
