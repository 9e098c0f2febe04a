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
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/rstored/rstored/rdma"
)

// ident is an rdma_cm_id. Its events are read by its loop.
type ident struct {
	l      *loop
	id     *C.struct_rdma_cm_id
	cookie uint64
	on     func(*C.struct_rs_event)
	ended  func(error) // if set: the device ends, and why
}

func (i *ident) home() *loop { return i.l }
func (i *ident) async(int)   {}

// newIdent makes an rdma_cm_id that is bound to the device's address.
func (l *loop) newIdent(ps C.int, port uint16, on func(*C.struct_rs_event)) (*ident, error) {
	i := &ident{l: l, on: on}
	i.cookie = cookies.add(i)
	var err error
	if i.id, err = C.rs_create_id(l.cm, C.uint64_t(i.cookie), ps); i.id == nil {
		cookies.remove(i.cookie)
		return nil, fmt.Errorf("%w: rdma_create_id: %w", rdma.ErrNoResources, cause(err))
	}
	sa := sockaddr(netip.AddrPortFrom(l.dev.addr, port))
	if e := C.rs_bind(i.id, unsafe.Pointer(&sa)); e != 0 {
		i.destroy()
		return nil, errno(e)
	}
	return i, nil
}

// adopt is the rdma_cm_id of a request.
func (l *loop) adopt(id *C.struct_rdma_cm_id, on func(*C.struct_rs_event)) *ident {
	i := &ident{l: l, id: id, on: on}
	i.cookie = cookies.add(i)
	C.rs_set_cookie(id, C.uint64_t(i.cookie))
	return i
}

func (i *ident) destroy() {
	if i.id == nil {
		return
	}
	cookies.remove(i.cookie)
	delete(i.l.misc, i)
	C.rs_destroy_id(i.id)
	i.id = nil
}

// setAckTimeout sets the code of the ACK timeout of the connection, and of the one that its REQ will name.
func (i *ident) setAckTimeout(code uint8) { C.rs_set_ack_timeout(i.id, C.uint8_t(code)) }

func (i *ident) route() (r C.struct_rs_route) {
	C.rs_route(i.id, &r)
	return r
}

func address(b *[28]C.uint8_t) netip.AddrPort {
	return addrPort((*[28]byte)(unsafe.Pointer(b))[:])
}

// connections handles the events of the connection manager.
func (l *loop) connections() {
	if !l.cmReady {
		return
	}
	l.cmReady = false
	var e C.struct_rs_event
	for C.rs_cm_event(l.cm, &e) == 0 {
		i, ok := cookies.get(uint64(e.cookie)).(*ident)
		l.n.cm.Add(1)
		switch {
		case ok && i.id != nil:
			i.on(&e)
		case e.id != nil:
			l.n.refused.Add(1)
			C.rs_destroy_id(e.id) // a request to a listener that is closed
		}
	}
}

// phase is where a connection is in its life.
type phase uint8

const (
	requested phase = iota // active side
	accepted               // passive side: the answer is out
	established
	down // over; the user has been told, or will be
)

// conn is a connection. It implements rdma.Conn.
type conn struct {
	l      *loop
	id     *ident
	q      *qp
	local  netip.AddrPort
	remote netip.AddrPort
	pkey   uint16
	phase  phase
	active bool // we asked for it
	closed bool // by the user: no callback any more
	heard  bool // something has arrived
	on     func(rdma.Conn, rdma.ConnEvent)
	params rdma.ConnParams
	mtu    rdma.MTU

	// For a post-mortem.
	note       func() rdma.Note
	req        *REQ // of the peer
	peerQPN    uint32
	ackTimeout uint8
	eventful   bool // there was an event of the connection manager: the last, and its status
	lastEvent  int
	lastStatus int
}

var _ rdma.Conn = (*conn)(nil)

var (
	errPeerLeft  = errors.New("the peer disconnected")
	errLocalLeft = errors.New("disconnected")
)

const (
	privateREQ = 56
	privateREP = 196

	resolveTimeout = 2000 // milliseconds
	defaultRetries = 7
	rnrForever     = 7
	defaultPKey    = 0xffff
)

func (c *conn) Loop() rdma.Loop        { return c.l }
func (c *conn) QP() rdma.QP            { return c.q }
func (c *conn) Local() netip.AddrPort  { return c.local }
func (c *conn) Remote() netip.AddrPort { return c.remote }
func (c *conn) PKey() uint16           { return c.pkey }

