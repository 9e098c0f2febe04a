package rpc

import (
	"context"
	"encoding/binary"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// BackwardFunc gets a call of the server on a connection of a client, as a whole message, which
// belongs to it. It must not wait. It calls reply at most once, from any goroutine, with a whole
// reply message.
type BackwardFunc = func(msg []byte, reply func(msg []byte))

type backwardKey struct{}

// WithBackward makes Dial functions make a connection whose server can call the client by f. A nil
// f changes nothing.
func WithBackward(ctx context.Context, f BackwardFunc) context.Context {
	if f == nil {
		return ctx
	}
	return context.WithValue(ctx, backwardKey{}, f)
}

// BackwardOf returns the function of WithBackward, or nil.
func BackwardOf(ctx context.Context) BackwardFunc {
	f, _ := ctx.Value(backwardKey{}).(BackwardFunc)
	return f
}

// IsCall reports whether a message is a call.
func IsCall(msg []byte) bool { return len(msg) >= 8 && binary.BigEndian.Uint32(msg[4:]) == MsgCall }

// Answer serves one call in the backward direction, of one version of one RPC program, and returns
// the reply. serve decodes the arguments and appends the results; if its status is not RPCSuccess
// the results are dropped. The result is nil for a message that is no call. Credentials are not
// verified: the client made the connection, so only the server can call on it (RFC 8881 section
// 2.10.8.1).
//
//	message                        reply
//	no call                        none
//	another version of RPC         MSG_DENIED, RPC_MISMATCH
//	a credential that is malformed MSG_DENIED, AUTH_BADCRED
//	a verifier that is malformed   MSG_DENIED, AUTH_BADVERF
//	another program                PROG_UNAVAIL
//	another version                PROG_MISMATCH
//	anything else                  what serve says
func Answer(msg []byte, prog, vers uint32,
	serve func(proc uint32, args *xdr.Decoder, res *xdr.Encoder) AcceptStat,
) []byte {
	var c Call
	var e xdr.Encoder
	d := xdr.NewDecoder(msg)
	switch decodeHeader(&d, &c) {
	case headerFine:
	case headerNotACall:
		return nil
	case headerVersion:
		encodeVersionMismatch(&e, c.XID)
		return e.B
	case headerCred:
		encodeAuthError(&e, c.XID, AuthBadCred)
		return e.B
	default:
		encodeAuthError(&e, c.XID, AuthBadVerf)
		return e.B
	}
	switch {
	case c.Prog != prog:
		encodeAccepted(&e, c.XID, ProgUnavail)
	case c.Vers != vers:
		encodeAccepted(&e, c.XID, ProgMismatch)
		e.Uint32s(vers, vers)
	default:
		encodeAccepted(&e, c.XID, RPCSuccess)
		if st := serve(c.Proc, &d, &e); st != RPCSuccess {
			e.Reset()
			encodeAccepted(&e, c.XID, st)
		}
	}
	return e.B
}
