//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/connstate"
)

const (
	handlesMax  = 256                     // address handles of a domain that no request uses
	pathsMax    = 4096                    // InfiniBand paths of a device
	unreachable = 1000 * rdma.Millisecond // before a failed destination is tried again
)

// destination is what an address handle leads to.
type destination struct {
	to    netip.Addr
	class uint8
}

// ah is an address handle. Requests in flight share it. handles.mu guards its fields.
type ah struct {
	of    *handles
	ah    *C.struct_ibv_ah // nil if it cannot be made
	err   error            // why
	until rdma.Time        // no other attempt before
	users int              // requests in flight
	used  uint64           // last use, counted by handles.uses
}

// handles are the address handles of a protection domain. A handle is made for the first datagram
// to a destination and reused, because the kernel may have to ask for the link address of the
// neighbor. rs_create_ah waits for that answer with mu locked. Lock order: handles.mu, then
// paths.mu.
type handles struct {
	mu     sync.Mutex
	m      map[destination]*ah
	uses   uint64
	closed bool
}

// handle returns the address handle of a destination for one request. The request releases it when
// it has completed. The first use of a destination may wait until the kernel has resolved the
// neighbor.
//
//	destination                        result
//	known                              its handle, one user more
//	known to be unreachable            the same error, for a second
//	new                                a new handle; may wait for the neighbor
//	new on InfiniBand, no path         an error: ResolveUD finds paths
func (p *pd) handle(to *rdma.AH, now rdma.Time) (*ah, error) {
	h := &p.ahs
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, rdma.ErrClosed
	}
	key := destination{to.Remote.Unmap(), to.TrafficClass}
	h.uses++
	a := h.m[key]
	// A failed resolution is remembered, so that a user who sends to an unreachable host does not
	// stop the loop with each datagram.
	if a != nil && a.err != nil && now >= a.until {
		delete(h.m, key)
		a = nil
	}
	if a == nil {
		h.trim()
		a = &ah{of: h}
		var attr C.struct_ibv_ah_attr
		if a.err = p.d.datagramPath(&attr, key.to, key.class); a.err == nil {
			var err error
			if a.ah, err = C.rs_create_ah(p.pd, &attr); a.ah == nil {
				a.err = fmt.Errorf("%w: %s cannot send datagrams to %v: %w", rdma.ErrInvalidWR, p.d.name, key.to, err)
			}
		}
		if a.err != nil {
			a.until = now + unreachable
		}
		if h.m == nil {
			h.m = map[destination]*ah{}
		}
		h.m[key] = a
	}
	a.used = h.uses
	if a.err != nil {
		return nil, a.err
	}
	a.users++
	return a, nil
}

// trim makes room for one more handle: it frees the unused one whose last use is the oldest.
func (h *handles) trim() {
	idle, oldest := 0, destination{}
	least := ^uint64(0)
	for k, a := range h.m {
		if a.users > 0 {
			continue
		}
		if idle++; a.used < least {
			oldest, least = k, a.used
		}
	}
	if idle >= handlesMax {
		h.m[oldest].free()
		delete(h.m, oldest)
	}
}

// release ends the use by a request.
func (a *ah) release() {
	a.of.mu.Lock()
	a.users--
	if a.users == 0 && a.of.closed {
		a.free()
	}
	a.of.mu.Unlock()
}

func (a *ah) free() {
	if a.ah != nil {
		C.rs_destroy_ah(a.ah)
		a.ah = nil
	}
}

// close frees the handles. A handle in use is freed when its last request has completed.
func (h *handles) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for k, a := range h.m {
		delete(h.m, k)
		if a.users == 0 {
			a.free()
		}
	}
}

// paths are the InfiniBand paths that the connection manager has resolved. On InfiniBand, the path
// does not follow from the IP address.
type paths struct {
	mu sync.Mutex
	m  map[netip.Addr]C.struct_ibv_ah_attr
}

func (p *paths) store(to netip.Addr, attr *C.struct_ibv_ah_attr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m == nil || len(p.m) >= pathsMax {
		p.m = map[netip.Addr]C.struct_ibv_ah_attr{}
	}
	p.m[to.Unmap()] = *attr
}

// datagramPath fills in the path of datagrams to an address.
func (d *Device) datagramPath(attr *C.struct_ibv_ah_attr, to netip.Addr, class uint8) error {
	if err := connstate.CheckRemote(d.addr, netip.AddrPortFrom(to, 0)); err != nil {
		return err
	}
	if !d.ib {
		return d.path(attr, to, class)
	}
	d.paths.mu.Lock()
	known, ok := d.paths.m[to]
	d.paths.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: InfiniBand's path to %v is found by asking for its service (ResolveUD)",
			rdma.ErrInvalidWR, to)
	}
	*attr = known
	attr.grh.traffic_class = C.uint8_t(class)
	return nil
}