// Disconnect implements rdma.Conn.
func (c *conn) Disconnect() { c.goDown(rdma.EventDisconnected, 0, nil, errLocalLeft, true) }

// Close implements rdma.Conn.
func (c *conn) Close() {
	if c.closed {
		return
	}
	c.closed = true
	c.goDown(rdma.EventDisconnected, 0, nil, errLocalLeft, true)
	c.discard()
}

// discard releases queue pair and rdma_cm_id.
func (c *conn) discard() {
	c.closed, c.phase = true, down
	delete(c.l.ids, c)
	if c.q != nil {
		c.q.Destroy()
	}
	c.id.destroy()
}

// tell reports an event to the user in this turn.
func (c *conn) tell(e rdma.ConnEvent) {
	fn := func() {
		if !c.closed && c.on != nil {
			c.on(c, e)
		}
	}
	if e.Kind == rdma.EventEstablished {
		c.l.later = append(c.l.later, fn)
		return
	}
	// What has completed before is told before.
	if !c.q.dead {
		for _, q := range []*cq{c.q.recv, c.q.send} {
			if !q.manual {
				q.fetch()
			}
		}
	}
	c.l.after = append(c.l.after, fn)
}

// failed is called when the queue pair is in ERR.
func (c *conn) failed(why error) {
	c.goDown(rdma.EventDisconnected, 0, nil, fmt.Errorf("the connection to %v failed: %w", c.remote, why), true)
}

// goDown ends the connection: the queue pair's requests are flushed, the user is told, and the peer
// too if it does not know.
func (c *conn) goDown(kind rdma.ConnEventKind, reason uint16, private []byte, why error, tellPeer bool) {
	if c.phase == down {
		return
	}
	if why == errLocalLeft && c.l.dev.leaving() {
		why = cmp.Or(c.l.dev.lost(), rdma.ErrRemoved) // which is what its user reacts to
	}
	was := c.phase
	c.phase = down
	seen := c.q.saw() // before it is flushed
	if was == established {
		c.l.n.disconnected.Add(1)
	}
	if !c.q.dead {
		if tellPeer && was != requested {
			C.rs_disconnect(c.id.id)
		}
		if !c.l.dev.iwarp || was == requested || !tellPeer {
			attr := C.struct_ibv_qp_attr{qp_state: C.IBV_QPS_ERR}
			C.rs_modify_qp(c.q.qp, &attr, C.IBV_QP_STATE)
		}
		c.q.inError()
	}
	c.tell(rdma.ConnEvent{Kind: kind, Reason: reason, PrivateData: private, Err: why})
	c.mourn(kind, reason, why, was, &seen)
}

// traffic is called when something arrived on a passive connection whose peer has not said that it is
// established: that says it too (IBTA 12.9.6).
func (c *conn) traffic() {
	c.heard = true
	if c.phase == accepted {
		C.rs_notify(c.id.id, C.IBV_EVENT_COMM_EST)
		c.up(nil)
	}
}

// up says that the connection is established.
func (c *conn) up(private []byte) {
	if c.phase == established || c.phase == down {
		return
	}
	if c.phase = established; c.active {
		c.l.n.dialed.Add(1)
	} else {
		c.l.n.accepted.Add(1)
	}
	c.q.state = rdma.StateRTS
	e := rdma.ConnEvent{
		Kind: rdma.EventEstablished, PrivateData: private,
		ResponderResources: c.params.ResponderResources, InitiatorDepth: c.params.InitiatorDepth, PathMTU: c.mtu,
	}
	var attr C.struct_ibv_qp_attr
	if !c.l.dev.iwarp && C.rs_query_qp(c.q.qp, &attr, C.IBV_QP_MAX_QP_RD_ATOMIC|C.IBV_QP_MAX_DEST_RD_ATOMIC|C.IBV_QP_PATH_MTU|C.IBV_QP_DEST_QPN|C.IBV_QP_TIMEOUT) == 0 {
		c.peerQPN, c.ackTimeout = uint32(attr.dest_qp_num), uint8(attr.timeout)
		// Devices round up.
		e.ResponderResources = min(e.ResponderResources, uint8(attr.max_dest_rd_atomic))
		e.InitiatorDepth = min(e.InitiatorDepth, uint8(attr.max_rd_atomic))
		if m := rdma.MTUFromCode(uint8(attr.path_mtu)); m != 0 {
			e.PathMTU = m
		}
	}
	c.tell(e)
	if !c.active && c.l.dev.siw {
		c.l.After(lull, c.overlooked)
	}
}

