//go:build rdmacore && linux && cgo

package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/connstate"
)

// conn is a connection. It implements rdma.Conn.
type conn struct {
	connstate.Conn
	l        *loop
	id       *cmID
	q        *qp
	pkey     uint16
	received bool // a message has arrived

	// For the failure record.
	req        *REQ // of the peer
	peerQPN    uint32
	ackTimeout uint8
	eventful   bool // the connection manager has reported an event: the last one, with its status
	lastEvent  int
	lastStatus int
}

var (
	_ rdma.Conn      = (*conn)(nil)
	_ rdma.Annotated = (*conn)(nil)
)

// Room for private data in the messages (IBTA 12.6), less what RDMA-CM uses in a REQ.
const (
	privateREQ = 56
	privateREP = 196
	privateREJ = 148
)

// Reasons of a REJ (IBTA 12.6.7.2).
const (
	rejNoResources = 3
	rejService     = 8
	rejConsumer    = 28
)

const (
	// rnrTimer is the code of the time that our RNR NAKs ask for, 0.64 ms. The connection manager
	// sets 0, which stands for 655 ms (IBTA table 45).
	rnrTimer = 12
	// ackTimeout is the code of the ACK timeout of connections that peers ask for, 2.1 s. The
	// connection manager would take the code of the REQ. That may be 0, no timeout: a peer that has
	// vanished would never be detected.
	ackTimeout = 19
)

func (c *conn) Loop() rdma.Loop { return c.l }
func (c *conn) QP() rdma.QP     { return c.q }
func (c *conn) PKey() uint16    { return c.pkey }

// Disconnect implements rdma.Conn.
func (c *conn) Disconnect() { c.goDown(rdma.EventDisconnected, 0, nil, connstate.ErrLocalLeft, true) }

// Close implements rdma.Conn.
func (c *conn) Close() {
	if c.Closed {
		return
	}
	c.Closed = true
	c.Disconnect()
	c.discard()
}

// discard destroys queue pair and rdma_cm_id, without an event for the user.
func (c *conn) discard() {
	c.Closed, c.Phase = true, connstate.Down
	delete(c.l.conns, c)
	c.q.Destroy()
	c.id.destroy()
}

// newConn makes a connection, in phase Requested, with a queue pair for an rdma_cm_id.
func (l *loop) newConn(i *cmID, qc rdma.QPConfig) (*conn, error) {
	if qc.Type != rdma.RC {
		return nil, fmt.Errorf("%w: queue pairs of type %v cannot be connected", rdma.ErrInvalidWR, qc.Type)
	}
	q, err := l.newQP(qc, i.id)
	if err != nil {
		return nil, err
	}
	c := &conn{l: l, id: i, q: q, pkey: defaultPKey}
	c.MTU = l.dev.mtu
	q.conn, i.on = c, c.event
	l.conns[c] = struct{}{}
	return c, nil
}

