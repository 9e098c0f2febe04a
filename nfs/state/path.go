package state

import (
	"net/netip"
	"sync"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Callback is how a client of version 4.0 wants to be called. It is a part of the arguments of
// SETCLIENTID (RFC 7530 section 16.33.2):
//
//	cb_client4      cb_program  netid<>  address<>
//	callback_ident
//
// The address is the client's claim. If the server connected to every address, a client could
// direct it at other hosts. So package nfs4 sets To only if the address is the one that SETCLIENTID
// came from. The port is the client's choice.
type Callback struct {
	Program uint32 // RPC program of the client's callback service
	Ident   uint32 // callback_ident, repeated in each CB_COMPOUND
	Netid   string // such as tcp, tcp6 or rdma
	Addr    string // universal address: h1.h2.h3.h4.p1.p2, the port in the last two
	// To is the address in Addr, if the server may connect to it; otherwise To is not valid.
	To   netip.AddrPort
	Cred *rpc.Cred
	// Secure says how calls are protected by Kerberos; nil: they have Cred.
	Secure *Secure
}

// Secure is the protection of callbacks (RFC 7530 section 3.3.3). It is that of the SETCLIENTID,
// with the server as the initiator.
type Secure struct {
	Flavor   rpc.AuthFlavor // AuthKrb5, AuthKrb5i or AuthKrb5p
	Client   string         // principal of the client; the server gets a ticket for it
	Acceptor string         // principal of the server in these calls
}

// Path is how the server calls a client of version 4.0: by a connection of its own. There are no
// slots and no sequence numbers. So the client cannot recognize a callback that is sent again, and
// callbacks may arrive in any order. A Path sends nothing: package nfs4 sends, and reports the
// outcome by Answered.
//
//	unknown --answer--> proven --no answer--> down --probe answered--> proven
//	   |                                        ^
//	   +--no answer-----------------------------+
//
// Only a client with a proven path gets new delegations. RENEW is answered CB_PATH_DOWN if the
// client has delegations, and its path is down or missing (RFC 7530 section 16.28).
//
// SETCLIENTID with another callback makes a new Path; recalls in progress finish on the old one.
// The methods may be called from any goroutine. usable and Probe accept a nil Path. The lock is
// taken last.
type Path struct {
	Callback
	Caller rpc.Caller

	mu       sync.Mutex
	state    pathState
	probing  bool      // a probe is in flight
	probedAt time.Time // when the last probe began
}

type pathState uint8

const (
	pathUnknown pathState = iota
	pathProven
	pathDown
)

// SetPath replaces the path of a client; nil: the client cannot be called. SetPath does not close
// the connection of the old path: its Caller belongs to the code that made it.
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

// Path returns the path by which the client is called, or nil.
func (c *Client) Path() *Path {
	if c.v40 == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v40.path
}

// Callback returns the callback information of the client.
func (c *Client) Callback() Callback { return c.calledAt() }

// Minor0 reports whether the client is one of version 4.0.
func (c *Client) Minor0() bool { return c.v40 != nil }

// usable reports whether the client may be called, and whether it is known to answer. An untried
// path is live and not proven.
func (p *Path) usable() (live, proven bool) {
	if p == nil {
		return false, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state != pathDown, p.state == pathProven
}

// Probe reports whether the caller should send CB_NULL now: no answer is known yet, or the path is
// down and the last probe was sent long ago. One probe at a time is in flight. The caller must end
// the probe by Answered, or there will never be another one.
func (p *Path) Probe(now time.Time, long time.Duration) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.probing || p.state == pathProven || p.state == pathDown && now.Sub(p.probedAt) < long {
		return false
	}
	p.probing, p.probedAt = true, now
	return true
}

// Answered records whether the client has answered a probe or a callback. ok says that the client
// has accepted the RPC call, whatever the status of the operations in its reply. One call without
// such a reply takes the path down. The client gets no delegations until a later call succeeds.
func (p *Path) Answered(ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probing, p.state = false, pathDown
	if ok {
		p.state = pathProven
	}
}