// rnrTimer is the code of the time that our RNR NAKs ask for, 0.64 ms. The connection manager leaves 0, which
// stands for 655 ms (IBTA table 45).
const rnrTimer = 12

// ackTimeout is the code of the ACK timeout of connections that peers ask for, 2.1 s. The connection manager would take
// what the REQ names. That may be 0, no timeout, and a peer that has vanished would never be found dead.
const ackTimeout = 19

// hurry has the peer wait for less when it finds no receive.
func (c *conn) hurry() {
	if !c.l.dev.iwarp {
		attr := C.struct_ibv_qp_attr{min_rnr_timer: rnrTimer}
		C.rs_modify_qp(c.q.qp, &attr, C.IBV_QP_MIN_RNR_TIMER) // one that keeps its own value is slower, no more
	}
}

// event handles an event of the connection manager.
func (c *conn) event(e *C.struct_rs_event) {
	status := int(e.status)
	if c.phase != down {
		c.eventful, c.lastEvent, c.lastStatus = true, int(e._type), status
	}
	switch e._type {
	case C.RDMA_CM_EVENT_ADDR_RESOLVED:
		if c.phase != requested {
			return
		}
		if x := C.rs_resolve_route(c.id.id, resolveTimeout); x != 0 {
			c.unreachable("the route cannot be resolved", errno(x))
		}
	case C.RDMA_CM_EVENT_ROUTE_RESOLVED:
		if c.phase == requested {
			c.connect()
		}
	case C.RDMA_CM_EVENT_ADDR_ERROR:
		c.unreachable("the address cannot be resolved", statusError(status))
	case C.RDMA_CM_EVENT_ROUTE_ERROR:
		c.unreachable("there is no route", statusError(status))
	case C.RDMA_CM_EVENT_CONNECT_ERROR:
		c.unreachable("the connection cannot be made", statusError(status))
	case C.RDMA_CM_EVENT_UNREACHABLE:
		c.unreachable("no answer", statusError(status))
	case C.RDMA_CM_EVENT_REJECTED:
		reason := rejectReason(status, int(e.private_len))
		why := fmt.Errorf("%v rejects the connection: %s", c.remote, reasonText(reason))
		if status < 0 {
			why = fmt.Errorf("%w (%w)", why, statusError(status))
		}
		c.goDown(rdma.EventRejected, reason, privateData(e), why, false)
	case C.RDMA_CM_EVENT_ESTABLISHED:
		c.settle(e)
		if c.phase == requested {
			c.hurry()
		}
		c.up(privateData(e))
	case C.RDMA_CM_EVENT_DISCONNECTED:
		c.goDown(rdma.EventDisconnected, 0, nil, errPeerLeft, true)
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		c.goDown(rdma.EventDisconnected, 0, nil, rdma.ErrRemoved, false)
		c.l.dev.taken()
	case C.RDMA_CM_EVENT_ADDR_CHANGE:
		c.goDown(rdma.EventDisconnected, 0, nil, rdma.ErrAddrChanged, true)
		c.l.dev.moved()
	}
}

// settle takes what the peer has answered.
func (c *conn) settle(e *C.struct_rs_event) {
	if c.phase != requested {
		return
	}
	r := c.id.route()
	c.local = address(&r.local)
	if r.pkey != 0 {
		c.pkey = uint16(r.pkey)
	}
	if n := uint8(e.responder_resources); n > 0 || !c.l.dev.iwarp {
		c.params.ResponderResources = min(c.params.ResponderResources, n)
	}
	if n := uint8(e.initiator_depth); n > 0 || !c.l.dev.iwarp {
		c.params.InitiatorDepth = min(c.params.InitiatorDepth, n)
	}
}

func (c *conn) unreachable(what string, err error) {
	c.goDown(rdma.EventUnreachable, 0, nil, fmt.Errorf("%v cannot be reached over RDMA from %v: %s: %w", c.remote, c.l.dev.addr, what, err), false)
}

