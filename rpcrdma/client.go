package rpcrdma

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Errors of a Client.
var (
	// ErrXIDInUse means that another call in flight on the connection has the XID.
	ErrXIDInUse = errors.New("rpcrdma: another call with this XID is in flight")
	// ErrProtocol means that a reply breaks the rules of RFC 8166.
	ErrProtocol = errors.New("rpcrdma: the server's reply does not fit the call")
	// ErrCallTooLong means that a call has more pieces than MaxReadSegments.
	ErrCallTooLong = errors.New("rpcrdma: the call has too many bulk arguments")
)

// Client sends calls over one connection, as many at once as the server grants credits. It does not
// reconnect: after an *rpc.ConnError the caller dials again. It implements rpc.Client,
// rpc.Registrar and rpc.DMABufRegistrar. Its methods may be called from any goroutine, but not on
// the device's loops. A Client has Credits + backwardReceives buffers in each direction, of Inline
// and of Send bytes. A receive buffer is posted, except while receive handles its message. A send
// buffer is in use until its SEND has completed.
type Client struct {
	dev   rdma.Device
	loop  rdma.Loop
	pd    rdma.PD // domain's
	cfg   ClientConfig
	peer  string
	xid   atomic.Uint32
	n     counters
	idle  sync.Pool     // of *exchange
	ended chan struct{} // closed when the connection and its memory are released
	// noWindows: memory is opened by regions, because no window can be bound to a dma-buf.
	noWindows bool
	lost      atomic.Pointer[rpc.ConnError]
	info      atomic.Pointer[ClientInfo]

	// The rest belongs to the loop.
	yield     func() // rdma.Yielder of the loop, or nil
	conn      rdma.Conn
	probe     prober
	cq        rdma.CQ
	arena     *rdma.Arena // message buffers
	mr        rdma.MR     // registration of arena, local access only
	domain    *domain     // nil before setUp
	regions   []rdma.MR   // of Register and RegisterDMABuf, shared in the domain
	devices   []rdma.MR   // those of RegisterDMABuf
	spare     regions     // regions of finished calls, for reuse
	win       *windows    // not nil: memory is opened by windows instead of regions
	lim       rdma.Limits // of the device
	up        func(error) // reports the outcome to Dial, once
	closed    bool
	entries   int // of the send queue
	inlineOut int // longest message to the server
	inlineIn  int // longest message from it

	credits   int // last grant
	inflight  int // calls without a reply, including those that were given up
	calls     map[uint32]*exchange
	abandoned map[uint32]struct{} // XIDs of calls that were given up; their credit is still in use
	waiting   exchangeQueue       // calls that wait for a credit or for room in the queues
	sendFree  []int               // unused send buffers; a buffer is in use until its SEND completes
	answers   [][]byte            // replies to calls of the server that wait for a send buffer
	sends     []rdma.SGE
	recvs     []rdma.SGE
	repost    []rdma.RecvWR
	wcs       [64]rdma.WC
	hdr       Header         // scratch: of the message being handled
	wr        [1]rdma.SendWR // scratch: being posted
	sge       [1]rdma.SGE    // scratch: of wr
}

var nextLoop atomic.Uint32 // distributes the clients of a process over the loops

// Dial connects to a server. ctx bounds only the setup of the connection. It may be a context of
// rpc.WithDMABufs.
func Dial(ctx context.Context, dev rdma.Device, remote netip.AddrPort, cfg ClientConfig) (*Client, error) {
	loops := dev.Loops()
	c := &Client{
		dev: dev, cfg: cfg.withDefaults().within(rdma.LimitsOf(dev)), lim: rdma.LimitsOf(dev),
		peer: remote.String(), loop: loops[int(nextLoop.Add(1))%len(loops)], noWindows: rpc.ForDMABufs(ctx),
		ended: make(chan struct{}), credits: 1, calls: make(map[uint32]*exchange), abandoned: make(map[uint32]struct{}),
	}
	if c.cfg.Backward == nil {
		c.cfg.Backward = rpc.BackwardOf(ctx)
	}
	c.xid.Store(rand.Uint32())
	if y, ok := c.loop.(rdma.Yielder); ok {
		c.yield = y.Yield
	}
	up := make(chan error, 1)
	c.up = func(err error) { up <- err; c.up = func(error) {} }
	if !c.loop.Submit(func() { c.dial(remote) }) {
		return nil, &rpc.ConnError{Peer: c.peer, Err: rdma.ErrClosed}
	}
	var err error
	select {
	case err = <-up:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		c.loop.Submit(func() { c.fail(err) })
		return nil, &rpc.ConnError{Peer: c.peer, Err: err}
	}
	return c, nil
}

