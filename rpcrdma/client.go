package rpcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ClientConfig bounds a Client. Zero fields have defaults; sizes are in bytes.
type ClientConfig struct {
	// Credits is how many calls the client asks to have outstanding. Further
	// calls wait their turn. 0 means 128.
	Credits int
	// Inline is the longest message, a multiple of 1024 up to 256 KiB. 0 means
	// 4096.
	Inline int
	// ReadDepth is how many RDMA READs the server may have in flight. 0 means 16.
	ReadDepth int
	// PKey is the partition to connect in; 0 is the first of the device.
	PKey uint16
	// DSCP is that of the connection's packets, see rdma.DialParams.
	DSCP uint8
	// Backward gets the calls of the server on the connection (RFC 8167), whole RPC messages without chunks. It must
	// not wait. It keeps msg, and calls reply at most once, from any goroutine, with a whole reply message. nil:
	// such calls are answered with PROG_UNAVAIL.
	Backward func(msg []byte, reply func(msg []byte))
	Logger   *slog.Logger
}

func (c ClientConfig) withDefaults() ClientConfig {
	c.Credits = min(max(cmp.Or(c.Credits, 128), 1), 4096)
	c.Inline = min(max(cmp.Or(c.Inline, 4096), sizeUnit), sizeMax) / sizeUnit * sizeUnit
	c.ReadDepth = min(max(cmp.Or(c.ReadDepth, 16), 1), 255)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// within is the configuration as a device can have it.
func (c ClientConfig) within(lim rdma.Limits) ClientConfig {
	if lim.RdAtomic > 0 {
		c.ReadDepth = min(c.ReadDepth, lim.RdAtomic)
	}
	if lim.WRs > 0 {
		c.Credits = max(min(c.Credits, lim.WRs-backwardReceives-1), 1)
	}
	if lim.CQEs > 0 {
		c.Credits = max(min(c.Credits, lim.CQEs/2-backwardReceives-1), 1)
	}
	return c
}

// Errors of a Client.
var (
	// ErrXIDInUse is a request whose XID another call in flight on the
	// connection has.
	ErrXIDInUse = errors.New("rpcrdma: another call with this XID is in flight")
	// ErrProtocol is a reply that breaks the rules of RFC 8166.
	ErrProtocol = errors.New("rpcrdma: the server's reply does not fit the call")
	// ErrCallTooLong is a call of too many pieces.
	ErrCallTooLong = errors.New("rpcrdma: the call has too many bulk arguments")
)

// RemoteError is an RDMA_ERROR message in place of a reply. The call may have
// been executed, if it is an ERR_CHUNK because the reply was too long.
type RemoteError struct {
	Code      ErrorCode
	Low, High uint32 // versions that the server speaks, for CodeVers
}

func (e *RemoteError) Error() string {
	switch e.Code {
	case CodeVers:
		return fmt.Sprintf("the server speaks versions %d to %d of RPC-over-RDMA", e.Low, e.High)
	case CodeChunk:
		return "the server refused the chunks of the call, or its reply was longer than the room for it"
	}
	return "the server reported " + e.Code.String()
}

// Client sends calls over one connection, as many at once as the server grants
// credits. It does not reconnect. It implements rpc.Client.
type Client struct {
	dev   rdma.Device
	loop  rdma.Loop
	pd    rdma.PD
	cfg   ClientConfig
	peer  string
	xid   atomic.Uint32
	n     counters
	idle  sync.Pool     // of *exchange
	ended chan struct{} // closed when the connection and its memory are gone
	// noWindows: memory is opened by regions, as other devices' has to be.
	noWindows bool
	lost      atomic.Pointer[rpc.ConnError]
	info      atomic.Pointer[ClientInfo]

	// The rest belongs to the loop.
	yield     func() // of the loop, if it has it
	conn      rdma.Conn
	probe     prober
	cq        rdma.CQ
	arena     *rdma.Arena
	mr        rdma.MR
	regions   []rdma.MR // of Register and RegisterDMABuf
	devices   []rdma.MR // those of RegisterDMABuf
	spare     regions
	win       *windows    // memory is opened by it, and not by regions; nil otherwise
	lim       rdma.Limits // of the device
	up        func(error) // tells Dial, once
	closed    bool
	entries   int // of the send queue
	inlineOut int // longest message to the server
	inlineIn  int // longest message from it

	credits  int // granted
	inflight int // calls without a reply, given up ones included
	calls    map[uint32]*exchange
	orphans  map[uint32]struct{} // calls that their callers gave up
	waiting  exchangeQueue
	sendFree []int    // send buffers
	answers  [][]byte // to calls of the server, that wait for one
	sends    []rdma.SGE
	recvs    []rdma.SGE
	repost   []rdma.RecvWR
	wcs      [64]rdma.WC
	hdr      Header         // of the message being handled
	wr       [1]rdma.SendWR // being posted
	sge      [1]rdma.SGE    // of wr
}

// ClientInfo describes a Client's connection.
type ClientInfo struct {
	Remote, Local netip.AddrPort
	// InlineIn and InlineOut are the longest messages in bytes.
	InlineIn, InlineOut int
	PathMTU             rdma.MTU
}

var nextLoop atomic.Uint32 // spreads the clients of a process over the loops

// Dial connects to a server. ctx bounds the connecting alone, and may be of rpc.WithDMABufs.
func Dial(ctx context.Context, dev rdma.Device, remote netip.AddrPort, cfg ClientConfig) (*Client, error) {
	loops := dev.Loops()
	c := &Client{
		dev: dev, cfg: cfg.withDefaults().within(rdma.LimitsOf(dev)), lim: rdma.LimitsOf(dev), peer: remote.String(), loop: loops[int(nextLoop.Add(1))%len(loops)],
		noWindows: rpc.ForDMABufs(ctx),
		ended:     make(chan struct{}), credits: 1, calls: make(map[uint32]*exchange), orphans: make(map[uint32]struct{}),
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

// backwardReceives are posted beyond the credits, for calls of the server.
const backwardReceives = 8

func (c *Client) dial(remote netip.AddrPort) {
	err := c.setUp()
	if err == nil {
		private := PrivateMessage{RemoteInvalidation: c.win != nil || c.lim.PeerInval, Send: c.cfg.Inline, Receive: c.cfg.Inline}.Append(nil)
		c.conn, err = c.dev.Dial(c.loop, rdma.DialParams{
			Remote: remote, PKey: c.cfg.PKey, DSCP: c.cfg.DSCP,
			QP: rdma.QPConfig{PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq, Caps: rdma.QPCaps{
				MaxSendWR: c.entries, MaxRecvWR: len(c.recvs), MaxSendSGE: 1, MaxRecvSGE: 1,
			}},
			Params: rdma.ConnParams{PrivateData: private, ResponderResources: uint8(c.cfg.ReadDepth), RetryCount: 7, RNRRetryCount: 7},
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

// setUp makes what the connection needs.
func (c *Client) setUp() (err error) {
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return err
	}
	nr, ns := c.cfg.Credits+backwardReceives, c.cfg.Credits+backwardReceives
	if c.arena, err = rdma.NewArena((nr + ns) * c.cfg.Inline); err != nil {
		return err
	}
	mem := c.arena.Bytes()
	if c.mr, err = c.pd.Register(mem, rdma.LocalWrite); err != nil {
		return err
	}
	cut := func() rdma.SGE {
		b := mem[:c.cfg.Inline:c.cfg.Inline]
		mem = mem[c.cfg.Inline:]
		return rdma.SGE{Buf: b, LKey: c.mr.LKey()}
	}
	for range nr {
		c.recvs = append(c.recvs, cut())
	}
	for i := range ns {
		c.sends = append(c.sends, cut())
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

// Err is why the connection is gone, or nil while it is there.
func (c *Client) Err() error {
	if e := c.lost.Load(); e != nil {
		return e
	}
	return nil
}

// Stats returns the counts of the connection. RDMAWriteBytes are those that
// the server wrote into our memory, RDMAReadBytes those that it was given to
// read.
func (c *Client) Stats() Stats { return c.n.stats() }

// Close ends the connection and waits until the device has let go of its
// memory.
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

func (c *Client) event(_ rdma.Conn, e rdma.ConnEvent) {
	switch e.Kind {
	case rdma.EventEstablished:
		said, _ := ParsePrivate(e.PrivateData)
		c.inlineOut = min(c.cfg.Inline, said.Receive)
		c.inlineIn = min(c.cfg.Inline, said.Send)
		c.info.Store(&ClientInfo{
			Remote: c.conn.Remote(), Local: c.conn.Local(), InlineIn: c.inlineIn, InlineOut: c.inlineOut, PathMTU: e.PathMTU,
		})
		c.probe.start(c.conn, clientProbe, func() bool { return !c.closed && c.inflight > 0 })
		c.up(nil)
	default:
		err := e.Err
		if err == nil {
			err = errors.New("the server ended the connection")
		}
		c.lastReplies()
		c.fail(err)
		c.end()
	}
}

// lastReplies takes the replies that came before the connection ended. The server has the acknowledgment of
// their SENDs, and need not know them when the calls are sent again.
func (c *Client) lastReplies() {
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

// fail ends the connection and all calls.
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

// end releases what the connection held, once its QP does nothing any more.
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
	// The loop may still send, at the end of this turn, what lies in our memory.
	release := func() {
		c.spare.close()
		if c.win != nil {
			c.win.close()
		}
		for _, m := range c.regions {
			m.Close()
		}
		c.regions = nil
		if c.mr != nil {
			c.mr.Close()
		}
		if c.arena != nil {
			c.arena.Close()
		}
		if c.pd != nil {
			c.pd.Close()
		}
		close(c.ended)
	}
	c.loop.Submit(func() { c.loop.Submit(release) })
}

func (c *Client) post(i int) {
	c.repost = append(c.repost, rdma.RecvWR{ID: workID(idReceive, i), SGL: c.recvs[i : i+1 : i+1]})
}

func (c *Client) postReceives(conn rdma.Conn) error {
	if len(c.repost) == 0 {
		return nil
	}
	err := conn.QP().PostRecv(c.repost)
	c.repost = c.repost[:0]
	return err
}

func (c *Client) poll() {
	for !c.closed {
		n := c.cq.Poll(c.wcs[:])
		if n == 0 {
			break
		}
		for i := range c.wcs[:n] {
			if !c.closed {
				c.complete(&c.wcs[i])
			}
		}
	}
	if c.closed {
		return
	}
	if err := c.postReceives(c.conn); err != nil {
		c.fail(fmt.Errorf("posting receives: %w", err))
		return
	}
	if c.win != nil {
		if err := c.win.postEnds(); err != nil {
			c.fail(fmt.Errorf("closing the memory of calls: %w", err))
			return
		}
	}
	c.sendBackward()
	c.startWaiting()
}

func (c *Client) complete(wc *rdma.WC) {
	i := int(uint32(wc.ID))
	if wc.Status == rdma.WRFlushErr {
		return // what follows the end of the connection; its event says why
	}
	if wc.Status != rdma.Success {
		switch wc.ID >> 32 {
		case idSend:
			c.n.add(errSendFailed)
			c.fail(fmt.Errorf("sending a call: %v", wc.Status))
		case idProbe:
			c.n.add(errPeerSilent)
			c.fail(fmt.Errorf("asking whether the server is there: %v", wc.Status))
		case idBind:
			c.n.add(errSendFailed)
			c.fail(fmt.Errorf("opening memory for a call: %v", wc.Status))
		case idEnd:
			c.n.add(errSendFailed)
			c.fail(fmt.Errorf("closing the memory of a call: %v", wc.Status))
		default:
			c.n.add(errReceiveFailed)
			c.fail(fmt.Errorf("receiving a reply: %v", wc.Status))
		}
		return
	}
	c.probe.heard = true
	switch wc.ID >> 32 {
	case idSend:
		c.sendFree = append(c.sendFree, i)
		if c.win != nil {
			c.win.sent(i)
		}
		return
	case idProbe:
		c.probe.answered()
		return
	case idEnd:
		c.win.ended()
		if c.yield != nil {
			c.yield()
		}
		return
	}
	c.receive(c.recvs[i].Buf[:wc.ByteLen], wc)
	c.post(i)
	if c.yield != nil {
		c.yield()
	}
}

// room reports whether the queues take one more call.
func (c *Client) room() bool { return len(c.sendFree) > 0 && (c.win == nil || c.win.ready()) }

// startWaiting sends calls that waited for credits.
func (c *Client) startWaiting() {
	for !c.closed && c.inflight < c.credits && c.room() {
		x := c.waiting.pop()
		if x == nil {
			return
		}
		c.send(x)
	}
}

// Register implements rpc.Registrar, for as long as the connection lasts.
func (c *Client) Register(buf []byte) (release func(), err error) {
	return c.register(len(buf), false, func() (rdma.MR, error) { return c.pd.Register(buf, c.keep()) })
}

// RegisterDMABuf implements rpc.DMABufRegistrar, for as long as the connection lasts.
func (c *Client) RegisterDMABuf(fd int, offset uint64, names []byte) (release func(), err error) {
	return c.register(len(names), true, func() (rdma.MR, error) {
		pd, ok := c.pd.(rdma.DMABufRegisterer)
		if !ok {
			return nil, fmt.Errorf("%w: %w", rpc.ErrNoDMABuf, rdma.ErrUnsupported)
		}
		mr, err := pd.RegisterDMABuf(fd, offset, names, rdma.LocalWrite)
		if errors.Is(err, rdma.ErrUnsupported) {
			err = fmt.Errorf("%w: %w", rpc.ErrNoDMABuf, err)
		}
		if err == nil && c.win != nil {
			// No window can be bound to it, and the server was promised that it may invalidate what calls open.
			mr.Close()
			return nil, rpc.ErrNotForDMABufs
		}
		return mr, err
	})
}

// device reports whether b is memory of another device, which nobody here may touch.
func (c *Client) device(b []byte) bool {
	for _, m := range c.devices {
		if inside(b, m.Bytes()) {
			return true
		}
	}
	return false
}

// register adds a region of n bytes, which is another device's or not.
func (c *Client) register(n int, device bool, open func() (rdma.MR, error)) (release func(), err error) {
	type outcome struct {
		mr  rdma.MR
		err error
	}
	done := make(chan outcome, 1)
	if !c.loop.Submit(func() {
		var o outcome
		if c.closed {
			o.err = c.Err()
		} else if o.mr, o.err = open(); o.err == nil {
			c.regions = append(c.regions, o.mr)
			if device {
				c.devices = append(c.devices, o.mr)
			}
		}
		done <- o
	}) {
		return nil, &rpc.ConnError{Peer: c.peer, Err: rdma.ErrClosed}
	}
	o := <-done
	if o.err != nil {
		return nil, fmt.Errorf("registering %d bytes: %w", n, o.err)
	}
	return func() {
		c.loop.Submit(func() {
			is := func(m rdma.MR) bool { return m == o.mr }
			c.regions, c.devices = slices.DeleteFunc(c.regions, is), slices.DeleteFunc(c.devices, is)
			o.mr.Close()
		})
	}, nil
}

// keep is what memory that stays registered allows.
func (c *Client) keep() rdma.Access {
	if c.win != nil {
		return rdma.LocalWrite | rdma.WindowBind
	}
	return rdma.LocalWrite
}

// registered finds the region that b lies in.
func (c *Client) registered(b []byte) rdma.MR {
	for _, m := range c.regions {
		if rdma.Within(b, m.Bytes()) {
			return m
		}
	}
	return nil
}

// Call implements rpc.Client. When ctx ends after the call was sent, its
// memory is closed to the server at once; a server that still writes to it
// loses the connection, and other calls with it.
func (c *Client) Call(ctx context.Context, r *rpc.Request) error {
	x := newExchange(c)
	xid := r.XID
	if xid == 0 {
		xid = c.nextXID()
		r.XID = xid
	}
	x.xid = xid
	rpc.EncodeCall(&x.call, xid, r.Prog, r.Vers, r.Proc, r.Cred)
	if r.Args != nil {
		r.Args(&x.call)
	}
	x.dst, x.resMax = r.Dst, cmp.Or(r.ResMax, 1024)
	if err := x.run(ctx); err != nil {
		return err
	}
	x.results = x.decoder()
	err := rpc.DecodeReply(&x.results, xid)
	if err == nil && r.Res != nil {
		err = r.Res(&x.results)
	}
	x.recycle()
	return err
}

func (c *Client) nextXID() uint32 {
	for {
		if x := c.xid.Add(1); x != 0 {
			return x
		}
	}
}

// exchange is a call and its reply.
type exchange struct {
	c      *Client
	xid    uint32
	call   xdr.Encoder
	dst    []byte // for the bulk result; nil if there is none
	resMax int    // of the results, bulk excluded
	done   chan error
	start  func() // c.start of it, made once
	shared bool   // not for reuse

	// The loop's, from start to finish.
	over    bool
	next    *exchange
	queued  bool
	offered Header
	mrs     []rdma.MR
	room    []byte // behind the Reply chunk
	// With windows:
	wins    []*window
	lent    []byte // room, if it is the client's
	long    int    // bytes of the reply that are in it
	closing bool   // the reply is here, and waits for the windows to be closed
	outcome error  // what the caller is told then

	// The reply, after finish.
	reply   []byte // without what is in bulk
	bulk    []byte
	hasBulk bool        // also if there is none, and it may not be elsewhere
	results xdr.Decoder // over it; the caller's
}

func newExchange(c *Client) *exchange {
	x, _ := c.idle.Get().(*exchange)
	if x == nil {
		x = &exchange{c: c, done: make(chan error, 1)}
		x.start = func() { c.start(x) }
	}
	return x
}

// recycle keeps the exchange's memory for another call.
func (x *exchange) recycle() {
	if x.shared {
		return
	}
	c := x.c
	x.call.Reset()
	clear(x.call.Refs[:cap(x.call.Refs)])
	x.offered.Reset()
	if cap(x.call.B) > keepMax {
		x.call.B = nil
	}
	*x = exchange{c: c, call: x.call, done: x.done, start: x.start, offered: x.offered, mrs: x.mrs[:0], wins: x.wins[:0], room: x.room[:0], reply: x.reply[:0]}
	if cap(x.room) > roomKeepMax {
		x.room = nil
	}
	if cap(x.reply) > roomKeepMax {
		x.reply = nil
	}
	c.idle.Put(x)
}

// roomKeepMax is the most memory that an idle exchange keeps for a Reply chunk.
const roomKeepMax = 64 << 10

// run sends the call and waits for the reply. After an error x is lost.
func (x *exchange) run(ctx context.Context) error {
	c := x.c
	if err := c.Err(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !c.loop.Submit(x.start) {
		return &rpc.ConnError{Peer: c.peer, Err: rdma.ErrClosed}
	}
	select {
	case err := <-x.done:
		return err
	case <-ctx.Done():
	}
	if !c.loop.Submit(func() { c.giveUp(x, ctx.Err()) }) {
		return ctx.Err()
	}
	x.shared = true // giveUp refers to x even if the reply has overtaken it
	return <-x.done
}

func (x *exchange) decoder() xdr.Decoder {
	d := xdr.NewDecoder(x.reply)
	if x.hasBulk {
		d.SetBulk(x.bulk)
	}
	return d
}

// exchangeQueue is a list of calls that wait to be sent.
type exchangeQueue struct{ head, tail *exchange }

func (q *exchangeQueue) push(x *exchange) {
	x.next, x.queued = nil, true
	if q.tail == nil {
		q.head = x
	} else {
		q.tail.next = x
	}
	q.tail = x
}

func (q *exchangeQueue) pop() *exchange {
	x := q.head
	if x != nil {
		q.head = x.next
		if q.head == nil {
			q.tail = nil
		}
		x.next, x.queued = nil, false
	}
	return x
}

func (q *exchangeQueue) remove(x *exchange) {
	var keep exchangeQueue
	for y := q.pop(); y != nil; y = q.pop() {
		if y != x {
			keep.push(y)
		}
	}
	*q = keep
}
