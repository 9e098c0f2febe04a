package perf

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/rstored/rstored/rdma"
)

// Run connects to a server, measures the sizes one after the other, and calls each with the
// results.
func Run(ctx context.Context, dev rdma.Device, server netip.AddrPort, o Options, each func(Result)) error {
	if err := o.Validate(); err != nil {
		return err
	}
	c, err := newClient(dev, server, o)
	if err != nil {
		return err
	}
	defer c.release()
	defer c.close() // before the memory is released
	if err := c.wait(ctx, c.connect, c.up); err != nil {
		return err
	}
	for _, n := range o.Sizes {
		if err := c.wait(ctx, func() { c.begin(n) }, c.done); err != nil {
			return err
		}
		each(c.result) // the loop does not use it until the next begin
	}
	return nil
}

// newClient prepares a run, and allocates its memory. The caller calls release.
func newClient(dev rdma.Device, server netip.AddrPort, o Options) (_ *client, err error) {
	c := &client{
		o: o, dev: dev, loop: dev.Loops()[0], server: server, run: rand.Uint64(),
		up: make(chan struct{}, 1), done: make(chan struct{}, 1), broken: make(chan error, 1),
	}
	p := o.plan()
	if c.arena, err = rdma.NewArena(o.QPs * block(p.need(false))); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	for range o.QPs {
		mem, err := newBuffers(dev, c.arena, &p, false)
		if err != nil {
			return nil, err
		}
		c.mems = append(c.mems, mem)
	}
	if o.Latency && o.Duration == 0 {
		c.stamps = make([]rdma.Time, 0, o.Iterations+1)
	}
	return c, nil
}

// release frees the memory. The run is closed, or was never connected.
func (c *client) release() {
	for _, m := range c.mems {
		m.release()
	}
	_ = c.arena.Close()
}

// closeTime bounds the wait for the loop to end a run.
const closeTime = 5 * time.Second

// client is a run. When it connects, its fields belong to the loop, except the channels.
type client struct {
	o      Options
	dev    rdma.Device
	loop   rdma.Loop
	server netip.AddrPort
	run    uint64
	arena  *rdma.Arena
	mems   []*buffers
	ends   []*end
	open   int // ends that are connected
	cancel func()

	gauge   gauge       // of all ends
	stamps  []rdma.Time // of tests of latency: the start of each message, then the end
	pings   uint64      // messages of a test of latency that are not posted yet
	seq     uint32      // of the test
	busy    int         // ends that post messages, and servers that do
	allowed time.Duration
	result  Result

	up     chan struct{} // all are connected
	done   chan struct{} // the test of a size has ended
	broken chan error    // the first error
}

