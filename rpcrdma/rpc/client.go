package rpc

import (
	"context"
	"errors"
	"fmt"

	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Request is one call of a client. It belongs to the client until Call returns.
type Request struct {
	Prog, Vers, Proc uint32
	Cred             *Cred // nil is AUTH_NONE
	// XID identifies the transaction. With 0 the client chooses one and stores it here. A request
	// that is sent again on another connection has the same XID, so that the server's reply cache
	// recognizes it.
	XID uint32
	// Args encodes the arguments, bulk data by Encoder.Bulk. It is called once per transmission.
	// Bulk data must not change until Call returns.
	Args func(*xdr.Encoder)
	// Res decodes the results. It is called once, if the call was accepted with SUCCESS. Slices of
	// the decoder are valid only during the call of Res, except those that alias Dst.
	Res func(*xdr.Decoder) error
	// Dst is memory for a bulk result. If the transport could place the result there, Decoder.Bulk
	// returns a slice of Dst, as does Opaque if the bulk item is the last of the results; otherwise
	// they return other memory. Over RDMA, the peer can write to Dst during the call only.
	Dst []byte
	// ResMax bounds the encoded results in bytes, bulk excluded. 0 means 1024.
	ResMax int

	// Of a Secured client: the context and the credential of this transmission.
	gss     *gss.Client
	gssCred gss.Cred
	verify  func(flavor uint32, body []byte) error // instead of the context's check
}

// Encode appends the call.
func (r *Request) Encode(e *xdr.Encoder) {
	if r.gss != nil {
		r.encodeSecured(e)
		return
	}
	EncodeCall(e, r.XID, r.Prog, r.Vers, r.Proc, r.Cred)
	if r.Args != nil {
		r.Args(e)
	}
}

// Decode reads the reply.
func (r *Request) Decode(d *xdr.Decoder) error {
	if r.gss != nil {
		return r.decodeSecured(d)
	}
	err := DecodeReply(d, r.XID)
	if err == nil && r.Res != nil {
		err = r.Res(d)
	}
	return err
}

// Client sends calls over one connection. It may be used from any goroutine.
type Client interface {
	// Call sends r and waits for its reply. After Call has returned nobody uses the memory of r,
	// also if ctx ended. A *ConnError means that the connection has ended, and that the call may or
	// may not have been executed.
	Call(ctx context.Context, r *Request) error
	// Close ends the connection. Calls in flight return a *ConnError.
	Close() error
}

// Registrar is a Client whose transport moves bulk data to and from the caller's memory by itself.
type Registrar interface {
	// Register prepares buf for bulk data of calls: the Dst of requests, or arguments by
	// Encoder.Bulk. Such calls cost less; other memory is registered for each call. A server still
	// reaches only the part that a call names, and only during that call. buf must not be moved
	// before release, which is called after those calls.
	Register(buf []byte) (release func(), err error)
}

// ErrNotForDMABufs means that a connection cannot use memory of another device, and that one made
// with WithDMABufs could.
var ErrNotForDMABufs = errors.New("rpc: the connection was not made for memory of other devices")

type forDMABufs struct{}

// WithDMABufs makes Dial functions make a connection for memory of other devices. Such a connection
// may open memory of the host to the server in a more expensive way.
func WithDMABufs(ctx context.Context) context.Context {
	return context.WithValue(ctx, forDMABufs{}, true)
}

// ForDMABufs reports whether ctx is of WithDMABufs.
func ForDMABufs(ctx context.Context) bool { return ctx.Value(forDMABufs{}) != nil }

// ErrNoDMABuf means that the transport cannot reach memory of another device.
var ErrNoDMABuf = errors.New("rpc: the transport does not reach memory of other devices")

// DMABufRegistrar is a Registrar whose transport may reach memory of another device, such as a GPU,
// without the processor. It returns ErrNoDMABuf if it cannot, and ErrNotForDMABufs if another
// connection could.
type DMABufRegistrar interface {
	Registrar
	// RegisterDMABuf is Register for len(names) bytes of the dma-buf fd, from offset on. names is
	// address space that stands for them: calls use parts of it as memory of bulk data. The
	// processor never touches it. A call whose bulk data cannot be moved by the device alone fails.
	RegisterDMABuf(fd int, offset uint64, names []byte) (release func(), err error)
}

// ConnError reports a connection that is lost.
type ConnError struct {
	Peer string
	Err  error
}

func (e *ConnError) Error() string { return fmt.Sprintf("connection to %s: %v", e.Peer, e.Err) }
func (e *ConnError) Unwrap() error { return e.Err }

// ErrClosed is the reason in a ConnError after Close.
var ErrClosed = errors.New("closed")

// AcceptError is a call that the server accepted and did not execute (RFC 5531 section 9,
// accepted_reply).
type AcceptError struct {
	Stat      AcceptStat
	Low, High uint32 // of ProgMismatch
}

func (e *AcceptError) Error() string {
	switch {
	case e.Stat == ProgMismatch:
		return fmt.Sprintf("the server offers versions %d to %d of this RPC program", e.Low, e.High)
	case uint64(e.Stat) < uint64(len(acceptText)) && acceptText[e.Stat] != "":
		return acceptText[e.Stat]
	}
	return fmt.Sprintf("RPC accept status %d", uint32(e.Stat))
}

var acceptText = [...]string{
	ProgUnavail: "the server does not offer this RPC program",
	ProcUnavail: "the server does not offer this procedure",
	GarbageArgs: "the server could not decode the arguments",
	SystemErr:   "the server had an internal error",
}

// DeniedError is a call that the server denied (RFC 5531 section 9, rejected_reply).
type DeniedError struct {
	Auth      AuthStat // 0 for a version mismatch
	Low, High uint32
}

func (e *DeniedError) Error() string {
	switch e.Auth {
	case 0:
	case GSSCredProblem, GSSCtxProblem:
		return "the server refused the security context"
	case AuthTooWeak:
		return "the server wants a stronger credential (option sec)"
	case AuthRejectedCred:
		return "the server does not accept this kind of credential (option sec)"
	default:
		return fmt.Sprintf("the server refused the credential (auth_stat %d)", uint32(e.Auth))
	}
	return fmt.Sprintf("the server speaks RPC versions %d to %d", e.Low, e.High)
}

// ErrReply is a reply that does not decode.
var ErrReply = errors.New("malformed RPC reply")

// DecodeReply reads a reply header up to the results and checks its XID.
//
//	reply                                    error
//	another XID, no reply, or too short      ErrReply
//	accepted, SUCCESS                        none
//	accepted, other status                   AcceptError
//	denied, RPC_MISMATCH or AUTH_ERROR       DeniedError
//	denied, another status                   ErrReply
func DecodeReply(d *xdr.Decoder, xid uint32) error { return decodeReply(d, xid, nil) }

// decodeReply is DecodeReply. secured is nil, or the request whose verifier an accepted reply must
// have.
func decodeReply(d *xdr.Decoder, xid uint32, secured *Request) error {
	if got := d.Uint32(); got != xid && d.Err() == nil {
		return fmt.Errorf("%w: XID %#x instead of %#x", ErrReply, got, xid)
	}
	if d.Uint32() != MsgReply || d.Err() != nil {
		return ErrReply
	}
	switch d.Uint32() {
	case replyAccepted:
		flavor, body := d.Uint32(), d.Opaque(AuthBodyMax)
		stat := AcceptStat(d.Uint32())
		if d.Err() != nil {
			return ErrReply
		}
		if secured != nil {
			if err := secured.checkVerifier(flavor, body); err != nil {
				return fmt.Errorf("the reply is not of the server: %w", err)
			}
		}
		if stat == RPCSuccess {
			return nil
		}
		e := &AcceptError{Stat: stat}
		if stat == ProgMismatch {
			e.Low, e.High = d.Uint32(), d.Uint32()
		}
		return e
	case replyDenied:
		e := &DeniedError{}
		switch d.Uint32() {
		case rejectRPCMismatch:
			e.Low, e.High = d.Uint32(), d.Uint32()
		case rejectAuthError:
			e.Auth = AuthStat(d.Uint32())
		default:
			return ErrReply
		}
		if d.Err() != nil {
			return ErrReply
		}
		return e
	}
	return ErrReply
}
