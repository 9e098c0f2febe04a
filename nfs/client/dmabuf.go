package client

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// DMABuf is memory of another device, such as a GPU's, which the device's driver exports as a
// dma-buf. It has the fields of rdma.DMABuf, which rdma.OpenDMABuf makes.
type DMABuf struct {
	FD     int
	Offset uint64 // in the dma-buf, in bytes
	Names  []byte // address space that stands for the memory
	// Mapped: Names is a mapping of the memory. A connection whose network device cannot reach the
	// other device then uses the mapping as ordinary memory.
	Mapped bool
}

// ErrNoDMABuf is the error for memory of another device over a connection that cannot reach the
// memory: over TCP, and over RDMA devices without this ability, such as soft RoCE.
var ErrNoDMABuf = rpc.ErrNoDMABuf

// RegisterDMABuf registers memory of another device. Data that Read and ReadAt bring into the
// memory goes there from the network by RDMA WRITE. Data that Write and WriteAt send comes from
// there by RDMA READ. The processor does not touch the data. All of b belongs to the caller, and
// must stay as it is until Close of the returned Memory.
//
// Parts of b.Names, which is Memory.Bytes, are the buffers of calls. A buffer must lie wholly in
// it. Unless the memory is Mapped, b.Names is address space alone: a program that reads or writes
// there ends by a fault. Copy, append, and every reader or writer that takes a []byte access it so.
//
// A connection that was made before the client had such memory may be replaced by one that can
// register it. Calls in flight are sent again over the new connection. Config.Dial must pass its
// context on to the transport for that.
//
// If a connection cannot reach the memory, the error is ErrNoDMABuf. RegisterDMABuf returns it if
// there is a connection, otherwise the first call does.
func (c *Client) RegisterDMABuf(b DMABuf) (*Memory, error) {
	if len(b.Names) == 0 {
		return nil, fmt.Errorf("client: the dma-buf has no names")
	}
	return c.register(&Memory{s: c.nfs, buf: b.Names, dma: &b})
}

// register registers the memory with a connection.
func (b *DMABuf) register(conn rpc.Client) (release func(), err error) {
	err = ErrNoDMABuf
	if r, ok := conn.(rpc.DMABufRegistrar); ok {
		if release, err = r.RegisterDMABuf(b.FD, b.Offset, b.Names); err == nil {
			return release, nil
		}
	}
	if !b.Mapped || !errors.Is(err, ErrNoDMABuf) {
		return nil, err
	}
	if r, ok := conn.(rpc.Registrar); ok {
		return r.Register(b.Names)
	}
	return nil, nil
}
