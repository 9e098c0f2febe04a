//go:build rdmacore && linux && cgo

package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/connstate"
)

// Room for private data (IBTA 12.11), less what RDMA-CM uses.
const (
	privateSIDRREQ = 180
	privateSIDRREP = 136
)

// ListenUD implements rdma.Device. Port 0 means any free port.
func (d *Device) ListenUD(port uint16, accept func(rdma.UDRequest)) (rdma.Listener, error) {
	if !d.limits.Datagrams {
		return nil, d.noDatagrams()
	}
	return d.listen(C.RDMA_PS_UDP, port, func(l *loop, e *C.struct_rs_event) {
		r := new(sidrRequest)
		r.receive(l, e, func() { accept(r) })
	})
}

// sidrRequest is a SIDR REQ that was received. It implements rdma.UDRequest.
type sidrRequest struct{ incoming }

var _ rdma.UDRequest = (*sidrRequest)(nil)

// Accept implements rdma.UDRequest. The kernel's connection manager answers with the Q_Key
// rdma.UDQKey only.
func (r *sidrRequest) Accept(qpn, qkey uint32, private []byte) error {
	if r.answered || r.id.id == nil {
		return rdma.ErrClosed
	}
	if err := connstate.CheckPrivate(private, privateSIDRREP, "a SIDR REP"); err != nil {
		return err
	}
	if qkey != rdma.UDQKey {
		return fmt.Errorf("%w: the Q_Key %#x; the kernel's connection manager answers with %#x", rdma.ErrUnsupported, qkey,
			uint32(rdma.UDQKey))
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

// Reject implements rdma.UDRequest. The kernel's connection manager knows one status.
func (r *sidrRequest) Reject(_ rdma.SIDRStatus, private []byte) {
	if !r.answered && r.id.id != nil {
		r.answered = true
		r.refuse(private, privateSIDRREP)
	}
}

// resolution is a SIDR REQ of ours. Its rdma_cm_id lives until the answer, the end of the device,
// or cancel, whichever comes first:
//
//	resolve -> ADDR_RESOLVED -> ROUTE_RESOLVED -> send -> ESTABLISHED: the SIDR REP is positive
//	                                                   -> UNREACHABLE, REJECTED: it is negative
//	                                                      (status > 0), or there is none
type resolution struct {
	l    *loop
	id   *cmID
	p    rdma.ResolveParams
	over bool // answered or canceled
}

// ResolveUD implements rdma.Device.
func (d *Device) ResolveUD(lp rdma.Loop, p rdma.ResolveParams) (func(), error) {
	l, err := d.loopOf(lp)
	if err != nil {
		return nil, err
	}
	if !d.limits.Datagrams {
		return nil, d.noDatagrams()
	}
	if err := cmp.Or(d.lost(), connstate.CheckRemote(d.addr, p.Remote), checkPartition(p.PKey, rdma.ErrInvalidWR),
		connstate.CheckPrivate(p.PrivateData, privateSIDRREQ, "a SIDR REQ")); err != nil {
		return nil, err
	}
	r := &resolution{l: l, p: p}
	r.p.PrivateData = slices.Clone(p.PrivateData)
	if r.id, err = l.newCMID(C.RDMA_PS_UDP, 0, r.event); err != nil {
		return nil, fmt.Errorf("sending a SIDR REQ to %v: %w", p.Remote, err)
	}
	// abandon calls it, so that the user gets an answer when the device ends.
	r.id.ended = func(why error) { r.answer(rdma.UDAddress{Err: why}) }
	l.ids[r.id] = struct{}{}
	r.id.resolve(p.Remote, r.fail)
	return r.cancel, nil
}

// cancel abandons the request.
func (r *resolution) cancel() {
	r.over = true
	r.id.destroy()
}

// answer queues the answer for the user, for the callbacks of this turn.
func (r *resolution) answer(a rdma.UDAddress) {
	if r.id.id == nil {
		return
	}
	r.id.destroy()
	r.l.later.Add(func() {
		if !r.over {
			r.over = true
			r.p.On(a)
		}
	})
}

func (r *resolution) fail(what string, err error) {
	r.answer(rdma.UDAddress{
		Err: fmt.Errorf("%v did not answer the SIDR REQ: %s: %w", r.p.Remote, what, err),
	})
}

// send sends the SIDR REQ.
func (r *resolution) send() {
	p := param(&rdma.ConnParams{PrivateData: r.p.PrivateData})
	defer C.free(unsafe.Pointer(p.private_data))
	if x := C.rs_connect(r.id.id, &p); x != 0 {
		r.fail("the SIDR REQ cannot be sent", errno(x))
	}
}

// event handles an event of the connection manager.
func (r *resolution) event(e *C.struct_rs_event) {
	r.id.next(e, r.send, r.fail)
	status := int(e.status)
	switch e._type {
	case C.RDMA_CM_EVENT_ESTABLISHED:
		a := rdma.UDAddress{
			AH:   rdma.AH{Remote: r.p.Remote.Addr().Unmap(), QPN: uint32(e.qpn), QKey: uint32(e.qkey)},
			PKey: routeOf(r.id.id).pkey, PrivateData: privateData(e),
		}
		if r.l.dev.ib {
			r.l.dev.paths.store(a.AH.Remote, &e.ah)
		}
		r.answer(a)
	case C.RDMA_CM_EVENT_UNREACHABLE, C.RDMA_CM_EVENT_REJECTED, C.RDMA_CM_EVENT_CONNECT_ERROR:
		if status > 0 {
			r.answer(rdma.UDAddress{Err: fmt.Errorf("%v does not serve datagrams on port %d: %s", r.p.Remote.Addr(),
				r.p.Remote.Port(), sidrText(status))})
			return
		}
		r.fail("no answer", statusError(status))
	}
	if why := r.l.dev.deviceEvent(e); why != nil {
		r.answer(rdma.UDAddress{Err: why})
	}
}

// sidrText is the status of an answer in words (IBTA 12.11.2.2).
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