// wait runs do on the loop and waits for the outcome.
func (c *client) wait(ctx context.Context, do func(), outcome <-chan struct{}) error {
	if !c.loop.Submit(do) {
		return rdma.ErrClosed
	}
	select {
	case <-outcome:
		return nil
	case err := <-c.broken:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fail ends the run with an error. It runs on the loop.
func (c *client) fail(err error) {
	select {
	case c.broken <- err:
	default:
	}
}

// close ends all connections. When it returns, the device uses none of their memory.
func (c *client) close() {
	ended := make(chan struct{})
	if !c.loop.Submit(func() { c.disconnect(func() { close(ended) }) }) {
		return
	}
	select {
	case <-ended:
	case <-time.After(closeTime): // the loop has ended
	}
}

// disconnect ends all connections, and calls then when the device uses none of their memory. It
// runs on the loop.
func (c *client) disconnect(then func()) {
	if c.cancel != nil {
		c.cancel()
	}
	left := len(c.ends)
	if left == 0 {
		then()
	}
	for _, e := range c.ends {
		e.close(func() {
			if left--; left == 0 {
				then()
			}
		})
	}
}

// connect dials one connection for each queue pair. It runs on the loop.
func (c *client) connect() {
	p := c.o.plan()
	for _, mem := range c.mems {
		e, err := newEnd(c.dev, c.loop, p, false, mem)
		if err != nil {
			c.fail(err)
			return
		}
		e.gauge, e.failed, e.message = &c.gauge, c.fail, c.message
		if c.o.Latency {
			e.pong = c.pong
		}
		req := request{op: c.o.Op, requestBody: requestBody{
			Run: c.run, Size: uint32(p.size), Depth: uint16(p.depth), QPs: uint16(c.o.QPs), Mem: mem.remote(),
		}}
		if c.o.Latency {
			req.test |= flagLatency
		}
		if c.o.Bidirectional {
			req.test |= flagBidirectional
		}
		params := connParams
		params.PrivateData = req.encode()
		_, err = c.dev.Dial(c.loop, rdma.DialParams{
			Remote: c.server, QP: e.config(), Params: params, Prepare: e.prepare,
			On: func(_ rdma.Conn, ev rdma.ConnEvent) { c.event(e, ev) },
		})
		if err != nil {
			c.fail(&ConnectError{Server: c.server, Err: err})
			return
		}
		c.ends = append(c.ends, e)
	}
}

// event handles an event of a connection. The server is not trusted: its memory must have room for
// the largest message.
func (c *client) event(e *end, ev rdma.ConnEvent) {
	switch ev.Kind {
	case rdma.EventEstablished:
		var r reply
		if err := r.decode(ev.PrivateData); err != nil {
			c.fail(&ConnectError{Server: c.server, Err: fmt.Errorf("the answer is none: %w", err)})
			return
		}
		if int64(r.Size) < int64(e.plan.size) {
			c.fail(&ConnectError{Server: c.server, Err: fmt.Errorf("room for %d bytes instead of %d", r.Size, e.plan.size)})
			return
		}
		e.peer = r.Mem
		c.allowed = time.Duration(r.Duration) * time.Millisecond
		if c.o.Duration > c.allowed {
			c.fail(&RefusedError{
				Server: c.server,
				Why:    fmt.Sprintf("%v is longer than the %v that a measurement may take", c.o.Duration, c.allowed),
			})
			return
		}
		c.alive(e, rdma.Time(r.Idle)*rdma.Millisecond/4)
		if c.open++; c.open == len(c.mems) {
			c.up <- struct{}{}
		}
	case rdma.EventRejected:
		if why := decodeReject(ev.PrivateData); why != "" {
			c.fail(&RefusedError{Server: c.server, Why: why})
			return
		}
		c.fail(&ConnectError{Server: c.server, Reason: ev.Reason, Err: ev.Err})
	case rdma.EventUnreachable:
		c.fail(&ConnectError{Server: c.server, Err: ev.Err})
	default:
		c.fail(fmt.Errorf("the connection to %v is over: %w; the server's log says why, and it ends measurements after %v",
			c.server, ev.Err, c.allowed))
	}
}

// alive sends msgAlive at an interval.
func (c *client) alive(e *end, every rdma.Time) {
	c.loop.After(every, func() {
		if !e.over {
			e.say(&message{kind: msgAlive})
			c.alive(e, every)
		}
	})
}

// begin starts the test of a size. It runs on the loop.
func (c *client) begin(size int) {
	c.seq++
	c.result = Result{Size: size}
	count := uint64(c.o.Iterations)
	left := count
	if c.o.Duration > 0 {
		count, left = 0, math.MaxUint64
		c.cancel = c.loop.After(rdma.Time(c.o.Duration), c.enough)
	}
	for _, e := range c.ends {
		e.size(size)
	}
	if c.o.Latency {
		c.pings = left
		c.gauge.begin(size, 0)
		c.stamps = c.stamps[:0]
		c.pong(now())
		return
	}
	c.gauge.begin(size, count*uint64(len(c.ends)))
	c.busy = len(c.ends)
	if c.o.Bidirectional {
		c.busy *= 2
		for _, e := range c.ends {
			e.say(&message{msgGo, messageBody{Seq: c.seq, Size: uint32(size), Count: count}})
		}
	}
	for _, e := range c.ends {
		e.left = left
		e.idle = c.ended
		e.post()
	}
}

// enough ends a test at the end of Options.Duration: no more messages are posted.
func (c *client) enough() {
	c.pings = 0
	for _, e := range c.ends {
		if e.over {
			continue
		}
		e.left = 0
		if c.o.Bidirectional {
			e.say(&message{msgStop, messageBody{Seq: c.seq}})
		}
		if !c.o.Latency && e.under == 0 && e.idle != nil {
			e.idle = nil
			c.ended()
		}
	}
}

// ended counts an end, or a server, all of whose messages have completed. The last one ends the
// test.
func (c *client) ended() {
	if c.busy--; c.busy > 0 {
		return
	}
	c.result.Sent = c.gauge.direction()
	c.done <- struct{}{}
}

// message handles a message of the server. Only the report of the running test is legal.
func (c *client) message(m *message) {
	if m.kind != msgReport || m.Seq != c.seq || c.busy == 0 {
		c.fail(errOrder)
		return
	}
	b := &c.result.Back
	b.Iterations += m.Count
	b.Bytes += m.Count * uint64(c.result.Size)
	b.Elapsed = max(b.Elapsed, time.Duration(min(m.Elapsed, math.MaxInt64)))
	b.Peak += float64(m.Peak)
	c.ended()
}

// pong is called when a message of a test of latency was answered, and to begin the test. It posts
// the next message, or ends the test.
func (c *client) pong(at rdma.Time) {
	e := c.ends[0]
	first := c.gauge.began == 0
	if first {
		c.gauge.post(at, 1)
	} else {
		c.gauge.complete(at, 1)
	}
	if cap(c.stamps) > 0 {
		c.stamps = append(c.stamps, at)
	}
	if c.pings > 0 {
		c.pings--
		e.ping()
		return
	}
	c.result.Sent = c.gauge.direction()
	factor := 1.0
	if e.plan.pingPong() {
		factor = 2
	}
	if cap(c.stamps) > 0 {
		c.result.Latency = latency(c.stamps, factor)
	} else if n := c.result.Sent.Iterations; n > 0 {
		c.result.Latency.Average = float64(c.result.Sent.Elapsed) / float64(n) / factor
	}
	c.done <- struct{}{}
}
