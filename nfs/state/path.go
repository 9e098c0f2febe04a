package state

import (
	"net/netip"
	"sync"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Callback is how a client of version 4.0 wants to be called (cb_client4, clientaddr4).
type Callback struct {
	Program uint32
	Ident   uint32 // callback_ident
	Netid   string
	Addr    string // universal address
	// To is that address, if the server may connect to it; else it is not valid.
	To   netip.AddrPort
	Cred *rpc.Cred
}

// Path is how the server calls a client of version 4.0: by a connection of its own, with
// nothing that tells a request that is sent again, and no order. It sends nothing. Its
// methods may be called from any goroutine, and of a nil Path; its lock is taken last.
type Path struct {
	Callback
	Caller rpc.Caller

	mu     sync.Mutex
	state  pathState
	asking bool
	asked  time.Time
}

type pathState uint8

const (
	pathUnknown pathState = iota
	pathProven
	pathDown
)

// SetPath gives a client another path than before, or, nil, none. The path of before is
// not used again.
func (c *Client) SetPath(p *Path) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return
	}
	c.v40.path = p
	if p != nil {
		c.s.delegs.possible.Store(true)
	}
}

// Path is how the client is called, or nil.
func (c *Client) Path() *Path {
	if c.v40 == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v40.path
}

// Callback is how the client wants to be called.
func (c *Client) Callback() Callback { return c.calledAt() }

// Minor0 reports whether the client is one of version 4.0.
func (c *Client) Minor0() bool { return c.v40 != nil }

// usable reports whether the client may be called, and whether it is known to answer.
func (p *Path) usable() (live, proven bool) {
	if p == nil {
		return false, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state != pathDown, p.state == pathProven
}

// Probe reports, to one at a time, that somebody should find out whether the client
// answers: it is not known, or it did not the last time, which is long ago.
func (p *Path) Probe(now time.Time, long time.Duration) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking || p.state == pathProven || p.state == pathDown && now.Sub(p.asked) < long {
		return false
	}
	p.asking, p.asked = true, now
	return true
}

// Answered notes whether the client has answered, to a probe or a callback.
func (p *Path) Answered(ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking, p.state = false, pathDown
	if ok {
		p.state = pathProven
	}
}