// Dial implements rdma.Device.
func (d *Device) Dial(lp rdma.Loop, p rdma.DialParams) (rdma.Conn, error) {
	l, err := d.loopOf(lp)
	if err == nil {
		err = cmp.Or(d.lost(), connstate.CheckDial(d.addr, &p, privateREQ), checkPartition(p.PKey, rdma.ErrUnsupported))
	}
	if err != nil {
		return nil, err
	}
	i, err := l.newCMID(C.RDMA_PS_TCP, 0, nil)
	if err != nil {
		return nil, fmt.Errorf("no connection can be made from %v: %w", d.addr, err)
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
	c.On, c.Active, c.RemoteAddr, c.LocalAddr = p.On, true, p.Remote, routeOf(i.id).local
	c.Params = connstate.Bound(p.Params, uint8(d.limits.RdAtomic))
	c.Params.PrivateData = slices.Clone(p.Params.PrivateData)
	if p.Prepare != nil {
		if err := p.Prepare(c); err != nil {
			c.discard()
			return nil, err
		}
	}
	// A failure is reported as an event, as a failure later would be.
	i.resolve(p.Remote, c.unreachable)
	return c, nil
}

// connect sends the REQ.
func (c *conn) connect() {
	p := param(&c.Params)
	defer C.free(unsafe.Pointer(p.private_data))
	switch e := C.rs_connect(c.id.id, &p); e {
	case 0:
	case C.int(syscall.ECONNREFUSED): // siw connects by TCP in this call
		c.rejected(rejService, nil, nil)
	default:
		c.unreachable("the request cannot be sent", errno(e))
	}
}

// event handles an event of the connection manager. The usual sequences:
//
//	active    ADDR_RESOLVED, ROUTE_RESOLVED, then ESTABLISHED, REJECTED or UNREACHABLE
//	passive   CONNECT_REQUEST (to the listener), then ESTABLISHED or UNREACHABLE
//	both      DISCONNECTED when the peer disconnects, or answers our DREQ
//
// Any event may come after the end of the connection, as the channel was read before it: the phase
// Down ignores them.
func (c *conn) event(e *C.struct_rs_event) {
	if c.Phase != connstate.Down {
		c.eventful, c.lastEvent, c.lastStatus = true, int(e._type), int(e.status)
	}
	if c.Phase == connstate.Requested {
		c.id.next(e, c.connect, c.unreachable)
	}
	status := int(e.status)
	switch e._type {
	case C.RDMA_CM_EVENT_CONNECT_ERROR:
		c.unreachable("the connection cannot be made", statusError(status))
	case C.RDMA_CM_EVENT_UNREACHABLE:
		c.unreachable("no answer", statusError(status))
	case C.RDMA_CM_EVENT_REJECTED:
		var err error
		if status < 0 {
			err = statusError(status)
		}
		c.rejected(rejectReason(status, int(e.private_len)), privateData(e), err)
	case C.RDMA_CM_EVENT_ESTABLISHED:
		if c.Phase == connstate.Requested {
			c.replied(e)
			c.setRNRTimer()
		}
		c.up(privateData(e))
	case C.RDMA_CM_EVENT_DISCONNECTED:
		c.goDown(rdma.EventDisconnected, 0, nil, connstate.ErrPeerLeft, true)
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		c.goDown(rdma.EventDisconnected, 0, nil, rdma.ErrRemoved, false)
	case C.RDMA_CM_EVENT_ADDR_CHANGE:
		c.goDown(rdma.EventDisconnected, 0, nil, rdma.ErrAddrChanged, true)
	}
	_ = c.l.dev.deviceEvent(e)
}

// replied takes the values of the peer's answer. Over iWARP, depths of 0 mean that the peer named
// none.
func (c *conn) replied(e *C.struct_rs_event) {
	r := routeOf(c.id.id)
	c.LocalAddr, c.pkey = r.local, r.pkey
	bound := func(mine *uint8, its C.uint8_t) {
		if its > 0 || !c.l.dev.iwarp {
			*mine = min(*mine, uint8(its))
		}
	}
	bound(&c.Params.ResponderResources, e.responder_resources)
	bound(&c.Params.InitiatorDepth, e.initiator_depth)
}

// setRNRTimer makes the peer wait for rnrTimer when it finds no receive. A device that keeps its
// own value is slower, no more.
func (c *conn) setRNRTimer() {
	if !c.l.dev.iwarp {
		attr := C.struct_ibv_qp_attr{min_rnr_timer: rnrTimer}
		C.rs_modify_qp(c.q.qp, &attr, C.IBV_QP_MIN_RNR_TIMER)
	}
}

// traffic is called when a message has arrived. If the peer's RTU has not, the message stands for
// it (IBTA 12.9.6).
func (c *conn) traffic() {
	c.received = true
	if c.Phase == connstate.Accepted {
		C.rs_notify(c.id.id, C.IBV_EVENT_COMM_EST)
		c.up(nil)
	}
}

// up makes the connection established.
func (c *conn) up(private []byte) {
	if !c.Establish() {
		return
	}
	if c.Active {
		c.l.n.dialed.Add(1)
	} else {
		c.l.n.accepted.Add(1)
	}
	c.q.state = rdma.StateRTS
	e := c.EstablishedEvent(private)
	var attr C.struct_ibv_qp_attr
	if !c.l.dev.iwarp && C.rs_query_qp(c.q.qp, &attr, C.IBV_QP_MAX_QP_RD_ATOMIC|C.IBV_QP_MAX_DEST_RD_ATOMIC|
		C.IBV_QP_PATH_MTU|C.IBV_QP_DEST_QPN|C.IBV_QP_TIMEOUT) == 0 {
		c.peerQPN, c.ackTimeout = uint32(attr.dest_qp_num), uint8(attr.timeout)
		// Devices round the depths up, so the negotiated ones count if they are less.
		e.ResponderResources = min(e.ResponderResources, uint8(attr.max_dest_rd_atomic))
		e.InitiatorDepth = min(e.InitiatorDepth, uint8(attr.max_rd_atomic))
		e.PathMTU = cmp.Or(rdma.MTUFromCode(uint8(attr.path_mtu)), e.PathMTU)
	}
	c.tell(e)
	if !c.Active && c.l.dev.quirks.siw {
		c.l.After(siwSilence, c.checkUnread)
	}
}

// tell queues an event for the user, for the callbacks of this turn. Before the event of an end,
// the user gets the completions of the requests that have completed.
func (c *conn) tell(e rdma.ConnEvent) {
	fn := func() { c.Deliver(c, e) }
	if e.Kind == rdma.EventEstablished {
		c.l.later.Add(fn)
		return
	}
	if !c.q.dead {
		for _, q := range []*cq{c.q.recv, c.q.send} {
			if !q.manual {
				q.fetch()
			}
		}
	}
	c.l.after.Add(fn)
}

// failed is called when the queue pair is in ERR.
func (c *conn) failed(why error) {
	c.goDown(rdma.EventDisconnected, 0, nil, fmt.Errorf("the connection to %v failed: %w", c.RemoteAddr, why), true)
}

func (c *conn) unreachable(what string, err error) {
	c.goDown(rdma.EventUnreachable, 0, nil, fmt.Errorf("%v cannot be reached over RDMA from %v: %s: %w", c.RemoteAddr,
		c.l.dev.addr, what, err), false)
}

func (c *conn) rejected(reason uint16, private []byte, err error) {
	why := fmt.Errorf("%v rejects the connection: %s", c.RemoteAddr, reasonText(reason))
	if err != nil {
		why = fmt.Errorf("%w (%w)", why, err)
	}
	c.goDown(rdma.EventRejected, reason, private, why, false)
}

// goDown ends the connection: the requests of the queue pair are flushed, the user gets an event,
// and the peer is disconnected if tellPeer is set.
//
//	cause                                       tellPeer
//	Disconnect and Close of the user            yes
//	the peer disconnects (DISCONNECTED)         yes: rdma_disconnect answers
//	the queue pair is in ERR (failed)           yes: the peer need not use up its retries
//	the address moved to another device         yes
//	the device is removed                       no: nothing can be sent any more
//	rejected, unreachable                       no: there is no connection
func (c *conn) goDown(kind rdma.ConnEventKind, reason uint16, private []byte, why error, tellPeer bool) {
	if c.Phase == connstate.Down {
		return
	}
	if why == connstate.ErrLocalLeft && c.l.dev.leaving() {
		why = cmp.Or(c.l.dev.lost(), rdma.ErrRemoved) // users react to the removal, not to the disconnection
	}
	was := c.Phase
	c.Phase = connstate.Down
	seen := c.q.outstanding() // before it is flushed
	if was == connstate.Established {
		c.l.n.disconnected.Add(1)
	}
	if !c.q.dead {
		// rdma_disconnect ends an iWARP connection in order: what was sent arrives. To move the
		// queue pair to ERR instead would abort the TCP connection.
		if tellPeer && was != connstate.Requested {
			C.rs_disconnect(c.id.id)
		}
		if !c.l.dev.iwarp || was == connstate.Requested || !tellPeer {
			attr := C.struct_ibv_qp_attr{qp_state: C.IBV_QPS_ERR}
			C.rs_modify_qp(c.q.qp, &attr, C.IBV_QP_STATE)
		}
		c.q.inError()
	}
	c.tell(rdma.ConnEvent{Kind: kind, Reason: reason, PrivateData: private, Err: why})
	c.recordEnd(kind, reason, why, was, &seen)
}

// rejectReason is the reason of a REJ. iWARP has no reasons: private data shows that the peer's
// user rejected the request.
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
