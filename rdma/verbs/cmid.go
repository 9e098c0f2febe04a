//go:build rdmacore && linux && cgo

package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"unsafe"

	"github.com/rstored/rstored/rdma"
)

// cmID is an rdma_cm_id of a connection, of a listener, or of a request. It belongs to a loop,
// which reads its events.
type cmID struct {
	l      *loop
	id     *C.struct_rdma_cm_id // nil once it is destroyed
	cookie uint64
	on     func(*C.struct_rs_event)
	ended  func(error) // if set, called when the device ends
}

func (i *cmID) home() *loop { return i.l }
func (i *cmID) async(int)   {}

const (
	resolveTimeout = 2000 // milliseconds, of address and route each
	defaultPKey    = 0xffff
)

// newCMID makes an rdma_cm_id that is bound to the address of the device.
func (l *loop) newCMID(ps C.int, port uint16, on func(*C.struct_rs_event)) (*cmID, error) {
	i := &cmID{l: l, on: on}
	i.cookie = newCookie(i)
	var err error
	if i.id, err = C.rs_create_id(l.cm, C.uint64_t(i.cookie), ps); i.id == nil {
		dropCookie(i.cookie)
		return nil, fmt.Errorf("%w: rdma_create_id: %w", rdma.ErrNoResources, cause(err))
	}
	sa := toSockaddr(netip.AddrPortFrom(l.dev.addr, port))
	if e := C.rs_bind(i.id, unsafe.Pointer(&sa)); e != 0 {
		i.destroy()
		return nil, errno(e)
	}
	return i, nil
}

// adopt takes over the rdma_cm_id that librdmacm made for a request.
func (l *loop) adopt(id *C.struct_rdma_cm_id, on func(*C.struct_rs_event)) *cmID {
	i := &cmID{l: l, id: id, on: on}
	i.cookie = newCookie(i)
	C.rs_set_cookie(id, C.uint64_t(i.cookie))
	return i
}

// destroy destroys the rdma_cm_id. If another thread is reading an event of it, destroy waits until
// the event is acknowledged (rdma_destroy_id).
func (i *cmID) destroy() {
	if i.id == nil {
		return
	}
	dropCookie(i.cookie)
	delete(i.l.ids, i)
	C.rs_destroy_id(i.id)
	i.id = nil
}

// setAckTimeout sets the code of the ACK timeout of the connection, and of its REQ.
func (i *cmID) setAckTimeout(code uint8) { C.rs_set_ack_timeout(i.id, C.uint8_t(code)) }

// route are the addresses and the partition of an rdma_cm_id.
type route struct {
	local, remote netip.AddrPort
	pkey          uint16
	mtu           rdma.MTU // 0 if unknown
}

func routeOf(id *C.struct_rdma_cm_id) route {
	var r C.struct_rs_route
	C.rs_route(id, &r)
	return route{
		fromSockaddr((*sockaddr)(unsafe.Pointer(&r.local))), fromSockaddr((*sockaddr)(unsafe.Pointer(&r.remote))),
		cmp.Or(uint16(r.pkey), defaultPKey), rdma.MTUFromCode(uint8(r.mtu)),
	}
}

// cmEvents handles the events of the connection manager.
func (l *loop) cmEvents() {
	if !l.cmReady {
		return
	}
	l.cmReady = false
	var e C.struct_rs_event
	for C.rs_cm_event(l.cm, &e) == 0 {
		i, ok := objectOf(uint64(e.cookie)).(*cmID)
		l.n.cm.Add(1)
		switch {
		case ok && i.id != nil:
			i.on(&e)
		case e.id != nil:
			l.n.refused.Add(1)
			C.rs_destroy_id(e.id) // a request for a listener that is closed
		}
	}
}

// deviceEvent handles the events by which any rdma_cm_id learns that the device cannot be used any
// more. It returns why, or nil for other events.
func (d *Device) deviceEvent(e *C.struct_rs_event) error {
	switch e._type {
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		d.removedByKernel()
		return rdma.ErrRemoved
	case C.RDMA_CM_EVENT_ADDR_CHANGE:
		d.moved()
		return rdma.ErrAddrChanged
	}
	return nil
}

