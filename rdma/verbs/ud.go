//go:build rdmacore && linux && cgo

package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"unsafe"

	"github.com/rstored/rstored/rdma"
)

// Bounds of what is kept of destinations.
const (
	handlesMax = 256                     // address handles of a domain that no request uses
	waysMax    = 4096                    // InfiniBand's paths of a device
	deafFor    = 1000 * rdma.Millisecond // for how long a destination that cannot be resolved is not tried again
)

// destination is what an address handle is for.
type destination struct {
	to    netip.Addr
	class uint8
}

// ah is an address handle, which requests that are under way share. The fields are guarded by handles.mu.
type ah struct {
	of    *handles
	ah    *C.struct_ibv_ah // nil: it cannot be had
	err   error            // why
	until rdma.Time        // when it is worth another try
	users int              // requests under way
	used  uint64           // when, in uses
}

// handles are the address handles of a protection domain.
type handles struct {
	mu   sync.Mutex
	m    map[destination]*ah
	uses uint64
	gone bool
}

// handle is the address handle of a destination, for one request; release it when that has completed. A
// first one may wait for the kernel's answer who the neighbor is.
func (p *pd) handle(to *rdma.AH, now rdma.Time) (*ah, error) {
	h := &p.ahs
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return nil, rdma.ErrClosed
	}
	key := destination{to.Remote.Unmap(), to.TrafficClass}
	h.uses++
	a := h.m[key]
	if a != nil && a.err != nil && now >= a.until {
		delete(h.m, key)
		a = nil
	}
	if a == nil {
		h.trim()
		a = &ah{of: h}
		var attr C.struct_ibv_ah_attr
		if a.err = p.d.way(&attr, key.to, key.class); a.err == nil {
			var err error
			if a.ah, err = C.rs_create_ah(p.pd, &attr); a.ah == nil {
				a.err = fmt.Errorf("%w: %s cannot send datagrams to %v: %w", rdma.ErrInvalidWR, p.d.name, key.to, err)
			}
		}
		if a.err != nil {
			a.until = now + deafFor
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

// trim makes room for one more: the one goes that was not used for longest.
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

// release says that a request has completed.
func (a *ah) release() {
	a.of.mu.Lock()
	a.users--
	if a.users == 0 && a.of.gone {
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

// close frees the handles, those that requests use when these have ended.
func (h *handles) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = true
	for k, a := range h.m {
		delete(h.m, k)
		if a.users == 0 {
			a.free()
		}
	}
}

// ways are the paths to addresses that the connection manager has found, where addresses do not say them.
type ways struct {
	mu sync.Mutex
	m  map[netip.Addr]C.struct_ibv_ah_attr
}

// learn keeps what the connection manager says of an address.
func (w *ways) learn(to netip.Addr, attr *C.struct_ibv_ah_attr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.m == nil || len(w.m) >= waysMax {
		w.m = map[netip.Addr]C.struct_ibv_ah_attr{}
	}
	w.m[to.Unmap()] = *attr
}

// way fills in the way to an address for datagrams.
func (d *Device) way(attr *C.struct_ibv_ah_attr, to netip.Addr, class uint8) error {
	if !to.IsValid() || to.Is4() != d.addr.Is4() {
		return fmt.Errorf("%w: %v cannot be reached from %v", rdma.ErrInvalidWR, to, d.addr)
	}
	if !d.ib {
		return d.path(attr, to, class)
	}
	d.ways.mu.Lock()
	known, ok := d.ways.m[to]
	d.ways.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: InfiniBand's path to %v is found by asking for its service (ResolveUD)", rdma.ErrInvalidWR, to)
	}
	*attr = known
	attr.grh.traffic_class = C.uint8_t(class)
	return nil
}

// checkAH refuses addresses that no datagram may have.
func checkAH(a *rdma.AH) error {
	if a.QPN < 2 || a.QPN >= 1<<24 {
		return fmt.Errorf("%w: a datagram to queue pair %d", rdma.ErrInvalidWR, a.QPN)
	}
	return nil
}

// Private data of questions and answers (IBTA 12.11): what RDMA-CM leaves of it.
const (
	privateSIDRREQ = 180
	privateSIDRREP = 136
)

// ListenUD implements rdma.Device. Port 0 means any free port.
func (d *Device) ListenUD(port uint16, accept func(rdma.UDRequest)) (rdma.Listener, error) {
	if !d.limits.Datagrams {
		return nil, fmt.Errorf("%w: %s has no datagrams", rdma.ErrUnsupported, d.name)
	}
	return d.listen(C.RDMA_PS_UDP, port, func(l *loop, e *C.struct_rs_event) {
		r := &udRequest{l: d.home(), private: privateData(e)}
		var x C.struct_rs_route
		C.rs_route(e.id, &x)
		r.local, r.remote, r.pkey = address(&x.local), address(&x.remote), uint16(x.pkey)
		if r.pkey == 0 {
			r.pkey = defaultPKey
		}
		r.l.welcome(l, e.id, r.event, func(i *ident) {
			r.id = i
			accept(r)
		})
	})
}

// udRequest is a host's question for a queue pair. It implements rdma.UDRequest.
type udRequest struct {
	l        *loop
	id       *ident
	local    netip.AddrPort
	remote   netip.AddrPort
	private  []byte
	pkey     uint16
	answered bool
}

var _ rdma.UDRequest = (*udRequest)(nil)

func (r *udRequest) Loop() rdma.Loop        { return r.l }
func (r *udRequest) Local() netip.AddrPort  { return r.local }
func (r *udRequest) Remote() netip.AddrPort { return r.remote }
func (r *udRequest) PrivateData() []byte    { return r.private }
func (r *udRequest) PKey() uint16           { return r.pkey }

// event is what happens before the question is answered.
func (r *udRequest) event(e *C.struct_rs_event) {
	switch e._type {
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		r.l.dev.taken()
	case C.RDMA_CM_EVENT_ADDR_CHANGE:
		r.l.dev.moved()
	}
}

// Accept implements rdma.UDRequest. The connection manager of the kernel gives the answer the Q_Key
// rdma.UDQKey, whatever its user would like (limit ServiceQKeys).
func (r *udRequest) Accept(qpn, qkey uint32, private []byte) error {
	switch {
	case r.answered || r.id.id == nil:
		return rdma.ErrClosed
	case len(private) > privateSIDRREP:
		return fmt.Errorf("%w: %d bytes of private data; an answer carries %d", rdma.ErrInvalidWR, len(private), privateSIDRREP)
	case qkey != rdma.UDQKey:
		return fmt.Errorf("%w: the Q_Key %#x; the kernel's connection manager answers with %#x", rdma.ErrUnsupported, qkey, uint32(rdma.UDQKey))
	}
	r.answered = true
	p := param(&rdma.ConnParams{PrivateData: private})
	defer C.free(unsafe.Pointer(p.private_data))
	p.qpn, p.qkey = C.uint32_t(qpn), C.uint32_t(qkey)
	e := C.rs_accept(r.id.id, &p)
	r.id.destroy()
	if e != 0 {
		return fmt.Errorf("answering %v: %w", r.remote, errno(e))
	}
	return nil
}

// Reject implements rdma.UDRequest. The connection manager of the kernel knows one reason.
func (r *udRequest) Reject(_ rdma.SIDRStatus, private []byte) {
	if r.answered || r.id.id == nil {
		return
	}
	r.answered = true
	data := C.CBytes(private)
	defer C.free(data)
	C.rs_reject(r.id.id, data, C.int(min(len(private), privateSIDRREP)))
	r.id.destroy()
}

// question is one that was asked and not answered yet.
type question struct {
	l  *loop
	id *ident
	p  rdma.ResolveParams
	// over: it was answered or abandoned.
	over bool
}

// ResolveUD implements rdma.Device.
func (d *Device) ResolveUD(lp rdma.Loop, p rdma.ResolveParams) (func(), error) {
	l, err := d.loopOf(lp)
	switch {
	case err != nil:
		return nil, err
	case !d.limits.Datagrams:
		return nil, fmt.Errorf("%w: %s has no datagrams", rdma.ErrUnsupported, d.name)
	case d.lost() != nil:
		return nil, d.lost()
	case !p.Remote.Addr().IsValid() || p.Remote.Addr().Unmap().Is4() != d.addr.Is4():
		return nil, fmt.Errorf("%w: %v cannot be reached from %v", rdma.ErrInvalidWR, p.Remote, d.addr)
	case len(p.PrivateData) > privateSIDRREQ:
		return nil, fmt.Errorf("%w: %d bytes of private data; a question carries %d", rdma.ErrInvalidWR, len(p.PrivateData), privateSIDRREQ)
	case p.PKey != 0 && p.PKey&0x7fff != defaultPKey&0x7fff:
		return nil, fmt.Errorf("%w: partition %#04x; the interface that the address is on decides it", rdma.ErrInvalidWR, p.PKey)
	}
	q := &question{l: l, p: p}
	q.p.PrivateData = slices.Clone(p.PrivateData)
	if q.id, err = l.newIdent(C.RDMA_PS_UDP, 0, q.event); err != nil {
		return nil, fmt.Errorf("asking %v: %w", p.Remote, err)
	}
	q.id.ended = func(why error) { q.answer(rdma.UDAddress{Err: why}) }
	l.misc[q.id] = struct{}{}
	sa := sockaddr(p.Remote)
	if e := C.rs_resolve_addr(q.id.id, unsafe.Pointer(&sa), resolveTimeout); e != 0 {
		q.fail("the address cannot be resolved", errno(e))
	}
	return q.cancel, nil
}

// cancel abandons the question.
func (q *question) cancel() {
	q.over = true
	q.id.destroy()
}

// answer tells the user in this turn, unless it has abandoned the question.
func (q *question) answer(a rdma.UDAddress) {
	if q.id.id == nil {
		return
	}
	q.id.destroy()
	q.l.later = append(q.l.later, func() {
		if !q.over {
			q.over = true
			q.p.On(a)
		}
	})
}

func (q *question) fail(what string, err error) {
	q.answer(rdma.UDAddress{Err: fmt.Errorf("%v does not say where its datagrams go: %s: %w", q.p.Remote, what, err)})
}

// event handles an event of the connection manager.
func (q *question) event(e *C.struct_rs_event) {
	status := int(e.status)
	switch e._type {
	case C.RDMA_CM_EVENT_ADDR_RESOLVED:
		if x := C.rs_resolve_route(q.id.id, resolveTimeout); x != 0 {
			q.fail("the route cannot be resolved", errno(x))
		}
	case C.RDMA_CM_EVENT_ROUTE_RESOLVED:
		p := param(&rdma.ConnParams{PrivateData: q.p.PrivateData})
		defer C.free(unsafe.Pointer(p.private_data))
		if x := C.rs_connect(q.id.id, &p); x != 0 {
			q.fail("the question cannot be sent", errno(x))
		}
	case C.RDMA_CM_EVENT_ESTABLISHED:
		a := rdma.UDAddress{
			AH:   rdma.AH{Remote: q.p.Remote.Addr().Unmap(), QPN: uint32(e.qpn), QKey: uint32(e.qkey)},
			PKey: defaultPKey, PrivateData: privateData(e),
		}
		if r := q.id.route(); r.pkey != 0 {
			a.PKey = uint16(r.pkey)
		}
		if q.l.dev.ib {
			q.l.dev.ways.learn(a.AH.Remote, &e.ah)
		}
		q.answer(a)
	case C.RDMA_CM_EVENT_ADDR_ERROR:
		q.fail("the address cannot be resolved", statusError(status))
	case C.RDMA_CM_EVENT_ROUTE_ERROR:
		q.fail("there is no route", statusError(status))
	case C.RDMA_CM_EVENT_UNREACHABLE, C.RDMA_CM_EVENT_REJECTED, C.RDMA_CM_EVENT_CONNECT_ERROR:
		if status > 0 {
			q.answer(rdma.UDAddress{Err: fmt.Errorf("%v does not serve datagrams on port %d: %s", q.p.Remote.Addr(), q.p.Remote.Port(), sidrText(status))})
			return
		}
		q.fail("no answer", statusError(status))
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		q.answer(rdma.UDAddress{Err: rdma.ErrRemoved})
		q.l.dev.taken()
	case C.RDMA_CM_EVENT_ADDR_CHANGE:
		q.answer(rdma.UDAddress{Err: rdma.ErrAddrChanged})
		q.l.dev.moved()
	}
}

// sidrText is a status of an answer in words (IBTA 12.11.2.2).
func sidrText(status int) string {
	switch status {
	case 1:
		return "nothing listens there"
	case int(rdma.SIDRReject):
		return "the program there refuses"
	case int(rdma.SIDRNoQP):
		return "it has no queue pair"
	}
	return fmt.Sprintf("IBTA status %d", status)
}
