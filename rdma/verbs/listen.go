//go:build rdmacore && linux && cgo

package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/connstate"
)

// listener serves a port. It implements rdma.Listener.
type listener struct {
	d    *Device
	id   *cmID
	addr netip.AddrPort
	once sync.Once
}

// backlog is how many requests the kernel queues for a listener.
const backlog = 1024

// listen opens a port. accept gets its requests, on the first loop.
func (d *Device) listen(ps C.int, port uint16, accept func(*loop, *C.struct_rs_event)) (rdma.Listener, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, rdma.ErrClosed
	}
	first := d.loops[0]
	i, err := first.newCMID(ps, port, func(e *C.struct_rs_event) {
		if d.deviceEvent(e) == nil && e._type == C.RDMA_CM_EVENT_CONNECT_REQUEST {
			accept(first, e)
		}
	})
	if err == nil {
		if e := C.rs_listen(i.id, backlog); e != 0 {
			i.destroy()
			err = errno(e)
		}
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("RDMA port %d of %v is listened on already, here or by another program: %w", port, d.addr, err)
	case err != nil:
		return nil, fmt.Errorf("listening on RDMA port %d of %v: %w", port, d.addr, err)
	}
	s := &listener{d: d, id: i, addr: routeOf(i.id).local}
	d.listeners[s] = struct{}{}
	return s, nil
}

// Addr implements rdma.Listener.
func (s *listener) Addr() netip.AddrPort { return s.addr }

// Close implements rdma.Listener.
func (s *listener) Close() error {
	err := rdma.ErrClosed
	s.once.Do(func() {
		s.d.mu.Lock()
		delete(s.d.listeners, s)
		s.d.mu.Unlock()
		s.free()
		err = nil
	})
	return err
}

// free closes the port. rdma_destroy_id waits until the loop has acknowledged an event of the
// rdma_cm_id, which it does while it reads it (rs_cm_event), so this cannot wait for long. It runs
// on any goroutine, so it leaves the fields of the cmID as they are.
func (s *listener) free() {
	dropCookie(s.id.cookie)
	C.rs_destroy_id(s.id.id)
}

// Listen implements rdma.Device. Port 0 means any free port.
func (d *Device) Listen(port uint16, accept func(rdma.ConnRequest)) (rdma.Listener, error) {
	return d.listen(C.RDMA_PS_TCP, port, func(l *loop, e *C.struct_rs_event) {
		// The event has the parameters from our side: what the peer starts, we would serve.
		r := &request{req: REQ{
			QPN: uint32(e.qpn), ResponderResources: uint8(e.responder_resources), InitiatorDepth: uint8(e.initiator_depth),
			RetryCount: uint8(e.retry_count), RNRRetryCount: uint8(e.rnr_retry_count),
		}}
		r.receive(l, e, func() { accept(r) })
	})
}

// request is a REQ that was received. It implements rdma.ConnRequest.
type request struct {
	incoming
	req  REQ
	note func() rdma.Note
}

var (
	_ rdma.ConnRequest = (*request)(nil)
	_ rdma.Annotated   = (*request)(nil)
)

func (r *request) ResponderResources() uint8 { return r.req.InitiatorDepth }
func (r *request) InitiatorDepth() uint8     { return r.req.ResponderResources }
func (r *request) PathMTU() rdma.MTU         { return cmp.Or(r.mtu, r.l.dev.mtu) }

// Annotate implements rdma.Annotated.
func (r *request) Annotate(note func() rdma.Note) { r.note = note }

// Reject implements rdma.ConnRequest.
func (r *request) Reject(reason uint16, private []byte) { r.reject(reason, private, nil) }

func (r *request) reject(reason uint16, private []byte, err error) {
	if r.answered {
		return
	}
	r.answered = true
	r.l.n.refused.Add(1)
	r.refuse(private, privateREJ)
	r.recordRefusal(reason, err)
}

// Accept implements rdma.ConnRequest.
func (r *request) Accept(qc rdma.QPConfig, p rdma.ConnParams, prepare func(rdma.Conn) error,
	on func(rdma.Conn, rdma.ConnEvent),
) (rdma.Conn, error) {
	if r.answered || r.id.id == nil {
		return nil, rdma.ErrClosed
	}
	if err := connstate.CheckPrivate(p.PrivateData, privateREP, "a REP"); err != nil {
		r.reject(rejConsumer, nil, err)
		return nil, err
	}
	c, err := r.l.newConn(r.id, qc)
	if err != nil {
		r.reject(rejNoResources, nil, err)
		return nil, err
	}
	// From here on the rdma_cm_id belongs to the connection, which destroys it.
	delete(r.l.ids, r.id)
	r.answered = true
	c.On, c.Phase, c.LocalAddr, c.RemoteAddr, c.MTU, c.pkey = on, connstate.Accepted, r.local, r.remote, r.PathMTU(),
		r.pkey
	c.req, c.peerQPN = r.record(), r.req.QPN
	c.Params = connstate.BoundAccept(p, uint8(r.l.dev.limits.RdAtomic), r)
	if prepare != nil {
		if err := prepare(c); err != nil {
			C.rs_reject(r.id.id, nil, 0)
			c.discard()
			r.recordRefusal(rejConsumer, err)
			return nil, err
		}
	}
	if !r.l.dev.iwarp {
		r.id.setAckTimeout(ackTimeout) // kernels before 5.1 ignore it and take that of the REQ
	}
	x := param(&c.Params)
	defer C.free(unsafe.Pointer(x.private_data))
	if e := C.rs_accept(r.id.id, &x); e != 0 {
		c.discard()
		err := fmt.Errorf("answering %v: %w", r.remote, errno(e))
		r.recordRefusal(0, err)
		return nil, err
	}
	// rdma_accept has moved the queue pair to RTS. Messages may arrive before the RTU.
	c.q.state = rdma.StateRTS
	c.setRNRTimer()
	return c, nil
}
