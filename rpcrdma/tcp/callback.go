package tcp

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Bounds of the connections that a server makes to its clients.
const (
	callbackDefault = 256
	// callbackShare is which part of the connections one host may have.
	callbackShare = 8
	// callbackCalls is how many calls to one address are outstanding.
	callbackCalls = rpc.BackwardCalls
	// callbackAll is how many calls are outstanding, or wait, to all addresses.
	callbackAll = 1024
	// callbackIdle is how long a connection stays without a call.
	callbackIdle = time.Minute
)

// CallbackDialer calls clients on connections of its own, as NFS version 4.0 needs for callbacks.
// It connects when there is a call, closes idle connections, and bounds their number. Its methods
// may be called from any goroutine.
//
// Lock order: CallbackDialer.mu, then callbackCaller.mu.
//
//	what is bounded                  bound            beyond it
//	connections                      limit            ErrTooMany
//	connections to one host          limit / 8        ErrTooMany
//	calls to one address             BackwardCalls    the call waits, within its Timeout
//	calls to all addresses           1024             ErrTooMany
//	time of a call                   its Timeout      ErrTimeout
//	idle connection                  a minute         closed
//
// The client chooses the address (SETCLIENTID of NFS 4.0), so an address may belong to another
// host, may not answer, or may accept and never reply. Each case costs a place until the Timeout.
type CallbackDialer struct {
	limit int
	idle  time.Duration

	mu     sync.Mutex
	conns  int
	calls  int
	closed bool
	end    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
	hosts  map[netip.Addr]int             // connections
	all    map[*callbackCaller]struct{}   // those with a connection
	at     map[callbackTo]*callbackCaller // one of those
}

// callbackTo identifies a peer of a CallbackDialer: its address, and how calls to it are protected.
type callbackTo struct {
	addr   netip.AddrPort
	secure string
}

// NewCallbackDialer makes a CallbackDialer with at most limit connections, an eighth of them to one
// host; 0 means 256.
func NewCallbackDialer(limit int) *CallbackDialer {
	if limit <= 0 {
		limit = callbackDefault
	}
	o := &CallbackDialer{
		limit: limit, idle: callbackIdle, hosts: make(map[netip.Addr]int),
		all: make(map[*callbackCaller]struct{}), at: make(map[callbackTo]*callbackCaller),
	}
	o.end, o.cancel = context.WithCancel(context.Background())
	return o
}

// Close ends all connections, and waits until the calls in progress have failed. Calls in progress
// end by the context; their connections are closed, so that a call that waits for a reply ends at
// once. Close waits for the goroutines of all calls.
func (o *CallbackDialer) Close() {
	o.mu.Lock()
	o.closed = true
	o.cancel()
	list := make([]*callbackCaller, 0, len(o.all))
	for c := range o.all {
		list = append(list, c)
	}
	o.mu.Unlock()
	for _, c := range list {
		c.disconnect(nil)
	}
	o.done.Wait()
}

// count adds n connections of a host. n is negative when a connection ends, or was not made. The
// caller has locked mu.
func (o *CallbackDialer) count(host netip.Addr, n int) {
	o.conns += n
	if o.hosts[host] += n; o.hosts[host] == 0 {
		delete(o.hosts, host)
	}
}

// Conns is the number of connections.
func (o *CallbackDialer) Conns() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.conns
}

// To returns the Caller for an address: the same one as before while that has a connection. To does
// not connect, and the Caller need not be closed.
func (o *CallbackDialer) To(addr netip.AddrPort) rpc.Caller { return o.to(callbackTo{addr: addr}, nil) }

// ToSecured is To for calls with RPCSEC_GSS. The string who names the protection and the user. The
// same address and the same who give the same Caller. secure adds RPCSEC_GSS to a connection. Its
// calls may wait, for example for a context.
func (o *CallbackDialer) ToSecured(addr netip.AddrPort, who string, secure func(rpc.Client) rpc.Client) rpc.Caller {
	return o.to(callbackTo{addr, who}, secure)
}

func (o *CallbackDialer) to(to callbackTo, secure func(rpc.Client) rpc.Client) rpc.Caller {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.at[to]; c != nil {
		return c
	}
	if secure == nil {
		secure = func(c rpc.Client) rpc.Client { return c }
	}
	return &callbackCaller{
		o: o, to: to, secure: secure, inFlight: make(chan struct{}, callbackCalls), dial: make(chan struct{}, 1),
	}
}

// callbackCaller is a Caller of an address.
//
//	no connection --Call: connect--> connected --idle for callbackIdle, or broken--> no connection
//	                                  |      ^
//	                                  +-call-+  using counts them
type callbackCaller struct {
	o        *CallbackDialer
	to       callbackTo
	secure   func(rpc.Client) rpc.Client
	inFlight chan struct{} // has an element for each call in progress
	dial     chan struct{} // has an element while a goroutine connects

	mu    sync.Mutex
	conn  *callbackConn
	using int // calls
	timer *time.Timer
}

// callbackConn is a connection. calls makes calls by it.
type callbackConn struct {
	*Client
	calls rpc.Client
}

// Connected implements rpc.Caller. An address stays.
func (c *callbackCaller) Connected() bool {
	c.o.mu.Lock()
	defer c.o.mu.Unlock()
	return !c.o.closed
}

