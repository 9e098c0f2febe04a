package rpcrdma

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Handler serves the calls of one connection; *rpc.Server is a Handler.
//
// Dispatch is called on the connection's loop with mayBlock false and must not wait. It calls
// c.Reply exactly once, now or later, and calls c.Detach before it passes c to another goroutine.
// msg and the memory from c.Payload are valid until c.Reply.
//
// Optional interfaces of a Handler: io.Closer is closed when the connection has ended; Pacer
// limits the rate of calls.
type Handler interface {
	Dispatch(c *rpc.Call, msg xdr.Decoder, mayBlock bool)
}

// Listener serves RPC-over-RDMA on one port of a device. Its methods may be
// called from any goroutine, except on a loop of the device.
type Listener struct {
	dev rdma.Device
	// bounded says that the device is a kernel device: it receives while our loop is busy.
	bounded bool
	pd      rdma.PD
	l       rdma.Listener
	cfg     Config
	open    func(peer rpc.Peer, disconnect func()) (Handler, error)
	pool    *pool
	n       counters
	// volatile: the device can send memory that others change, see rdma.VolatileSender.
	volatile bool

	mu     sync.Mutex
	conns  map[*serverConn]struct{}
	closed bool
	// paused: connections postpone what arrives, see Pause.
	paused bool
	gone   sync.Cond // a connection ended
	// deviceClosed: the device was closed before the Listener. Handlers may still use the memory and
	// no completion will report their end, so it is never unmapped.
	deviceClosed bool
	finished     chan struct{} // closed when Close has done its work
}

// rejectConsumer is the CM reject reason "consumer reject" (IBTA 12.6.7.2, code 28).
const rejectConsumer = 28

// Serve serves srv on a port of dev until the Listener is closed.
func Serve(dev rdma.Device, port uint16, srv *rpc.Server, cfg Config) (*Listener, error) {
	return ServeHandler(dev, port, func(rpc.Peer, func()) (Handler, error) { return srv, nil }, cfg)
}

// ServeHandler is Serve with a Handler of its own for each connection. open makes the Handler; if
// it returns an error the connection is rejected. open must not wait. It may retain disconnect,
// which ends the connection and may be called from any goroutine.
func ServeHandler(
	dev rdma.Device, port uint16, open func(peer rpc.Peer, disconnect func()) (Handler, error), cfg Config,
) (*Listener, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, fmt.Errorf("rpcrdma: allocating a protection domain: %w", err)
	}
	_, bounded := dev.(rdma.Limited)
	l := &Listener{
		dev: dev, bounded: bounded, pd: pd, cfg: cfg.withDefaults().within(rdma.LimitsOf(dev)), open: open,
		conns: make(map[*serverConn]struct{}), finished: make(chan struct{}),
	}
	if v, ok := dev.(rdma.VolatileSender); ok {
		l.volatile = v.SendsVolatile()
	}
	l.gone.L = &l.mu
	if l.pool, err = l.openPool(); err != nil {
		pd.Close()
		return nil, fmt.Errorf("rpcrdma: %w", err)
	}
	if l.l, err = dev.Listen(port, l.accept); err != nil {
		l.pool.close()
		pd.Close()
		return nil, fmt.Errorf("rpcrdma: listening on port %d: %w", port, err)
	}
	return l, nil
}

// openPool registers the Listener's memory.
func (l *Listener) openPool() (*pool, error) {
	if l.cfg.Shared != nil {
		return newPool(l.pd, l.cfg.Shared, false)
	}
	m, err := newMemory(l.cfg.Memory, l.cfg.receiveMemory(), l.cfg.MaxConns, l.cfg.Pinned)
	if err != nil {
		return nil, err
	}
	p, err := newPool(l.pd, m, true)
	if err != nil {
		m.Close()
	}
	return p, err
}

// Memory describes the use of the Listener's memory.
func (l *Listener) Memory() MemoryStats { return l.pool.Stats(l.cfg.Receive) }

// Addr is the address listened on.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Stats returns the counts since the start.
func (l *Listener) Stats() Stats {
	s := l.n.stats()
	s.MemoryInUse = uint64(l.pool.inUse())
	return s
}

// Conns describes the connections, ordered by remote address.
func (l *Listener) Conns() []ConnInfo {
	out := make([]ConnInfo, 0)
	for _, c := range l.all() {
		out = append(out, c.info())
	}
	slices.SortFunc(out, func(a, b ConnInfo) int { return a.Remote.Compare(b.Remote) })
	return out
}

// closeTime is how long Close waits for the loops to end their connections.
const closeTime = 10 * time.Second

// Close stops listening, disconnects every client and waits for the calls in progress. Their
// replies are lost; clients send the calls again after they reconnect.
func (l *Listener) Close() error {
	return l.end(context.Background(), (*serverConn).disconnect)
}

