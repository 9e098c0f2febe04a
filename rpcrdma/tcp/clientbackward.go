package tcp

import (
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// answersMax bounds the answers to calls of the server that wait to be written. A server that has
// more calls in flight loses the answers to them.
const answersMax = 2 * rpc.BackwardCalls

// backward is what a Client has for the calls of the server (RFC 8881 section 2.10.3.1). Client.mu
// guards it.
type backward struct {
	f       rpc.BackwardFunc
	answers int // being written
}

// OnCall makes f get the calls of the server on the connection. It must not wait. It owns msg, and
// calls reply at most once, from any goroutine. Before OnCall, and with a nil f, the answer is
// PROG_UNAVAIL.
func (c *Client) OnCall(f rpc.BackwardFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.back.f = f
}

// called handles a record that is no reply. The reader calls it.
func (c *Client) called(msg []byte) {
	c.mu.Lock()
	f := c.back.f
	c.mu.Unlock()
	switch {
	case !rpc.IsCall(msg): // neither call nor reply has no answer
	case f == nil:
		var e xdr.Encoder
		rpc.EncodeUnavailable(&e, rpc.ReplyXID(msg))
		c.answer(e.B)
	default:
		f(msg, c.answer)
	}
}

// answer writes a reply to a call of the server. The reader must not write, because a server that
// reads nothing until its writes are read would then stand still with this client; so a goroutine
// does.
func (c *Client) answer(msg []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.back.answers >= answersMax {
		return
	}
	c.back.answers++
	go func() {
		p := &pending{done: make(chan struct{}, 1)}
		p.call.B = msg
		c.send(p)
		c.mu.Lock()
		c.back.answers--
		c.mu.Unlock()
	}()
}