// resolve begins to resolve the address of the peer, and next continues: the address, then the
// route, then connected is called to send the request. failed says what failed.
func (i *cmID) resolve(to netip.AddrPort, failed func(what string, err error)) {
	sa := toSockaddr(to)
	if e := C.rs_resolve_addr(i.id, unsafe.Pointer(&sa), resolveTimeout); e != 0 {
		failed("the address cannot be resolved", errno(e))
	}
}

func (i *cmID) next(e *C.struct_rs_event, send func(), failed func(what string, err error)) {
	switch e._type {
	case C.RDMA_CM_EVENT_ADDR_RESOLVED:
		if x := C.rs_resolve_route(i.id, resolveTimeout); x != 0 {
			failed("the route cannot be resolved", errno(x))
		}
	case C.RDMA_CM_EVENT_ROUTE_RESOLVED:
		send()
	case C.RDMA_CM_EVENT_ADDR_ERROR:
		failed("the address cannot be resolved", statusError(int(e.status)))
	case C.RDMA_CM_EVENT_ROUTE_ERROR:
		failed("there is no route", statusError(int(e.status)))
	}
}

// checkPartition refuses partitions other than the default one: the network interface that has the
// address decides the partition.
func checkPartition(pkey uint16, kind error) error {
	if pkey != 0 && pkey&0x7fff != defaultPKey&0x7fff {
		return fmt.Errorf("%w: partition %#04x: the interface of the address decides the partition", kind, pkey)
	}
	return nil
}

// statusError is the error that a status of the connection manager stands for.
func statusError(status int) error {
	if status < 0 {
		return syscall.Errno(-status)
	}
	return fmt.Errorf("status %d", status)
}

func privateData(e *C.struct_rs_event) []byte {
	return slices.Clone((*[256]byte)(unsafe.Pointer(&e.private_data))[:e.private_len])
}

// param are parameters for the connection manager. The caller frees private_data.
func param(p *rdma.ConnParams) (out C.struct_rs_param) {
	if n := len(p.PrivateData); n > 0 {
		out.private_data, out.private_len = C.CBytes(p.PrivateData), C.uint8_t(n)
	}
	out.responder_resources, out.initiator_depth = C.uint8_t(p.ResponderResources), C.uint8_t(p.InitiatorDepth)
	out.retry_count, out.rnr_retry_count = C.uint8_t(p.RetryCount), C.uint8_t(p.RNRRetryCount)
	return out
}

// incoming is what a REQ and a SIDR REQ have in common.
type incoming struct {
	l *loop
	route
	id       *cmID
	private  []byte
	answered bool
}

// receive reads a request from its event, and hands it on to the loop that is to answer it.
func (r *incoming) receive(from *loop, e *C.struct_rs_event, accept func()) {
	d := from.dev
	r.l = d.loops[d.next.Add(1)%uint32(len(d.loops))]
	r.route, r.private = routeOf(e.id), privateData(e)
	id := e.id
	take := func() {
		r.id = r.l.adopt(id, r.event)
		r.l.ids[r.id] = struct{}{}
		accept()
	}
	switch {
	case r.l == from:
		take()
	case C.rs_migrate(id, r.l.cm) != 0 || !r.l.Submit(take):
		C.rs_destroy_id(id) // which rejects the request
	}
}

func (r *incoming) Loop() rdma.Loop        { return r.l }
func (r *incoming) Local() netip.AddrPort  { return r.local }
func (r *incoming) Remote() netip.AddrPort { return r.remote }
func (r *incoming) PrivateData() []byte    { return r.private }
func (r *incoming) PKey() uint16           { return r.pkey }

// event handles an event before the answer.
func (r *incoming) event(e *C.struct_rs_event) { _ = r.l.dev.deviceEvent(e) }

// refuse rejects the request with at most most bytes of private data. The connection manager has
// only one reason: consumer reject.
func (r *incoming) refuse(private []byte, most int) {
	data := C.CBytes(private)
	defer C.free(data)
	C.rs_reject(r.id.id, data, C.int(min(len(private), most)))
	r.id.destroy()
}
