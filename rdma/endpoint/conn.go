package endpoint

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/rstored/rstored/rdma"
)

// Config describes one side of a connection. Zero fields get defaults.
type Config struct {
	// PD is the protection domain; nil makes one for the connection.
	PD rdma.PD
	// Loop is the device's loop for connections that are dialed; nil means the
	// first.
	Loop rdma.Loop

	SendDepth int // send requests at once; default 128
	SendSGE   int // gather elements of one; default 4
	// RecvDepth is the number of posted receives, RecvSize their size in bytes; defaults 16 and
	// 4096. A negative RecvDepth posts none: SENDs of the peer then wait.
	RecvDepth int
	RecvSize  int

	Params rdma.ConnParams // depths of 0 mean 16 both ways; NoReads for none
	// NoReads leaves the depths of Params as they are.
	NoReads bool

	// Admit, on the listening side, may refuse a connection: by a reject reason (IBTA 12.6.7.2)
	// other than 0, and private data for the peer.
	Admit func(r rdma.ConnRequest) (reason uint16, private []byte)
}

func (c *Config) setDefaults() {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.SendDepth, 128)
	def(&c.SendSGE, 4)
	def(&c.RecvDepth, 16)
	def(&c.RecvSize, 4096)
	c.RecvDepth = max(c.RecvDepth, 0)
	if !c.NoReads {
		const depth = 16
		if c.Params.ResponderResources == 0 {
			c.Params.ResponderResources = depth
		}
		if c.Params.InitiatorDepth == 0 {
			c.Params.InitiatorDepth = depth
		}
	}
}

// Message is a received message.
type Message struct {
	Data    []byte // a copy
	Len     int    // bytes of the SEND, or of the WRITE with immediate
	Imm     uint32
	HasImm  bool
	InvRKey uint32 // the key that the peer's SEND invalidated
	HasInv  bool
}

// Remote names memory of the peer.
type Remote struct {
	Addr uint64
	RKey uint32
}

// At is the memory off bytes on.
func (r Remote) At(off int) Remote { return Remote{r.Addr + uint64(off), r.RKey} }

// RemoteOf is a region as a peer names it.
func RemoteOf(m rdma.MR) Remote { return Remote{m.Addr(), m.RKey()} }

// Error is a completion with a status other than success.
type Error struct {
	Op     rdma.WCOp
	Status rdma.Status
}

func (e *Error) Error() string { return fmt.Sprintf("RDMA request failed: %v", e.Status) }

// RejectedError is the peer's refusal of a connection.
type RejectedError struct {
	Reason      uint16
	PrivateData []byte
	Err         error
}

func (e *RejectedError) Error() string { return e.Err.Error() }
func (e *RejectedError) Unwrap() error { return e.Err }

// Conn is a connection. Its methods may be called from any goroutine.
type Conn struct {
	dev  rdma.Device
	loop rdma.Loop
	pd   rdma.PD
	cfg  Config

	// On the loop.
	cq    rdma.CQ
	conn  rdma.Conn
	recvs rdma.MR
	ops   map[uint64]*op
	next  uint64

	messages chan received
	up       chan struct{} // closed when the connection is established or has failed
	done     chan struct{} // closed when it is over
	once     sync.Once

	mu      sync.Mutex
	private []byte
	event   rdma.ConnEvent
	err     error
}

// op is a list of send requests that a goroutine waits for. It belongs to the loop from submit to
// finish.
type op struct {
	c    *Conn
	wrs  []rdma.SendWR
	post func() // made once
	done chan struct{}
	wc   rdma.WC
	err  error
	fail bool
}

var ops = sync.Pool{New: func() any {
	o := &op{done: make(chan struct{}, 1)}
	o.post = o.submit
	return o
}}

