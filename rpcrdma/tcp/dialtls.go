package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// DialTLS connects to a server with TLS (RFC 9289). prog and vers are those of the connection's
// calls. If the server does not offer TLS, or if its certificate is invalid, DialTLS returns an
// error, and has sent nothing but the AUTH_TLS probe.
//
//	connect --> probe --> handshake --> NULL call of prog and vers: the server's first reply
//	   ctx and clientHandshakeTimeout bound each step; the connection is closed after an error
func DialTLS(ctx context.Context, addr string, cfg *tls.Config, prog, vers uint32) (*Client, error) {
	conn, err := Connect(ctx, addr)
	if err != nil {
		return nil, &rpc.ConnError{Peer: addr, Err: err}
	}
	return NewTLSClient(ctx, conn, addr, cfg, prog, vers)
}

// NewTLSClient is DialTLS over a connection that exists, to the server at addr. It owns conn, and
// closes it after an error.
func NewTLSClient(
	ctx context.Context, conn net.Conn, addr string, cfg *tls.Config, prog, vers uint32,
) (*Client, error) {
	// The deadline is set before AfterFunc, which sets one in the past.
	_ = conn.SetDeadline(time.Now().Add(clientHandshakeTimeout))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(longPast) })
	secure, err := clientTLS(conn, cfg, prog, vers, rand.Uint32())
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, &TLSError{Peer: addr, Err: err}
	}
	_ = conn.SetDeadline(time.Time{})
	c := NewClient(secure)
	c.OnCall(rpc.BackwardOf(ctx))
	// In TLS 1.3 the client's handshake ends before the server has verified the client's
	// certificate (RFC 8446 section 2). The first reply shows that the server has accepted it.
	ctx, cancel := context.WithTimeout(ctx, clientHandshakeTimeout)
	defer cancel()
	var lost *rpc.ConnError
	if err := c.Call(ctx, &rpc.Request{Prog: prog, Vers: vers}); errors.As(err, &lost) || ctx.Err() != nil {
		c.Close()
		if lost != nil {
			err = lost.Err
		}
		return nil, &TLSError{Peer: addr, Err: err}
	}
	return c, nil
}

// TLSError means that a connection that must have TLS does not have it.
type TLSError struct {
	Peer string
	Err  error
}

// Error says which side refused: the server has no TLS, the server refuses us, or we refuse the
// server.
func (e *TLSError) Error() string {
	if errors.Is(e.Err, rpc.ErrNoTLS) {
		return fmt.Sprintf("%s does not offer TLS, and nothing is sent to it without", e.Peer)
	}
	var alert tls.AlertError
	var op *net.OpError
	if errors.As(e.Err, &alert) || errors.As(e.Err, &op) && op.Op == "remote error" {
		return fmt.Sprintf("%s refuses TLS with this client: %v", e.Peer, e.Err)
	}
	return fmt.Sprintf("no TLS with %s: %v", e.Peer, e.Err)
}

func (e *TLSError) Unwrap() error { return e.Err }