// statusError is the error that a status of the connection manager stands for.
func statusError(status int) error {
	if status < 0 {
		return syscall.Errno(-status)
	}
	return fmt.Errorf("status %d", status)
}

// Reasons of a REJ (IBTA 12.6.7.2).
const (
	rejNoResources = 3
	rejService     = 8
	rejConsumer    = 28
)

// rejectReason is the reason of a REJ. Over iWARP there are none: a user's refusal may have private data.
func rejectReason(status, private int) uint16 {
	switch {
	case status > 0:
		return uint16(status)
	case private > 0:
		return rejConsumer
	}
	return rejService
}

func reasonText(n uint16) string {
	switch n {
	case rejNoResources:
		return "it is out of resources"
	case rejService:
		return "nothing listens there"
	case rejConsumer:
		return "the program there refuses"
	case 17, 18, 19, 20, 21:
		return fmt.Sprintf("it does not take a parameter (IBTA reason %d)", n)
	case 26:
		return "it does not take the path MTU"
	}
	return fmt.Sprintf("IBTA reason %d", n)
}

func privateData(e *C.struct_rs_event) []byte {
	return slices.Clone((*[256]byte)(unsafe.Pointer(&e.private_data))[:e.private_len])
}

// newConn makes a connection with the queue pair for an rdma_cm_id.
func (l *loop) newConn(i *ident, qc rdma.QPConfig) (*conn, error) {
	if qc.Type != rdma.RC {
		return nil, fmt.Errorf("%w: a connection with a queue pair of type %v", rdma.ErrInvalidWR, qc.Type)
	}
	c := &conn{l: l, id: i, pkey: defaultPKey, mtu: l.dev.mtu}
	var err error
	if c.q, err = l.newQP(qc, i.id); err != nil {
		return nil, err
	}
	c.q.conn = c
	i.on = c.event
	l.ids[c] = struct{}{}
	return c, nil
}

// bounded is what of the parameters the device can.
func (d *Device) bounded(p rdma.ConnParams) rdma.ConnParams {
	if most := uint8(d.limits.RdAtomic); most > 0 {
		p.ResponderResources, p.InitiatorDepth = min(p.ResponderResources, most), min(p.InitiatorDepth, most)
	}
	if p.RetryCount == 0 {
		p.RetryCount = defaultRetries
	}
	if p.RNRRetryCount == 0 {
		p.RNRRetryCount = rnrForever
	}
	return p
}

// param is what the connection manager takes; the private data has to stay where it is meanwhile.
func param(p *rdma.ConnParams) (out C.struct_rs_param) {
	if n := len(p.PrivateData); n > 0 {
		out.private_data, out.private_len = C.CBytes(p.PrivateData), C.uint8_t(n)
	}
	out.responder_resources, out.initiator_depth = C.uint8_t(p.ResponderResources), C.uint8_t(p.InitiatorDepth)
	out.retry_count, out.rnr_retry_count = C.uint8_t(p.RetryCount), C.uint8_t(p.RNRRetryCount)
	return out
}

// Dial implements rdma.Device.
func (d *Device) Dial(lp rdma.Loop, p rdma.DialParams) (rdma.Conn, error) {
	l, err := d.loopOf(lp)
	if err != nil {
		return nil, err
	}
	if why := d.lost(); why != nil {
		return nil, why
	}
	if !p.Remote.Addr().IsValid() || p.Remote.Addr().Unmap().Is4() != d.addr.Is4() {
		return nil, fmt.Errorf("%w: %v cannot be reached from %v", rdma.ErrInvalidWR, p.Remote, d.addr)
	}
	if len(p.Params.PrivateData) > privateREQ {
		return nil, fmt.Errorf("%w: %d bytes of private data; a REQ carries %d", rdma.ErrInvalidWR, len(p.Params.PrivateData), privateREQ)
	}
	if p.PKey != 0 && p.PKey&0x7fff != defaultPKey&0x7fff {
		return nil, fmt.Errorf("%w: partition %#04x; the interface that the address is on decides it", rdma.ErrUnsupported, p.PKey)
	}
	if p.DSCP > rdma.DSCPMax {
		return nil, fmt.Errorf("%w: a DSCP is at most %d, not %d", rdma.ErrInvalidWR, rdma.DSCPMax, p.DSCP)
	}
	i, err := l.newIdent(C.RDMA_PS_TCP, 0, nil)
	if err != nil {
		return nil, fmt.Errorf("%v cannot be connected from: %w", d.addr, err)
	}
	if p.DSCP != 0 {
		if e := C.rs_set_tos(i.id, C.uint8_t(p.DSCP<<2)); e != 0 {
			i.destroy()
			return nil, fmt.Errorf("the DSCP of a connection from %v cannot be set: %w", d.addr, errno(e))
		}
	}
	c, err := l.newConn(i, p.QP)
	if err != nil {
		i.destroy()
		return nil, err
	}
	r := i.route()
	c.on, c.remote, c.local, c.phase = p.On, p.Remote, address(&r.local), requested
	c.active = true
	c.params = d.bounded(p.Params)
	c.params.PrivateData = slices.Clone(p.Params.PrivateData)
	if p.Prepare != nil {
		if err := p.Prepare(c); err != nil {
			c.discard()
			return nil, err
		}
	}
	sa := sockaddr(p.Remote)
	if e := C.rs_resolve_addr(i.id, unsafe.Pointer(&sa), resolveTimeout); e != 0 {
		c.unreachable("the address cannot be resolved", errno(e))
	}
	return c, nil
}