func newConn(dev rdma.Device, loop rdma.Loop, cfg Config) (*Conn, error) {
	c := &Conn{
		dev: dev, loop: loop, pd: cfg.PD, cfg: cfg, ops: map[uint64]*op{},
		messages: make(chan received, cfg.RecvDepth), up: make(chan struct{}), done: make(chan struct{}),
	}
	var err error
	if c.pd == nil {
		if c.pd, err = dev.AllocPD(); err != nil {
			return nil, err
		}
	}
	if cfg.RecvDepth > 0 {
		if c.recvs, err = c.pd.Register(make([]byte, cfg.RecvDepth*cfg.RecvSize), rdma.LocalWrite); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// qp is the queue pair's description. On the loop.
func (c *Conn) qp() (rdma.QPConfig, error) {
	var err error
	c.cq, err = c.dev.CreateCQ(c.loop, rdma.CQOptions{Depth: c.cfg.SendDepth + c.cfg.RecvDepth + 1, OnEvent: c.completions})
	return rdma.QPConfig{PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq, Caps: rdma.QPCaps{
		MaxSendWR: c.cfg.SendDepth, MaxRecvWR: c.cfg.RecvDepth, MaxSendSGE: c.cfg.SendSGE, MaxRecvSGE: 1,
	}}, err
}

// prepare posts the receives. On the loop.
func (c *Conn) prepare(conn rdma.Conn) error {
	c.conn = conn
	for i := range c.cfg.RecvDepth {
		if err := c.repost(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

// recvID is the bit of an ID that distinguishes receives from send requests.
const recvID = 1 << 63

func (c *Conn) buffer(i uint64) []byte {
	n := uint64(c.cfg.RecvSize)
	return c.recvs.Bytes()[i*n : (i+1)*n]
}

func (c *Conn) repost(i uint64) error {
	return c.conn.QP().PostRecv([]rdma.RecvWR{{ID: recvID | i, SGL: []rdma.SGE{{Buf: c.buffer(i), LKey: c.recvs.LKey()}}}})
}

// completions is the callback of the completion queue.
func (c *Conn) completions() {
	var wcs [32]rdma.WC
	for n := c.cq.Poll(wcs[:]); n > 0; n = c.cq.Poll(wcs[:]) {
		for i := range wcs[:n] {
			c.complete(&wcs[i])
		}
	}
}

func (c *Conn) complete(wc *rdma.WC) {
	if wc.ID&recvID != 0 {
		if wc.Status == rdma.Success {
			c.received(wc)
		}
		return
	}
	o := c.ops[wc.ID>>1]
	if o == nil {
		return
	}
	if !o.fail {
		o.wc = *wc
		o.fail = wc.Status != rdma.Success
	}
	if wc.ID&1 != 0 { // the last of the list
		delete(c.ops, wc.ID>>1)
		o.finish()
	}
}

// received is a message in its buffer.
type received struct {
	Message
	buffer   uint64
	inBuffer bool
}

func (c *Conn) received(wc *rdma.WC) {
	c.messages <- received{ // does not block: it has room for all posted receives
		Message: Message{
			Len: int(wc.ByteLen), Imm: wc.Imm, HasImm: wc.Flags&rdma.WithImm != 0,
			InvRKey: wc.InvRKey, HasInv: wc.Flags&rdma.WithInv != 0,
		},
		buffer: wc.ID &^ recvID, inBuffer: wc.Op == rdma.WCRecv,
	}
}

// handle is the callback of the connection.
func (c *Conn) handle(_ rdma.Conn, e rdma.ConnEvent) {
	c.mu.Lock()
	if e.Kind == rdma.EventEstablished {
		c.private = append([]byte(nil), e.PrivateData...)
		c.event = e
		c.event.PrivateData = nil
		close(c.up)
		c.mu.Unlock()
		return
	}
	c.err = e.Err
	if e.Kind == rdma.EventRejected {
		c.err = &RejectedError{Reason: e.Reason, PrivateData: append([]byte(nil), e.PrivateData...), Err: e.Err}
	}
	c.mu.Unlock()
	c.once.Do(func() { close(c.done) })
}

// Dial connects to a listener.
func Dial(ctx context.Context, dev rdma.Device, remote netip.AddrPort, cfg Config) (*Conn, error) {
	cfg.setDefaults()
	loop := cfg.Loop
	if loop == nil {
		loop = dev.Loops()[0]
	}
	c, err := newConn(dev, loop, cfg)
	if err != nil {
		return nil, err
	}
	begun := make(chan error, 1)
	if !loop.Submit(func() {
		qp, err := c.qp()
		if err == nil {
			_, err = dev.Dial(loop, rdma.DialParams{Remote: remote, QP: qp, Params: cfg.Params, Prepare: c.prepare, On: c.handle})
		}
		begun <- err
	}) {
		return nil, rdma.ErrClosed
	}
	if err := <-begun; err != nil {
		return nil, err
	}
	select {
	case <-c.up:
		return c, nil
	case <-c.done:
		err = c.Err()
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.Close()
	return nil, err
}

// PD is the connection's protection domain.
func (c *Conn) PD() rdma.PD { return c.pd }

// Register registers memory in the connection's domain.
func (c *Conn) Register(buf []byte, access rdma.Access) (rdma.MR, error) {
	return c.pd.Register(buf, access)
}

// Negotiated is the event of the connection's establishment, without private
// data.
func (c *Conn) Negotiated() rdma.ConnEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.event
}

// PrivateData is that of the peer's REP, on the side that dialed.
func (c *Conn) PrivateData() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.private
}

// Done is closed when the connection is over.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why the connection is over.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Loop is the loop that the connection lives on.
func (c *Conn) Loop() rdma.Loop { return c.loop }

// QP is the queue pair, for use on the loop.
func (c *Conn) QP() rdma.QP { return c.conn.QP() }

// Disconnect ends the connection. The device notifies the peer.
func (c *Conn) Disconnect() { c.loop.Submit(func() { c.conn.Disconnect() }) }

// Close ends the connection and releases its resources, except a PD of Config.
func (c *Conn) Close() {
	closed := make(chan struct{})
	if c.loop.Submit(func() { c.close(); close(closed) }) {
		<-closed
	}
	c.once.Do(func() { close(c.done) })
}

func (c *Conn) close() {
	if c.conn != nil {
		c.conn.Close()
	}
	if c.cq != nil {
		c.cq.Close()
	}
	c.abandon()
	if c.recvs != nil {
		c.recvs.Close()
	}
	if c.cfg.PD == nil {
		c.pd.Close()
	}
	c.mu.Lock()
	if c.err == nil {
		c.err = rdma.ErrClosed
	}
	c.mu.Unlock()
}

// abandon fails the calls in progress: the queue pair is gone, and there will be no completions.
func (c *Conn) abandon() {
	for id, o := range c.ops {
		delete(c.ops, id)
		o.err = rdma.ErrClosed
		o.finish()
	}
}

// submit posts the requests. On the loop.
func (o *op) submit() {
	c := o.c
	id := c.next
	c.next++
	for i := range o.wrs {
		o.wrs[i].ID = id << 1
	}
	last := &o.wrs[len(o.wrs)-1]
	last.ID |= 1
	last.Flags |= rdma.Signaled
	if err := c.conn.QP().PostSend(o.wrs); err != nil {
		o.err = err
		o.finish()
		return
	}
	c.ops[id] = o
}

func (o *op) finish() { o.done <- struct{}{} }

// Do posts requests as one list and waits until the last has completed. The
// completion is that of the last, or of the first that failed.
func (c *Conn) Do(ctx context.Context, wrs ...rdma.SendWR) (rdma.WC, error) {
	if len(wrs) == 0 {
		return rdma.WC{}, nil
	}
	o := ops.Get().(*op)
	o.c, o.err, o.fail, o.wc = c, nil, false, rdma.WC{}
	o.wrs = append(o.wrs[:0], wrs...)
	if !c.loop.Submit(o.post) {
		return rdma.WC{}, rdma.ErrClosed
	}
	var late error
	select {
	case <-o.done:
	case <-ctx.Done():
		late = ctx.Err()
		c.Disconnect()
		<-o.done
	}
	wc, err := o.wc, o.err
	clear(o.wrs)
	ops.Put(o)
	switch {
	case late != nil && (err != nil || wc.Status != rdma.Success):
		return wc, late
	case err != nil:
		return wc, err
	case wc.Status != rdma.Success:
		return wc, &Error{Op: wc.Op, Status: wc.Status}
	}
	return wc, nil
}

// sgl is a gather or scatter list of the bytes at [off, off+n) of a region.
func sgl(m rdma.MR, off, n int) []rdma.SGE {
	if m == nil || n == 0 {
		return nil
	}
	return []rdma.SGE{{Buf: m.Bytes()[off : off+n], LKey: m.LKey()}}
}

// Send sends n bytes of a region as one message.
func (c *Conn) Send(ctx context.Context, m rdma.MR, off, n int) error {
	_, err := c.Do(ctx, rdma.SendWR{Op: rdma.OpSend, SGL: sgl(m, off, n)})
	return err
}

// Write writes n bytes of a region into memory of the peer.
func (c *Conn) Write(ctx context.Context, m rdma.MR, off, n int, to Remote) error {
	_, err := c.Do(ctx, rdma.SendWR{Op: rdma.OpWrite, SGL: sgl(m, off, n), RemoteAddr: to.Addr, RKey: to.RKey})
	return err
}

// Read reads memory of the peer into n bytes of a region.
func (c *Conn) Read(ctx context.Context, m rdma.MR, off, n int, from Remote) error {
	_, err := c.Do(ctx, rdma.SendWR{Op: rdma.OpRead, SGL: sgl(m, off, n), RemoteAddr: from.Addr, RKey: from.RKey})
	return err
}

// CompareSwap replaces 8 bytes of the peer's memory by swap if they are
// compare, and puts what they were into 8 bytes of a region, in the order of
// this host.
func (c *Conn) CompareSwap(ctx context.Context, m rdma.MR, off int, at Remote, compare, swap uint64) error {
	_, err := c.Do(ctx, rdma.SendWR{Op: rdma.OpCompareSwap, SGL: sgl(m, off, 8), RemoteAddr: at.Addr, RKey: at.RKey, Compare: compare, SwapAdd: swap})
	return err
}

// FetchAdd adds to 8 bytes of the peer's memory and puts what they were into 8
// bytes of a region.
func (c *Conn) FetchAdd(ctx context.Context, m rdma.MR, off int, at Remote, add uint64) error {
	_, err := c.Do(ctx, rdma.SendWR{Op: rdma.OpFetchAdd, SGL: sgl(m, off, 8), RemoteAddr: at.Addr, RKey: at.RKey, SwapAdd: add})
	return err
}

// Recv waits for a message. Messages that arrived before the end of the connection are still
// delivered.
func (c *Conn) Recv(ctx context.Context) (Message, error) {
	select {
	case r := <-c.messages:
		return c.take(r), nil
	default:
	}
	select {
	case r := <-c.messages:
		return c.take(r), nil
	case <-ctx.Done():
		return Message{}, ctx.Err()
	case <-c.done:
	}
	select {
	case r := <-c.messages:
		return c.take(r), nil
	default:
		return Message{}, c.Err()
	}
}

// take copies a message out of its buffer and posts the buffer again.
func (c *Conn) take(r received) Message {
	if r.inBuffer {
		r.Data = append([]byte(nil), c.buffer(r.buffer)[:r.Len]...)
	}
	c.loop.Submit(func() { _ = c.repost(r.buffer) }) // fails when the connection is over
	return r.Message
}
