package rpcrdma

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Config bounds a Listener. Zero fields have defaults; sizes are in bytes.
//
// A connection needs memory for messages, Receive bytes for each receive. With the defaults:
//
//	state of the connection                 credits   receives   memory
//	until the client has confirmed it       2         4          20 KiB
//	then                                    16        32         160 KiB
//	when the client used most of 128        128       144        720 KiB
//
// Pages of receives that no message reached are not resident. The fifth KiB of a receive is in a
// page that the next one uses too, so a client of short messages has one page for each receive.
//
// Bulk data of calls in progress takes at most ConnMemory per connection. Both are part of Memory;
// type Memory says what happens when it is short. A call waits until there is memory for all of its
// data, before any of the data is fetched. Calls without bulk data overtake it.
type Config struct {
	// Credits is the largest grant to a client. The grant begins at 16 and doubles when more
	// than three quarters of it are in use. 0 means 128, or 48 if Pinned.
	Credits int
	// Inline is the longest message to a client: a multiple of 1024 up to 256 KiB. 0 means 4096.
	Inline int
	// Receive is the longest message from a client, and the size of a receive buffer: a multiple
	// of 1024 from Inline to 256 KiB. 0 means Inline. If Inline is 0 too, and the memory is not
	// Pinned, it means 5120, so that a WRITE of 4096 bytes fits into a message.
	Receive int
	// MaxMessage is the longest RPC message with everything in chunks, and the most bytes that
	// are put into one Write chunk; up to 4 MiB. 0 means 1 MiB + 64 KiB.
	MaxMessage int
	// ReadDepth is the number of RDMA READs in flight on a connection, if the
	// client serves as many. 0 means 16.
	ReadDepth int
	// ReadSize is the longest RDMA READ. 0 means 256 KiB.
	ReadSize int
	// ReadBytes bounds the bytes of RDMA READs in flight on a connection. It should not be less
	// than the bandwidth-delay product of the network. With much more, data is fetched long
	// before it is used and drops out of the processor's caches. 0 means 1 MiB.
	ReadBytes int
	// ConnMemory bounds the bulk memory of one connection. 0 means 32 MiB.
	ConnMemory int
	// Memory bounds the memory of the Listener, messages and bulk data. 0 means 512 MiB, and the
	// least is MemoryMin. If Shared is not nil it is used instead. Its owner closes it after the
	// Listener.
	Memory int
	Shared *Memory
	// Pinned is for devices that pin registered memory, as kernel devices do: all pages are
	// resident from the registration to its end. A connection then has memory for the receives
	// of all credits from the start: 256 KiB with 48 credits, the default.
	Pinned bool
	// SlowTimeout ends a connection whose client neither takes replies nor serves RDMA READs for
	// this time. 0 means one minute.
	SlowTimeout time.Duration
	// MaxConns is the number of connections; further requests are rejected. 0
	// means 1024.
	MaxConns int
	// Limiter, if not nil, admits connections by client.
	Limiter *rpc.ConnLimiter
	Logger  *slog.Logger
}

// bulkMax is the most that MaxMessage can be.
const bulkMax = 4 << 20

// receiveMemory is what the receives of a connection take at the most.
func (c *Config) receiveMemory() int { return receives(c.Credits) * c.Receive }

// withDefaults returns the configuration with defaults, and every value within its bounds.
func (c Config) withDefaults() Config {
	credits := 128
	if c.Pinned {
		credits = 48 // its 64 receives fill a block of the arena
	}
	c.Credits = min(max(cmp.Or(c.Credits, credits), 1), 4096)
	if c.Inline == 0 && c.Receive == 0 && !c.Pinned {
		c.Receive = inlineWrite
	}
	c.Inline = inlineSize(cmp.Or(c.Inline, 4096))
	c.Receive = max(inlineSize(c.Receive), c.Inline)
	c.MaxMessage = min(max(cmp.Or(c.MaxMessage, 1<<20+64<<10), 64<<10), bulkMax)
	c.ReadDepth = min(max(cmp.Or(c.ReadDepth, 16), 1), 255)
	c.ReadSize = min(max(cmp.Or(c.ReadSize, 256<<10), 4096), 1<<30)
	c.ReadBytes = max(cmp.Or(c.ReadBytes, 1<<20), 1)
	c.ConnMemory = max(cmp.Or(c.ConnMemory, 32<<20), 2*bulkMax)
	c.Memory = max(cmp.Or(c.Memory, 512<<20), MemoryMin)
	c.SlowTimeout = cmp.Or(c.SlowTimeout, time.Minute)
	c.MaxConns = cmp.Or(c.MaxConns, 1024)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

// within returns the configuration reduced to the limits of a device. The send queue has an entry
// for each RDMA READ, sendQueueMin and two per credit for replies, one for the probe and
// BackwardCalls. The completion queue has an entry for each of these and for each receive.
func (c Config) within(lim rdma.Limits) Config {
	if lim.RdAtomic > 0 {
		c.ReadDepth = min(c.ReadDepth, lim.RdAtomic)
	}
	if lim.WRs > 0 {
		c.Credits = max(min(c.Credits, (lim.WRs-c.ReadDepth-sendQueueMin-1-rpc.BackwardCalls)/2, lim.WRs-extraReceives), 1)
	}
	if lim.CQEs > 0 {
		// Receives, READs and the send queue share one.
		c.Credits = max(min(c.Credits, (lim.CQEs-extraReceives-2*c.ReadDepth-sendQueueMin-1-rpc.BackwardCalls)/3), 1)
	}
	return c
}
