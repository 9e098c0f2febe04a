package rpcrdma

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// ClientConfig bounds a Client. Zero fields have defaults; sizes are in bytes.
type ClientConfig struct {
	// Credits is the number of credits that the client requests. The server may grant fewer.
	// Calls beyond the grant wait. 0 means 128.
	Credits int
	// Inline is the longest message from the server, a multiple of 1024 up to 256 KiB. 0 means 4096.
	Inline int
	// Send is the longest message to the server, a multiple of 1024 up to 256 KiB. 0 means Inline,
	// or 5120 if Inline is 0 too: a WRITE of 4096 bytes then fits into a message, if the server
	// receives as much.
	Send int
	// ReadDepth is how many RDMA READs the server may have in flight. 0 means 16.
	ReadDepth int
	// PKey is the partition to connect in; 0 is the first of the device.
	PKey uint16
	// DSCP is that of the connection's packets, see rdma.DialParams.
	DSCP uint8
	// Backward gets the calls of the server on the connection (RFC 8167), as whole RPC messages
	// without chunks. It must not wait. It owns msg, and calls reply at most once, from any
	// goroutine, with a whole reply message. If Backward is nil, the function of rpc.WithBackward
	// gets the calls; if there is none either, they are answered with PROG_UNAVAIL.
	Backward func(msg []byte, reply func(msg []byte))
	// Domain is what the connection shares with others to the same server; nil: nothing.
	Domain *Domain
	Logger *slog.Logger
}

// withDefaults returns the configuration with defaults, and every value within its bounds.
func (c ClientConfig) withDefaults() ClientConfig {
	c.Credits = min(max(cmp.Or(c.Credits, 128), 1), 4096)
	c.Send = inlineSize(cmp.Or(c.Send, c.Inline, inlineWrite))
	c.Inline = inlineSize(cmp.Or(c.Inline, 4096))
	c.ReadDepth = min(max(cmp.Or(c.ReadDepth, 16), 1), 255)
	c.Domain = cmp.Or(c.Domain, new(Domain))
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

// within returns the configuration reduced to the limits of a device.
func (c ClientConfig) within(lim rdma.Limits) ClientConfig {
	if lim.RdAtomic > 0 {
		c.ReadDepth = min(c.ReadDepth, lim.RdAtomic)
	}
	if lim.WRs > 0 {
		c.Credits = max(min(c.Credits, lim.WRs-backwardReceives-1), 1)
	}
	if lim.CQEs > 0 {
		c.Credits = max(min(c.Credits, lim.CQEs/2-backwardReceives-1), 1)
	}
	return c
}

// RemoteError is an RDMA_ERROR message instead of a reply. After ERR_CHUNK the call may have been
// executed: the server also sends it if the reply is too long for the chunks.
type RemoteError struct {
	Code      ErrorCode
	Low, High uint32 // versions that the server speaks, for CodeVers
}

func (e *RemoteError) Error() string {
	switch e.Code {
	case CodeVers:
		return fmt.Sprintf("the server speaks versions %d to %d of RPC-over-RDMA", e.Low, e.High)
	case CodeChunk:
		return "the server refused the chunks of the call, or the reply was longer than the chunks for it"
	}
	return "the server reported " + e.Code.String()
}

// ClientInfo describes a Client's connection.
type ClientInfo struct {
	Remote, Local netip.AddrPort
	// InlineIn and InlineOut are the longest messages in bytes.
	InlineIn, InlineOut int
	PathMTU             rdma.MTU
}