// backwardReceives is the number of receives beyond the credits, for calls of the server.
const backwardReceives = 8

// dial makes the resources and the connection, on the loop. The outcome goes to c.up. The REQ
// offers ReadDepth responder resources, because the server reads the arguments of calls by RDMA
// READ, and has the private message of RFC 8797. The receives are posted before the REQ is sent.
func (c *Client) dial(remote netip.AddrPort) {
	err := c.setUp()
	if err == nil {
		invalidation := c.win != nil || c.lim.PeerInval
		private := PrivateMessage{RemoteInvalidation: invalidation, Send: c.cfg.Send, Receive: c.cfg.Inline}.Append(nil)
		c.conn, err = c.dev.Dial(c.loop, rdma.DialParams{
			Remote: remote, PKey: c.cfg.PKey, DSCP: c.cfg.DSCP,
			QP: rdma.QPConfig{PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq, Caps: rdma.QPCaps{
				MaxSendWR: c.entries, MaxRecvWR: len(c.recvs), MaxSendSGE: 1, MaxRecvSGE: 1,
			}},
			Params: rdma.ConnParams{
				PrivateData: private, ResponderResources: uint8(c.cfg.ReadDepth), RetryCount: 7, RNRRetryCount: 7,
			},
			Prepare: func(conn rdma.Conn) error {
				c.conn = conn
				for i := range c.recvs {
					c.post(i)
				}
				return c.postReceives(conn)
			},
			On: c.event,
		})
		if err != nil {
			c.conn = nil
		}
	}
	if err != nil {
		c.fail(err)
	}
}

// setUp creates the resources of the connection. If it fails, end releases those that exist.
func (c *Client) setUp() (err error) {
	if c.domain, err = c.cfg.Domain.join(c.dev); err != nil {
		return err
	}
	c.pd = c.domain.pd
	nr, ns := c.cfg.Credits+backwardReceives, c.cfg.Credits+backwardReceives
	if c.arena, err = rdma.NewArena(nr*c.cfg.Inline + ns*c.cfg.Send); err != nil {
		return err
	}
	mem := c.arena.Bytes()
	if c.mr, err = c.pd.Register(mem, rdma.LocalWrite); err != nil {
		return err
	}
	cut := func(n int) rdma.SGE {
		b := mem[:n:n]
		mem = mem[n:]
		return rdma.SGE{Buf: b, LKey: c.mr.LKey()}
	}
	for range nr {
		c.recvs = append(c.recvs, cut(c.cfg.Inline))
	}
	for i := range ns {
		c.sends = append(c.sends, cut(c.cfg.Send))
		c.sendFree = append(c.sendFree, i)
	}
	c.entries = ns + 1
	if windowed(c.lim) && !c.noWindows {
		most := c.lim.WRs
		if n := c.lim.CQEs - nr; n > 0 && (most == 0 || n < most) {
			most = n
		}
		if c.win, c.entries, err = newWindows(c, ns, most); err != nil {
			return err
		}
	}
	c.cq, err = c.dev.CreateCQ(c.loop, rdma.CQOptions{Depth: nr + c.entries, OnEvent: c.poll})
	return err
}

// Info describes the connection.
func (c *Client) Info() ClientInfo { return *c.info.Load() }

// Err is why the connection has ended, or nil while it exists.
func (c *Client) Err() error {
	if e := c.lost.Load(); e != nil {
		return e
	}
	return nil
}

// Stats returns the counts of the connection. RDMAWriteBytes are the bytes that the server wrote to
// our memory, RDMAReadBytes those that calls offered it to read.
func (c *Client) Stats() Stats { return c.n.stats() }

