package perf

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/rstored/rstored/rdma"
)

// Options say what to measure.
type Options struct {
	Op      Op
	Latency bool // else bandwidth
	// Sizes of messages in bytes, one test each.
	Sizes []int
	// Iterations is the number of messages of a test on each queue pair. If Duration
	// is set, as many are posted as it allows instead.
	Iterations int
	Duration   time.Duration
	// Depth is how many messages are under way on each queue pair, as far as they are
	// 64 MiB together or one on each; QPs is how many queue pairs there are. Both are 1
	// in tests of latency.
	Depth int
	QPs   int
	// Bidirectional has the server post as well.
	Bidirectional bool
}

// latencyMax bounds the iterations of a test of latency, of which each has a time
// stamp.
const latencyMax = 10_000_000

// ErrOptions is matched by the error of options that make no sense.
var ErrOptions = errors.New("bad options")

// Validate says what makes no sense. The server may allow less.
func (o *Options) Validate() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", ErrOptions, fmt.Sprintf(format, a...))
	}
	switch {
	case !o.Op.known():
		return bad("%v", o.Op)
	case len(o.Sizes) == 0:
		return bad("no size")
	case o.Duration < 0 || o.Duration == 0 && o.Iterations < 1:
		return bad("%d iterations", o.Iterations)
	case o.Latency && o.Duration == 0 && o.Iterations > latencyMax:
		return bad("%d iterations; the most for latency is %d", o.Iterations, latencyMax)
	case o.Depth < 1 || o.Depth > math.MaxUint16:
		return bad("a queue depth of %d", o.Depth)
	case o.QPs < 1 || o.QPs > math.MaxUint16:
		return bad("%d queue pairs", o.QPs)
	case o.Latency && o.Bidirectional:
		return bad("latency has one direction")
	case o.Latency && (o.QPs > 1 || o.Depth > 1):
		return bad("latency is that of one message at a time, on one queue pair")
	}
	for _, n := range o.Sizes {
		switch {
		case n < 1 || n > SizeMax:
			return bad("a size of %d bytes; it is 1 to %d", n, SizeMax)
		case o.Op.Atomic() && n != AtomicSize:
			return bad("a size of %d bytes; atomics have %d", n, AtomicSize)
		}
	}
	return nil
}

// plan is what the options ask of a connection.
func (o *Options) plan() plan {
	p := plan{op: o.Op, latency: o.Latency, bidirectional: o.Bidirectional, depth: o.Depth, qps: o.QPs}
	for _, n := range o.Sizes {
		p.size = max(p.size, n)
	}
	return p
}

// Result is what a test of one size measured.
type Result struct {
	Size    int       // bytes of a message
	Sent    Direction // what the client posted
	Back    Direction // what the server posted, in bidirectional tests
	Latency Latency   // of tests of latency
}

// RefusedError is a server's refusal.
type RefusedError struct {
	Server netip.AddrPort
	Why    string
}

func (e *RefusedError) Error() string { return fmt.Sprintf("%v refuses: %s", e.Server, e.Why) }

// ConnectError is a connection that did not come about for another reason.
type ConnectError struct {
	Server netip.AddrPort
	Reason uint16 // of the REJ, if there was one
	Err    error
}

func (e *ConnectError) Error() string { return fmt.Sprintf("connecting to %v: %v", e.Server, e.Err) }
func (e *ConnectError) Unwrap() error { return e.Err }

// Run connects to a server, measures each size in turn, and calls each with the results.
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
		each(c.result) // the loop has let go of it
	}
	return nil
}

// newClient prepares a run and takes its memory, which release gives back.
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

// release gives the memory back. The run is closed, or never connected.
func (c *client) release() {
	for _, m := range c.mems {
		m.release()
	}
	_ = c.arena.Close()
}

// closeTime is how long the loop may take to let go of a run.
const closeTime = 5 * time.Second

