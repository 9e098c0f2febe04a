package gss

import (
	"errors"
	"sync/atomic"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ErrUsedUp means that a context has no more sequence numbers. It must be replaced.
var ErrUsedUp = errors.New("gss: the context has no more sequence numbers")

// Client is an established context of a client.
type Client struct {
	ctx     *Context
	handle  []byte
	service Service
	seq     atomic.Uint32
}

// NewClient makes a Client of a context and the handle that the server gave it. The handle is
// copied.
func NewClient(ctx *Context, handle []byte, service Service) *Client {
	return &Client{ctx: ctx, handle: append([]byte(nil), handle...), service: service}
}

// Service is the protection of the calls.
func (c *Client) Service() Service { return c.service }

// Next returns the credential of the next call.
func (c *Client) Next() (Cred, error) {
	seq := c.seq.Add(1)
	if seq >= SeqMax {
		c.seq.Store(SeqMax) // does not start again
		return Cred{}, ErrUsedUp
	}
	return Cred{Version: Version, Seq: seq, Service: c.service, Handle: c.handle}, nil
}

// Finish completes a call. e has the header up to and including the credential. Finish appends the
// verifier and the arguments, which args encodes, with their protection.
func (c *Client) Finish(e *xdr.Encoder, cred *Cred, args func(*xdr.Encoder)) {
	c.verifier(e)
	at := len(e.B)
	if args != nil {
		args(e)
	}
	c.ctx.Protect(cred.Service, cred.Seq, e, at, nil)
}

func (c *Client) verifier(e *xdr.Encoder) {
	header := e.B
	e.Uint32(Flavor)
	var token [tokenHeader + 24]byte
	e.Opaque(c.ctx.AppendMIC(token[:0], header))
}

// Check checks the verifier of a reply.
func (c *Client) Check(cred *Cred, flavor uint32, verifier []byte) error {
	if flavor != Flavor {
		return ErrToken
	}
	return c.ctx.VerifyReply(verifier, cred.Seq)
}

// Results removes the protection from the results of a reply.
func (c *Client) Results(cred *Cred, d xdr.Decoder) (xdr.Decoder, error) {
	return c.ctx.Unprotect(cred.Service, cred.Seq, d)
}