// connect sends the request.
func (c *conn) connect() {
	p := param(&c.params)
	defer C.free(unsafe.Pointer(p.private_data))
	switch e := C.rs_connect(c.id.id, &p); e {
	case 0:
	case C.int(syscall.ECONNREFUSED): // siw has connected by TCP already
		c.goDown(rdma.EventRejected, rejService, nil, fmt.Errorf("%v rejects the connection: %s", c.remote, reasonText(rejService)), false)
	default:
		c.unreachable("the request cannot be sent", errno(e))
	}
}

// listener answers on a port. It implements rdma.Listener.
type listener struct {
	d    *Device
	id   *ident
	addr netip.AddrPort
	once sync.Once
}

// backlog is how many requests the kernel keeps that were not looked at.
const backlog = 1024

// Listen implements rdma.Device. Port 0 means any free port.
func (d *Device) Listen(port uint16, accept func(rdma.ConnRequest)) (rdma.Listener, error) {
	return d.listen(C.RDMA_PS_TCP, port, func(l *loop, e *C.struct_rs_event) {
		r := &request{l: d.home()}
		r.fill(e)
		r.l.welcome(l, e.id, r.event, func(i *ident) {
			r.id = i
			accept(r)
		})
	})
}

// home is the loop of the next incoming request.
func (d *Device) home() *loop { return d.loops[d.next.Add(1)%uint32(len(d.loops))] }

// welcome takes the rdma_cm_id of a request over from the loop that has read it. What cannot be taken is refused.
func (l *loop) welcome(from *loop, id *C.struct_rdma_cm_id, on func(*C.struct_rs_event), then func(*ident)) {
	take := func() {
		i := l.adopt(id, on)
		l.misc[i] = struct{}{}
		then(i)
	}
	switch {
	case l == from:
		take()
	case C.rs_migrate(id, l.cm) != 0 || !l.Submit(take):
		C.rs_destroy_id(id)
	}
}

