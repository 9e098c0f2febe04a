package rpcrdma

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Register implements rpc.Registrar, for as long as the connection lasts.
func (c *Client) Register(buf []byte) (release func(), err error) {
	return c.register(buf, false, func() (rdma.MR, error) { return c.pd.Register(buf, c.regionAccess()) })
}

// RegisterDMABuf implements rpc.DMABufRegistrar, for as long as the connection lasts.
func (c *Client) RegisterDMABuf(fd int, offset uint64, names []byte) (release func(), err error) {
	return c.register(names, true, func() (rdma.MR, error) {
		pd, ok := c.pd.(rdma.DMABufRegisterer)
		if !ok {
			return nil, fmt.Errorf("%w: %w", rpc.ErrNoDMABuf, rdma.ErrUnsupported)
		}
		mr, err := pd.RegisterDMABuf(fd, offset, names, rdma.LocalWrite)
		if errors.Is(err, rdma.ErrUnsupported) {
			err = fmt.Errorf("%w: %w", rpc.ErrNoDMABuf, err)
		}
		if err == nil && c.win != nil {
			// No window can be bound to a dma-buf. A region is no way out: our private message
			// said that the server may invalidate what calls open.
			mr.Close()
			return nil, rpc.ErrNotForDMABufs
		}
		return mr, err
	})
}

// device reports whether b is memory of another device, which the processor must not touch.
func (c *Client) device(b []byte) bool {
	for _, m := range c.devices {
		if inside(b, m.Bytes()) {
			return true
		}
	}
	return false
}

// register adds the region of b, which another connection of the Domain may have made by open;
// device says that it is memory of another device.
func (c *Client) register(b []byte, device bool, open func() (rdma.MR, error)) (release func(), err error) {
	type outcome struct {
		mr  rdma.MR
		err error
	}
	done := make(chan outcome, 1)
	if !c.loop.Submit(func() {
		var o outcome
		if c.closed {
			o.err = c.Err()
		} else if o.mr, o.err = c.domain.share(b, c.regionAccess(), device, open); o.err == nil {
			c.regions = append(c.regions, o.mr)
			if device {
				c.devices = append(c.devices, o.mr)
			}
		}
		done <- o
	}) {
		return nil, &rpc.ConnError{Peer: c.peer, Err: rdma.ErrClosed}
	}
	o := <-done
	if o.err != nil {
		return nil, fmt.Errorf("registering %d bytes: %w", len(b), o.err)
	}
	return func() {
		c.domain.forget(o.mr)
		c.loop.Submit(func() {
			i := slices.Index(c.regions, o.mr)
			if i < 0 {
				return // the end of the connection has released it
			}
			c.regions = slices.Delete(c.regions, i, i+1)
			if i = slices.Index(c.devices, o.mr); i >= 0 {
				c.devices = slices.Delete(c.devices, i, i+1)
			}
			c.domain.release(o.mr)
		})
	}, nil
}

// regionAccess is the access of memory that stays registered: never remote. Windows open parts of
// it.
func (c *Client) regionAccess() rdma.Access {
	if c.win != nil {
		return rdma.LocalWrite | rdma.WindowBind
	}
	return rdma.LocalWrite
}

// registered returns the region of Register that b lies in, or nil.
func (c *Client) registered(b []byte) rdma.MR {
	for _, m := range c.regions {
		if rdma.Within(b, m.Bytes()) {
			return m
		}
	}
	return nil
}