// client is a run. Its fields but for the channels belong to the loop once it connects.
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
	pings   uint64      // still to come
	seq     uint32      // of the size
	busy    int         // ends that post, or whose server does
	allowed time.Duration
	result  Result

	up     chan struct{} // all are connected
	done   chan struct{} // a size is measured
	broken chan error    // the first thing that went wrong
}

// wait has the loop do something and waits for the outcome.
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

// fail ends the run. On the loop.
func (c *client) fail(err error) {
	select {
	case c.broken <- err:
	default:
	}
}

// close ends all connections and returns when their memory is not used any more.
func (c *client) close() {
	ended := make(chan struct{})
	if !c.loop.Submit(func() { c.disconnect(func() { close(ended) }) }) {
		return
	}
	select {
	case <-ended:
	case <-time.After(closeTime): // the loop has ended meanwhile
	}
}

// disconnect ends all connections and calls then when their memory is not used any
// more. On the loop.
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

// connect dials one connection for each queue pair. On the loop.
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
		req := request{
			run: c.run, op: c.o.Op, size: uint32(p.size), depth: uint16(p.depth), qps: uint16(c.o.QPs), mem: mem.remote(),
		}
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

// event takes a connection's events.
func (c *client) event(e *end, ev rdma.ConnEvent) {
	switch ev.Kind {
	case rdma.EventEstablished:
		var r reply
		if err := r.decode(ev.PrivateData); err != nil {
			c.fail(&ConnectError{Server: c.server, Err: fmt.Errorf("the answer is none: %w", err)})
			return
		}
		if int64(r.size) < int64(e.plan.size) {
			c.fail(&ConnectError{Server: c.server, Err: fmt.Errorf("room for %d bytes instead of %d", r.size, e.plan.size)})
			return
		}
		e.peer = r.mem
		c.allowed = time.Duration(r.duration) * time.Millisecond
		if c.o.Duration > c.allowed {
			c.fail(&RefusedError{Server: c.server, Why: fmt.Sprintf("%v is longer than the %v that a measurement may take", c.o.Duration, c.allowed)})
			return
		}
		c.alive(e, rdma.Time(r.idle)*rdma.Millisecond/4)
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
		c.fail(fmt.Errorf("the connection to %v is over: %w; the server's log says why, and it ends measurements after %v", c.server, ev.Err, c.allowed))
	}
}

// alive tells the server from time to time that the client is there.
func (c *client) alive(e *end, every rdma.Time) {
	c.loop.After(every, func() {
		if !e.over {
			e.say(&message{kind: msgAlive})
			c.alive(e, every)
		}
	})
}

// begin starts the test of a size. On the loop.
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
			e.say(&message{kind: msgGo, seq: c.seq, size: uint32(size), count: count})
		}
	}
	for _, e := range c.ends {
		e.left = left
		e.idle = c.ended
		e.post()
	}
}

// enough ends the test of a size whose time is over.
func (c *client) enough() {
	c.pings = 0
	for _, e := range c.ends {
		if e.over {
			continue
		}
		e.left = 0
		if c.o.Bidirectional {
			e.say(&message{kind: msgStop, seq: c.seq})
		}
		if !c.o.Latency && e.under == 0 && e.idle != nil {
			e.idle = nil
			c.ended()
		}
	}
}

// ended counts an end whose messages have all completed, or whose server's have.
func (c *client) ended() {
	if c.busy--; c.busy > 0 {
		return
	}
	c.result.Sent = c.gauge.direction()
	c.done <- struct{}{}
}

// message takes a message of the server.
func (c *client) message(m *message) {
	if m.kind != msgReport || m.seq != c.seq || c.busy == 0 {
		c.fail(errOrder)
		return
	}
	b := &c.result.Back
	b.Iterations += m.count
	b.Bytes += m.count * uint64(c.result.Size)
	b.Elapsed = max(b.Elapsed, time.Duration(min(m.elapsed, math.MaxInt64)))
	b.Peak += float64(m.peak)
	c.ended()
}

// pong is called when a message of a test of latency has come back, and to begin one.
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
