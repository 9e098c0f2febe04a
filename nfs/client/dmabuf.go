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

// ErrNoDMABuf is what memory of another device fails with over a connection that does not reach
// it: over TCP, and over RDMA devices that cannot, soft RoCE among them.
var ErrNoDMABuf = rpc.ErrNoDMABuf

// RegisterDMABuf registers memory of another device, so that what Read and ReadAt bring into it
// goes there from the network by RDMA WRITE, and what Write and WriteAt take out of it comes
// from there by RDMA READ, without the processor's touch. All of b is the caller's, and stays as
// it is until Close of the returned Memory.
//
// Parts of b.Names, which is Memory.Bytes, are the buffers of calls. Unless it is Mapped it is
// address space alone, and a program that reads or writes there ends by a fault; copy, append,
// and every reader or writer that takes a []byte does. Buffers of calls must lie in it wholly.
//
// A connection that was made before there was such memory may be replaced by one that can
// register it. Calls in flight are sent again over the new one. Config.Dial must pass its
// context on to the transport for that.
//
// A connection that does not reach the memory fails with ErrNoDMABuf: RegisterDMABuf if there is
// one, and the first call otherwise.
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
