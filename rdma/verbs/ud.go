//go:build rdmacore && linux

package verbs

// #include "shim.h"
import "C"

import "github.com/rstored/rstored/rdma"

// handle is the address handle of a destination.
func (p *pd) handle(*rdma.AH) (*C.struct_ibv_ah, error) { return nil, rdma.ErrUnsupported }

// ListenUD implements rdma.Device.
func (d *Device) ListenUD(uint16, func(rdma.UDRequest)) (rdma.Listener, error) {
	return nil, rdma.ErrUnsupported
}

// ResolveUD implements rdma.Device.
func (d *Device) ResolveUD(rdma.Loop, rdma.ResolveParams) (func(), error) {
	return nil, rdma.ErrUnsupported
}
