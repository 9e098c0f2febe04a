package endpoint

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/rstored/rstored/rdma"
)

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
	c.cq, err = c.dev.CreateCQ(c.loop, rdma.CQOptions{
		Depth:   c.cfg.SendDepth + c.cfg.RecvDepth + 1,
		OnEvent: c.completions,
	})
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
		c.private = slices.Clone(e.PrivateData)
		c.event = e
		c.event.PrivateData = nil
		close(c.up)
		c.mu.Unlock()
		return
	}
	c.err = e.Err
	if e.Kind == rdma.EventRejected {
		c.err = &RejectedError{Reason: e.Reason, PrivateData: slices.Clone(e.PrivateData), Err: e.Err}
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
			_, err = dev.Dial(loop, rdma.DialParams{
				Remote: remote, QP: qp, Params: cfg.Params, Prepare: c.prepare,
				On: c.handle,
			})
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

// Recv waits for a message. Messages that arrived before the end of the connection are still
// delivered.
func (c *Conn) Recv(ctx context.Context) (Message, error) {
	// select chooses at random among the channels that are ready, so messages are tried first and
	// last.
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
		r.Data = slices.Clone(c.buffer(r.buffer)[:r.Len])
	}
	c.loop.Submit(func() { _ = c.repost(r.buffer) }) // fails when the connection is over
	return r.Message
}