// Shutdown is Close, but first lets every connection finish the calls that
// have arrived, until ctx ends.
func (l *Listener) Shutdown(ctx context.Context) error {
	return l.end(ctx, (*serverConn).drain)
}

// end stops listening and ends the connections: first is called for each, and disconnect for those
// that are left when ctx ends. The memory is unmapped when no connection and no loop uses it:
//
//	listener closed --> connections ended, handlers returned (wait) --> loops turned (settle)
//	                --> memory deregistered --> protection domain freed
//
// If a handler does not return within closeTime, the memory stays mapped.
func (l *Listener) end(ctx context.Context, first func(*serverConn)) error {
	l.mu.Lock()
	l.each(first)
	if l.closed { // another call of end does the work
		l.mu.Unlock()
		<-l.finished
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	defer close(l.finished)
	err := l.l.Close()
	l.mu.Lock()
	if !l.wait(ctx) {
		l.each((*serverConn).disconnect)
		wait, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if !l.wait(wait) {
			n := len(l.conns)
			l.mu.Unlock()
			return errors.Join(err, fmt.Errorf("rpcrdma: %d connections still have calls in progress after %v", n, closeTime))
		}
	}
	deviceClosed := l.deviceClosed
	l.mu.Unlock()
	if deviceClosed {
		return err
	}
	l.settle()
	err = errors.Join(err, l.pool.close())
	l.pd.Close()
	return err
}

// settle waits until every loop has ended the turn in which its last connection ended. A loop sends
// packets at the end of its turn, and their payload may lie in our memory.
func (l *Listener) settle() {
	for range 2 {
		for _, loop := range l.dev.Loops() {
			turned := make(chan struct{})
			if loop.Submit(func() { close(turned) }) {
				select {
				case <-turned:
				case <-time.After(closeTime): // the loop ended meanwhile
				}
			}
		}
	}
}

// each submits fn for every connection to the connection's loop. The caller holds mu.
func (l *Listener) each(fn func(*serverConn)) {
	for c := range l.conns {
		if !c.loop.Submit(func() { fn(c) }) {
			delete(l.conns, c)    // the loop has ended, and the connection with it,
			l.deviceClosed = true // but a handler may still serve its calls
		}
	}
}

// wait waits for the last connection to end. It reports false if ctx ends first. The caller
// holds mu.
func (l *Listener) wait(ctx context.Context) bool {
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		l.gone.Broadcast()
		l.mu.Unlock()
	})
	defer stop()
	for len(l.conns) > 0 {
		if ctx.Err() != nil {
			return false
		}
		l.gone.Wait()
	}
	return true
}

// all lists the connections.
func (l *Listener) all() []*serverConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.conns))
}

// forget removes a connection whose memory is free.
func (l *Listener) forget(c *serverConn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.gone.Broadcast()
	l.mu.Unlock()
}

// accept answers a connection request, on the loop that will own the connection.
func (l *Listener) accept(req rdma.ConnRequest) {
	err := l.admit(req)
	if err == nil {
		l.n.connections.Add(1)
		return
	}
	l.n.add(errConnRefused)
	l.cfg.Logger.Warn("connection refused", "peer", req.Remote().String(), "error", err)
}

// noMemory counts a connection refused for lack of memory, and describes the shortage.
func (l *Listener) noMemory() error {
	l.cfg.Limiter.CountRefused(rpc.RefusedMemory)
	m := l.Memory()
	if l.pool.pinned && m.Connections >= l.pool.most {
		return fmt.Errorf("the pinned memory of %d bytes is enough for %d connections, which exist already", m.Limit,
			l.pool.most)
	}
	return fmt.Errorf("no memory for messages: %d connections use %d of %d bytes, and each needs %d at least",
		m.Connections, m.Messages, m.Limit/messageShare, receives(floorCredits)*l.cfg.Receive)
}

// admit accepts a connection request, or rejects it and says why.
func (l *Listener) admit(req rdma.ConnRequest) error {
	if err := l.cfg.Limiter.Admit(req.Remote().Addr(), false); err != nil {
		refuse(req, err)
		return err
	}
	c, err := newServerConn(l, req)
	if err != nil {
		l.cfg.Limiter.Release(req.Remote().Addr(), false)
		refuse(req, err)
		return err
	}
	l.mu.Lock()
	switch {
	case l.closed:
		err = rdma.ErrClosed
	case len(l.conns) >= l.cfg.MaxConns:
		l.cfg.Limiter.CountRefused(rpc.RefusedConnections)
		err = fmt.Errorf("%d connections exist already (max_connections)", len(l.conns))
	default:
		c.paused = l.paused
		l.conns[c] = struct{}{}
	}
	l.mu.Unlock()
	if err != nil {
		refuse(req, err)
	} else {
		err = c.accept(req)
	}
	if err != nil {
		c.cq.Close()
		c.release()
	}
	return err
}
