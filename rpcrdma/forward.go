package rpcrdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ForwardHints say what of a call and its reply may move by chunks of its own,
// which only the program's definition can tell. The zero value is a call
// without bulk data.
type ForwardHints struct {
	// ArgAt and ArgLen are where the bytes of the bulk argument lie in the
	// message; ArgLen 0 means that it has none.
	ArgAt, ArgLen int
	// BulkMax is the longest bulk result in bytes; 0 means none.
	BulkMax int
	// BulkAt is the offset in the reply message, taken without the bulk
	// result, at which the result belongs. If it is nil the result is the last
	// thing of the reply.
	BulkAt func(reply []byte) int
	// ResMax bounds the results in bytes, bulk excluded. 0 means 1024.
	ResMax int
}

// Forward sends a whole RPC call message that somebody else made, and returns
// the whole reply message. The call keeps its XID, which must differ from those
// of the other calls in flight on the connection.
func (c *Client) Forward(ctx context.Context, msg []byte, h ForwardHints) ([]byte, error) {
	if len(msg) < 8 || len(msg)%4 != 0 || binary.BigEndian.Uint32(msg[4:]) != rpc.MsgCall {
		return nil, fmt.Errorf("rpcrdma: %d bytes are no RPC call", len(msg))
	}
	x := newExchange(c)
	x.xid = rpc.ReplyXID(msg)
	if end := h.ArgAt + padded(h.ArgLen); h.ArgLen > 0 && h.ArgAt >= 8 && h.ArgAt%4 == 0 && end > 0 && end <= len(msg) {
		x.call.B = append(append(x.call.B, msg[:h.ArgAt]...), msg[end:]...)
		x.call.Refs = append(x.call.Refs, xdr.Ref{At: h.ArgAt, Data: msg[h.ArgAt : h.ArgAt+h.ArgLen]})
	} else {
		x.call.B = append(x.call.B, msg...)
	}
	// The bulk result lands behind room for a short reply that ends with it.
	var buf []byte
	if h.BulkMax > 0 {
		buf = make([]byte, forwardHeadroom+padded(h.BulkMax))
		x.dst = buf[forwardHeadroom : forwardHeadroom+h.BulkMax]
	}
	x.resMax = h.ResMax
	if x.resMax <= 0 {
		x.resMax = 1024
	}
	if err := x.run(ctx); err != nil {
		return nil, err
	}
	defer x.recycle()
	if !x.hasBulk {
		return bytes.Clone(x.reply), nil
	}
	at, n := len(x.reply), len(x.bulk)
	if h.BulkAt != nil {
		at = h.BulkAt(x.reply)
		if at < 0 || at > len(x.reply) {
			return nil, fmt.Errorf("%w: it has no place for the bulk result", ErrProtocol)
		}
	}
	if at == len(x.reply) && at <= forwardHeadroom {
		start := forwardHeadroom - at
		copy(buf[start:], x.reply)
		clear(buf[forwardHeadroom+n : forwardHeadroom+padded(n)])
		return buf[start : forwardHeadroom+padded(n)], nil
	}
	e := xdr.Encoder{B: x.reply, Refs: []xdr.Ref{{At: at, Data: x.bulk}}}
	return e.AppendFlat(make([]byte, 0, e.Len())), nil
}

// forwardHeadroom is room for the reply of an NFS READ up to its data.
const forwardHeadroom = 512