// Close ends the connection and waits until the device does not use its memory any more.
//
//	call                     outcome of Close
//	waits for a credit       fails with ErrClosed
//	was sent                 fails with ErrClosed; its memory is closed first
//	its reply has arrived    unchanged
func (c *Client) Close() error {
	if !c.loop.Submit(func() { c.fail(rpc.ErrClosed) }) {
		return nil
	}
	select {
	case <-c.ended:
	case <-time.After(closeTime):
	}
	return nil
}

// event handles an event of the connection. Without a private message from the server the inline
// thresholds are those of RFC 8166 section 3.3.3, 1024 bytes.
func (c *Client) event(_ rdma.Conn, e rdma.ConnEvent) {
	switch e.Kind {
	case rdma.EventEstablished:
		said, _ := ParsePrivate(e.PrivateData)
		c.inlineOut = min(c.cfg.Send, said.Receive)
		c.inlineIn = min(c.cfg.Inline, said.Send)
		c.info.Store(&ClientInfo{
			Remote: c.conn.Remote(), Local: c.conn.Local(), InlineIn: c.inlineIn, InlineOut: c.inlineOut, PathMTU: e.PathMTU,
		})
		c.probe.start(c.conn, clientProbe, func() bool { return !c.closed && c.inflight > 0 }, c.fail)
		c.up(nil)
	default:
		err := e.Err
		if err == nil {
			err = errors.New("the server ended the connection")
		}
		c.drainReplies()
		c.fail(err)
		c.end()
	}
}

// drainReplies handles the replies that arrived before the connection ended. The server saw their
// SENDs acknowledged and may have removed them from its reply cache, so sending these calls again
// would execute them twice.
func (c *Client) drainReplies() {
	for !c.closed {
		n := c.cq.Poll(c.wcs[:])
		if n == 0 {
			return
		}
		for i := range c.wcs[:n] {
			if wc := &c.wcs[i]; wc.Status == rdma.Success && !c.closed {
				c.complete(wc)
			}
		}
	}
}

// fail begins to end the connection, and fails all calls. Disconnect flushes the work requests of
// the queue pair. Callers get their error at once: retire has closed the memory of their calls to
// the server, and the rest of it is not accessed by the device once the queue pair has stopped. The
// Client's own memory is released by end, after that.
func (c *Client) fail(why error) {
	if c.closed {
		return
	}
	c.closed = true
	lost := &rpc.ConnError{Peer: c.peer, Err: why}
	c.lost.Store(lost)
	if !errors.Is(why, rpc.ErrClosed) {
		c.cfg.Logger.Info("connection lost", "server", c.peer, "reason", why.Error(), "calls", len(c.calls))
	}
	c.up(why)
	for _, x := range c.calls {
		c.retire(x)
		x.finish(lost)
	}
	clear(c.calls)
	if c.win != nil {
		c.win.fail(lost)
	}
	for x := c.waiting.pop(); x != nil; x = c.waiting.pop() {
		x.finish(lost)
	}
	if c.conn == nil {
		c.end()
		return
	}
	c.conn.Disconnect()
}

// end releases the connection's resources. Its queue pair has stopped.
//
//	connection closed --> completion queue closed --> two turns of the loop
//	  --> regions, windows, arena, protection domain --> ended is closed
func (c *Client) end() {
	select {
	case <-c.ended:
		return
	default:
	}
	c.probe.stop()
	if c.conn != nil {
		c.conn.Close()
	}
	if c.cq != nil {
		c.cq.Close()
	}
	// At the end of this turn the loop may still send packets from our memory. So the memory is
	// released two turns later.
	release := func() {
		c.spare.close()
		if c.win != nil {
			c.win.close()
		}
		for _, m := range c.regions {
			c.domain.release(m)
		}
		c.regions, c.devices = nil, nil
		if c.mr != nil {
			c.mr.Close()
		}
		if c.arena != nil {
			c.arena.Close()
		}
		if c.domain != nil {
			c.domain.leave()
		}
		close(c.ended)
	}
	c.loop.Submit(func() { c.loop.Submit(release) })
}
