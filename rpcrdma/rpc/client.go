package rpc

import (
	"context"
	"errors"
	"fmt"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Request is one call of a client. It belongs to the client until Call returns.
type Request struct {
	Prog, Vers, Proc uint32
	Cred             *Cred // nil is AUTH_NONE
	// XID is the transaction's identity. 0 lets the client choose one and
	// stores it here; a request that is sent again on another connection keeps
	// its XID, so that the server's reply cache knows it.
	XID uint32
	// Args encodes the arguments, bulk data by Encoder.Bulk. It is called once
	// per transmission. Bulk data must stay until Call returns.
	Args func(*xdr.Encoder)
	// Res decodes the results. It is called once, if the call was accepted
	// with SUCCESS. Slices it takes from the decoder are valid during the call
	// of Res only, but for those that alias Dst.
	Res func(*xdr.Decoder) error
	// Dst is where a bulk result is to land. Decoder.Bulk, or Opaque if the
	// bulk item is the last of the results, then returns a slice of Dst when
	// the transport could place it there, and a slice of other memory when it
	// could not. Over RDMA, Dst is registered for the peer to write to during
	// the call alone.
	Dst []byte
	// ResMax bounds the encoded results in bytes, bulk excluded. 0 means 1024.
	ResMax int
}

// Client sends calls over one connection. It may be used from any goroutine.
type Client interface {
	// Call sends r and waits for its reply. When ctx ends first the memory of
	// r is no longer touched once Call has returned. A *ConnError means that
	// the connection is gone and that the call may or may not have been
	// executed.
	Call(ctx context.Context, r *Request) error
	// Close ends the connection. Calls in flight return a *ConnError.
	Close() error
}

// Registrar is what a Client of a transport has that moves bulk data to and from the
// caller's memory by itself.
type Registrar interface {
	// Register prepares buf for being the memory of calls' bulk data: the Dst of
	// requests, or arguments by Encoder.Bulk. Such calls cost less then; memory
	// that is not registered is registered for each call. A server can still
	// reach no more than the part that a call names, and no longer than the call.
	// buf must not be moved before release, which comes after those calls.
	Register(buf []byte) (release func(), err error)
}

// ErrNotForDMABufs is what a connection refuses memory of another device with that one made with
// WithDMABufs takes.
var ErrNotForDMABufs = errors.New("rpc: the connection was not made for memory of other devices")

type forDMABufs struct{}

// WithDMABufs asks who connects to a server for a connection that can have memory of other
// devices. What such a connection opens to the server cannot be what costs least for memory of
// the host.
func WithDMABufs(ctx context.Context) context.Context {
	return context.WithValue(ctx, forDMABufs{}, true)
}

// ForDMABufs reports whether ctx is of WithDMABufs.
func ForDMABufs(ctx context.Context) bool { return ctx.Value(forDMABufs{}) != nil }

// ErrNoDMABuf is what memory of another device is refused with that the transport cannot reach.
var ErrNoDMABuf = errors.New("rpc: the carrier does not reach memory of other devices")

// DMABufRegistrar is a Registrar whose transport may reach memory of another device, such as a
// GPU's, without the processor. ErrNoDMABuf if it cannot, ErrNotForDMABufs if another connection
// could.
type DMABufRegistrar interface {
	Registrar
	// RegisterDMABuf is Register for len(names) bytes from offset on of the dma-buf fd. names is
	// address space that stands for them: parts of it are the memory of calls' bulk data, which
	// is never moved in any other way, nor touched by the processor. A call for which that cannot
	// be done fails.
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

// AcceptError is a call that the server accepted and did not execute.
type AcceptError struct {
	Stat      AcceptStat
	Low, High uint32 // of ProgMismatch
}

func (e *AcceptError) Error() string {
	switch e.Stat {
	case ProgUnavail:
		return "the server does not offer this RPC program"
	case ProgMismatch:
		return fmt.Sprintf("the server offers versions %d to %d of this RPC program", e.Low, e.High)
	case ProcUnavail:
		return "the server does not offer this procedure"
	case GarbageArgs:
		return "the server could not decode the arguments"
	case SystemErr:
		return "the server had an internal error"
	}
	return fmt.Sprintf("RPC accept status %d", uint32(e.Stat))
}

// DeniedError is a call that the server refused to look at.
type DeniedError struct {
	Auth      AuthStat // 0 for a version mismatch
	Low, High uint32
}

func (e *DeniedError) Error() string {
	if e.Auth != 0 {
		return fmt.Sprintf("the server refused the credential (auth_stat %d)", uint32(e.Auth))
	}
	return fmt.Sprintf("the server speaks RPC versions %d to %d", e.Low, e.High)
}

// ErrReply is a reply that does not decode.
var ErrReply = errors.New("malformed RPC reply")

// DecodeReply reads a reply header up to the results and checks its XID.
func DecodeReply(d *xdr.Decoder, xid uint32) error {
	if got := d.Uint32(); got != xid && d.Err() == nil {
		return fmt.Errorf("%w: XID %#x instead of %#x", ErrReply, got, xid)
	}
	if d.Uint32() != MsgReply || d.Err() != nil {
		return ErrReply
	}
	switch d.Uint32() {
	case replyAccepted:
		d.Uint32()
		d.Opaque(AuthBodyMax)
		stat := AcceptStat(d.Uint32())
		if d.Err() != nil {
			return ErrReply
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
