package endpoint

import (
	"cmp"
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// Config describes one side of a connection. Zero fields get defaults.
type Config struct {
	// PD is the protection domain; nil makes one for the connection.
	PD rdma.PD
	// Loop is the device's loop for connections that are dialed; nil means the
	// first.
	Loop rdma.Loop

	SendDepth int // send requests at once; default 128
	SendSGE   int // gather elements of one; default 4
	// RecvDepth is the number of posted receives, RecvSize their size in bytes; defaults 16 and
	// 4096. A negative RecvDepth posts none: SENDs of the peer then wait.
	RecvDepth int
	RecvSize  int

	Params rdma.ConnParams // depths of 0 mean 16 both ways; NoReads for none
	// NoReads leaves the depths of Params as they are.
	NoReads bool

	// Admit, on the listening side, may refuse a connection: by a reject reason (IBTA 12.6.7.2)
	// other than 0, and private data for the peer.
	Admit func(r rdma.ConnRequest) (reason uint16, private []byte)
}

func (c *Config) setDefaults() {
	c.SendDepth, c.SendSGE = cmp.Or(c.SendDepth, 128), cmp.Or(c.SendSGE, 4)
	c.RecvDepth, c.RecvSize = max(cmp.Or(c.RecvDepth, 16), 0), cmp.Or(c.RecvSize, 4096)
	if p := &c.Params; !c.NoReads {
		const depth = 16
		p.ResponderResources, p.InitiatorDepth = cmp.Or(p.ResponderResources, depth), cmp.Or(p.InitiatorDepth, depth)
	}
}

// Message is a received message.
type Message struct {
	Data    []byte // a copy
	Len     int    // bytes of the SEND, or of the WRITE with immediate
	Imm     uint32
	HasImm  bool
	InvRKey uint32 // the key that the peer's SEND invalidated
	HasInv  bool
}

// Remote names memory of the peer.
type Remote struct {
	Addr uint64
	RKey uint32
}

// At is the memory off bytes on.
func (r Remote) At(off int) Remote { return Remote{r.Addr + uint64(off), r.RKey} }

// RemoteOf is a region as a peer names it.
func RemoteOf(m rdma.MR) Remote { return Remote{m.Addr(), m.RKey()} }

// Error is a completion with a status other than success.
type Error struct {
	Op     rdma.WCOp
	Status rdma.Status
}

func (e *Error) Error() string { return fmt.Sprintf("RDMA request failed: %v", e.Status) }

// RejectedError is the peer's refusal of a connection.
type RejectedError struct {
	Reason      uint16
	PrivateData []byte
	Err         error
}

func (e *RejectedError) Error() string { return e.Err.Error() }
func (e *RejectedError) Unwrap() error { return e.Err }