// Call implements rpc.Caller.
func (c *callbackCaller) Call(b *rpc.BackwardCall) {
	o := c.o
	o.mu.Lock()
	switch {
	case o.closed:
		o.mu.Unlock()
		b.Done(nil, rpc.ErrClosed)
		return
	case o.calls >= callbackAll:
		o.mu.Unlock()
		b.Done(nil, rpc.ErrTooMany)
		return
	}
	o.calls++
	o.done.Add(1)
	o.mu.Unlock()
	go func() {
		defer o.done.Done()
		defer func() {
			o.mu.Lock()
			o.calls--
			o.mu.Unlock()
		}()
		c.call(b)
	}()
}

// call waits for one of callbackCalls places, connects if there is no connection, and makes the
// call. If a connection that existed before turns out to be closed, it makes the call again on a
// new one. A call that was repeated may be executed twice by the client. Callbacks of NFS 4.0
// allow that. The loop ends, because a new connection is not old.
func (c *callbackCaller) call(b *rpc.BackwardCall) {
	ctx, cancel := context.WithTimeout(c.o.end, b.Timeout)
	defer cancel()
	select {
	case c.inFlight <- struct{}{}:
	case <-ctx.Done():
		b.Done(nil, rpc.ErrTimeout)
		return
	}
	defer func() { <-c.inFlight }()
	done := false
	for {
		conn, old, err := c.connect(ctx)
		if err == nil {
			err = conn.calls.Call(ctx, &rpc.Request{
				Prog: b.Prog, Vers: b.Vers, Proc: b.Proc, Cred: b.Cred,
				Args: func(e *xdr.Encoder) { e.B = append(e.B, b.Args...) },
				Res: func(d *xdr.Decoder) error {
					done = true
					b.Done(d, nil)
					return nil
				},
			})
			var lost *rpc.ConnError
			gone := errors.As(err, &lost)
			c.release(conn, gone)
			if gone && old && ctx.Err() == nil {
				continue // the peer had closed it meanwhile
			}
		}
		switch {
		case done:
		case errors.Is(err, context.DeadlineExceeded):
			b.Done(nil, rpc.ErrTimeout)
		case errors.Is(err, context.Canceled):
			b.Done(nil, rpc.ErrClosed)
		default:
			b.Done(nil, err)
		}
		return
	}
}

// connect returns the connection, or makes one. old says that it existed before: then the peer may
// have closed it, and the call is worth a second attempt. At most one goroutine connects at a time;
// it has the element of c.dial. The number of connections is counted before Dial, so that the
// bounds hold during it too.
func (c *callbackCaller) connect(ctx context.Context) (conn *callbackConn, old bool, err error) {
	select {
	case c.dial <- struct{}{}:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	defer func() { <-c.dial }()
	c.mu.Lock()
	if c.conn != nil {
		defer c.mu.Unlock()
		c.using++
		if c.timer != nil {
			c.timer.Stop()
		}
		return c.conn, true, nil
	}
	c.mu.Unlock()
	o := c.o
	o.mu.Lock()
	host := c.to.addr.Addr()
	if o.conns >= o.limit || o.hosts[host] >= max(o.limit/callbackShare, 1) {
		o.mu.Unlock()
		return nil, false, rpc.ErrTooMany
	}
	o.count(host, 1)
	o.mu.Unlock()
	made, err := Dial(ctx, c.to.addr.String())
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil && o.closed {
		made.Close()
		err = rpc.ErrClosed
	}
	if err != nil {
		o.count(host, -1)
		return nil, false, err
	}
	conn = &callbackConn{made, c.secure(made)}
	o.all[c], o.at[c.to] = struct{}{}, c
	c.mu.Lock()
	c.conn = conn
	c.using++
	c.mu.Unlock()
	return conn, false, nil
}

// release ends the use of a connection by a call. It closes the connection if it is broken
// (gone), or later if there are no calls for a while. The caller must not use conn afterwards.
// disconnect is called without mu, because it takes CallbackDialer.mu first.
func (c *callbackCaller) release(conn *callbackConn, gone bool) {
	c.mu.Lock()
	c.using--
	if c.using == 0 && c.conn == conn && !gone {
		if c.timer == nil {
			c.timer = time.AfterFunc(c.o.idle, c.closeIdle)
		} else {
			c.timer.Reset(c.o.idle)
		}
	}
	c.mu.Unlock()
	if gone {
		c.disconnect(conn)
	}
}

// closeIdle closes a connection without calls.
func (c *callbackCaller) closeIdle() {
	c.mu.Lock()
	used := c.using > 0
	c.mu.Unlock()
	if !used {
		c.disconnect(nil)
	}
}

// disconnect closes the connection if it is conn, or any if conn is nil.
func (c *callbackCaller) disconnect(conn *callbackConn) {
	c.o.mu.Lock()
	c.mu.Lock()
	was := c.conn
	if was != nil && (conn == nil || conn == was) {
		c.conn = nil
		c.o.count(c.to.addr.Addr(), -1)
		delete(c.o.all, c)
		if c.o.at[c.to] == c {
			delete(c.o.at, c.to)
		}
	} else {
		was = nil
	}
	c.mu.Unlock()
	c.o.mu.Unlock()
	if was != nil {
		was.Close()
	}
}