// listen opens a port. Requests are handed over on the first loop.
func (d *Device) listen(ps C.int, port uint16, accept func(*loop, *C.struct_rs_event)) (rdma.Listener, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, rdma.ErrClosed
	}
	first := d.loops[0]
	s := &listener{d: d}
	i, err := first.newIdent(ps, port, func(e *C.struct_rs_event) {
		switch e._type {
		case C.RDMA_CM_EVENT_CONNECT_REQUEST:
			accept(first, e)
		case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
			d.taken()
		case C.RDMA_CM_EVENT_ADDR_CHANGE:
			d.moved()
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
	r := i.route()
	s.id, s.addr = i, address(&r.local)
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

// free closes the port. An event that is being read is waited for.
func (s *listener) free() {
	cookies.remove(s.id.cookie)
	C.rs_destroy_id(s.id.id)
}

// request is an incoming REQ. It implements rdma.ConnRequest.
type request struct {
	l         *loop
	id        *ident
	local     netip.AddrPort
	remote    netip.AddrPort
	private   []byte
	resources uint8
	depth     uint8
	mtu       rdma.MTU
	pkey      uint16
	answered  bool

	// For a post-mortem.
	note                func() rdma.Note
	qpn                 uint32
	retries, rnrRetries uint8
}

var _ rdma.ConnRequest = (*request)(nil)

// fill takes what the event says.
func (r *request) fill(e *C.struct_rs_event) {
	var x C.struct_rs_route
	C.rs_route(e.id, &x)
	r.local, r.remote = address(&x.local), address(&x.remote)
	r.private = privateData(e)
	// The event says what we are asked for: the peer's initiator depth is what we would serve.
	r.resources, r.depth = uint8(e.initiator_depth), uint8(e.responder_resources)
	r.qpn, r.retries, r.rnrRetries = uint32(e.qpn), uint8(e.retry_count), uint8(e.rnr_retry_count)
	r.mtu, r.pkey = rdma.MTUFromCode(uint8(x.mtu)), uint16(x.pkey)
	if r.mtu == 0 {
		r.mtu = r.l.dev.mtu
	}
	if r.pkey == 0 {
		r.pkey = defaultPKey
	}
}

// event is what happens before the request is answered.
func (r *request) event(e *C.struct_rs_event) {
	switch e._type {
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		r.l.dev.taken()
	case C.RDMA_CM_EVENT_ADDR_CHANGE:
		r.l.dev.moved()
	}
}

func (r *request) Loop() rdma.Loop           { return r.l }
func (r *request) Local() netip.AddrPort     { return r.local }
func (r *request) Remote() netip.AddrPort    { return r.remote }
func (r *request) PrivateData() []byte       { return r.private }
func (r *request) ResponderResources() uint8 { return r.resources }
func (r *request) InitiatorDepth() uint8     { return r.depth }
func (r *request) PathMTU() rdma.MTU         { return r.mtu }
func (r *request) PKey() uint16              { return r.pkey }

// Reject implements rdma.ConnRequest. The connection manager knows one reason, that of its users.
func (r *request) Reject(reason uint16, private []byte) {
	r.reject(reason, private, nil)
}

func (r *request) reject(reason uint16, private []byte, err error) {
	if r.answered {
		return
	}
	r.answered = true
	r.l.n.refused.Add(1)
	data := C.CBytes(private)
	defer C.free(data)
	C.rs_reject(r.id.id, data, C.int(min(len(private), 148)))
	r.id.destroy()
	r.reportFailure(reason, err)
}

// Accept implements rdma.ConnRequest.
func (r *request) Accept(qc rdma.QPConfig, p rdma.ConnParams, prepare func(rdma.Conn) error, on func(rdma.Conn, rdma.ConnEvent)) (rdma.Conn, error) {
	if r.answered || r.id.id == nil {
		return nil, rdma.ErrClosed
	}
	if len(p.PrivateData) > privateREP {
		err := fmt.Errorf("%w: %d bytes of private data; a REP carries %d", rdma.ErrInvalidWR, len(p.PrivateData), privateREP)
		r.reject(rejConsumer, nil, err)
		return nil, err
	}
	c, err := r.l.newConn(r.id, qc)
	if err != nil {
		r.reject(rejNoResources, nil, err)
		return nil, err
	}
	delete(r.l.misc, r.id)
	r.answered = true
	c.on, c.phase, c.local, c.remote, c.mtu, c.pkey = on, accepted, r.local, r.remote, r.mtu, r.pkey
	c.req, c.peerQPN = r.req(), r.qpn
	// What one side can serve bounds what the other starts.
	c.params = r.l.dev.bounded(p)
	c.params.InitiatorDepth = min(c.params.InitiatorDepth, r.resources)
	c.params.ResponderResources = min(c.params.ResponderResources, r.depth)
	if prepare != nil {
		if err := prepare(c); err != nil {
			C.rs_reject(r.id.id, nil, 0)
			c.discard()
			r.reportFailure(rejConsumer, err)
			return nil, err
		}
	}
	if !r.l.dev.iwarp {
		r.id.setAckTimeout(ackTimeout) // kernels before 5.1 take what the REQ names
	}
	x := param(&c.params)
	defer C.free(unsafe.Pointer(x.private_data))
	if e := C.rs_accept(r.id.id, &x); e != 0 {
		c.discard()
		err := fmt.Errorf("answering %v: %w", r.remote, errno(e))
		r.reportFailure(0, err)
		return nil, err
	}
	c.q.state = rdma.StateRTS
	c.hurry()
	return c, nil
}
