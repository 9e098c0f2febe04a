//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// asyncEvent is an event of a device or of one of its queue pairs.
type asyncEvent struct {
	kind int
	at   rdma.Time
}

// cmEvents and asyncEvents are the names of the libraries' headers, which is what people look for.
var cmEvents = map[int]string{
	C.RDMA_CM_EVENT_ADDR_RESOLVED:    "RDMA_CM_EVENT_ADDR_RESOLVED",
	C.RDMA_CM_EVENT_ADDR_ERROR:       "RDMA_CM_EVENT_ADDR_ERROR",
	C.RDMA_CM_EVENT_ROUTE_RESOLVED:   "RDMA_CM_EVENT_ROUTE_RESOLVED",
	C.RDMA_CM_EVENT_ROUTE_ERROR:      "RDMA_CM_EVENT_ROUTE_ERROR",
	C.RDMA_CM_EVENT_CONNECT_REQUEST:  "RDMA_CM_EVENT_CONNECT_REQUEST",
	C.RDMA_CM_EVENT_CONNECT_RESPONSE: "RDMA_CM_EVENT_CONNECT_RESPONSE",
	C.RDMA_CM_EVENT_CONNECT_ERROR:    "RDMA_CM_EVENT_CONNECT_ERROR",
	C.RDMA_CM_EVENT_UNREACHABLE:      "RDMA_CM_EVENT_UNREACHABLE",
	C.RDMA_CM_EVENT_REJECTED:         "RDMA_CM_EVENT_REJECTED",
	C.RDMA_CM_EVENT_ESTABLISHED:      "RDMA_CM_EVENT_ESTABLISHED",
	C.RDMA_CM_EVENT_DISCONNECTED:     "RDMA_CM_EVENT_DISCONNECTED",
	C.RDMA_CM_EVENT_DEVICE_REMOVAL:   "RDMA_CM_EVENT_DEVICE_REMOVAL",
	C.RDMA_CM_EVENT_ADDR_CHANGE:      "RDMA_CM_EVENT_ADDR_CHANGE",
	C.RDMA_CM_EVENT_TIMEWAIT_EXIT:    "RDMA_CM_EVENT_TIMEWAIT_EXIT",
}

var asyncEvents = map[int]string{
	C.IBV_EVENT_QP_FATAL:            "IBV_EVENT_QP_FATAL",
	C.IBV_EVENT_QP_REQ_ERR:          "IBV_EVENT_QP_REQ_ERR",
	C.IBV_EVENT_QP_ACCESS_ERR:       "IBV_EVENT_QP_ACCESS_ERR",
	C.IBV_EVENT_COMM_EST:            "IBV_EVENT_COMM_EST",
	C.IBV_EVENT_SQ_DRAINED:          "IBV_EVENT_SQ_DRAINED",
	C.IBV_EVENT_PATH_MIG:            "IBV_EVENT_PATH_MIG",
	C.IBV_EVENT_PATH_MIG_ERR:        "IBV_EVENT_PATH_MIG_ERR",
	C.IBV_EVENT_QP_LAST_WQE_REACHED: "IBV_EVENT_QP_LAST_WQE_REACHED",
	C.IBV_EVENT_DEVICE_FATAL:        "IBV_EVENT_DEVICE_FATAL",
	C.IBV_EVENT_PORT_ACTIVE:         "IBV_EVENT_PORT_ACTIVE",
	C.IBV_EVENT_PORT_ERR:            "IBV_EVENT_PORT_ERR",
}

func eventName(names map[int]string, kind int) string {
	if s := names[kind]; s != "" {
		return s
	}
	return fmt.Sprintf("event %d", kind)
}

var (
	_ rdma.Annotated = (*conn)(nil)
	_ rdma.Annotated = (*request)(nil)
)

// Annotate implements rdma.Annotated.
func (c *conn) Annotate(note func() rdma.Note) { c.note = note }

// Annotate implements rdma.Annotated.
func (r *request) Annotate(note func() rdma.Note) { r.note = note }

// reportFailure reports a request that was refused.
func (r *request) reportFailure(reason uint16, err error) {
	d := r.l.dev
	if d.cfg.OnFailure == nil {
		return
	}
	x := Record{
		Outcome: rdma.Refused, Device: d.name, Transport: d.kind, Software: d.software, Local: r.local, Remote: r.remote, Reason: reason, Err: err, REQ: r.req(),
		Event: eventName(cmEvents, C.RDMA_CM_EVENT_CONNECT_REQUEST), PathMTUMax: d.mtu,
	}
	if r.note != nil {
		x.Note = r.note()
	}
	d.cfg.OnFailure(x)
}

func (r *request) req() *REQ {
	return &REQ{
		QPN: r.qpn, PathMTU: r.mtu, ResponderResources: r.depth, InitiatorDepth: r.resources,
		RetryCount: r.retries, RNRRetryCount: r.rnrRetries, Private: r.private,
	}
}

var errCut = errors.New("the peer ended the connection while requests were under way")

// ordinary ends are those that nobody has to look into.
func ordinary(why error) bool {
	return why == nil || errors.Is(why, errPeerLeft) || errors.Is(why, errLocalLeft) || errors.Is(why, rdma.ErrClosed)
}

// mourn reports the end of the connection if it was a bad one, after the user was told, who may have
// something to add. What the queue pair knows is taken now, as the user may destroy it.
func (c *conn) mourn(kind rdma.ConnEventKind, reason uint16, why error, was phase, seen *Seen) {
	d := c.l.dev
	if d.cfg.OnFailure == nil {
		return
	}
	r := Record{
		Device: d.name, Transport: d.kind, Software: d.software, Local: c.local, Remote: c.remote, Active: c.active, Reason: reason, Err: why, REQ: c.req,
		EventStatus: c.lastStatus, PathMTUMax: d.mtu,
		Established: was == established, Age: c.l.now - c.q.since, RemoteQPN: c.peerQPN, PathMTU: c.mtu,
		ReadsServed: c.params.ResponderResources, ReadsStarted: c.params.InitiatorDepth,
		AckTimeout: c.ackTimeout, RetryCount: c.params.RetryCount, RNRRetryCount: c.params.RNRRetryCount, Ended: c.l.now,
	}
	if c.eventful {
		r.Event = eventName(cmEvents, c.lastEvent)
	}
	a := c.q.lastAsync
	if p := d.lastAsync.Load(); p != nil && p.at >= max(a.at, c.q.since) {
		a = *p
	}
	if a.at != 0 {
		r.Async, r.AsyncAt = eventName(asyncEvents, a.kind), min(a.at, r.Ended)
	}
	r.LocalQPN = c.q.num
	r.Seen, r.Recent = c.q.seen, c.q.recent.list()
	r.Seen.Outstanding, r.Seen.Oldest, r.Seen.Receives = seen.Outstanding, seen.Oldest, seen.Receives
	if c.q.cut == 0 && c.q.saw().Outstanding == 0 {
		// All had completed, which the loop hears after what the connection manager says in the same turn.
		r.Seen.Outstanding, r.Seen.Oldest = 0, 0
	}
	if s := r.Seen.Failed.Status; s != rdma.Success && ordinary(why) {
		why = fmt.Errorf("RDMA request failed: %v", s) // of which its user heard first, by a completion
		r.Err = why
	}
	if d.iwarp && errors.Is(why, errPeerLeft) && (c.q.cut > 0 || r.Seen.Outstanding > 0) {
		// A peer that refuses a request terminates the connection, and that is all that is heard of it.
		why = errCut
		r.Err = why
	}
	c.l.after = append(c.l.after, func() { c.reportFailure(&r, kind, why, was) })
}

// reportFailure finds out whether it was a bad end.
func (c *conn) reportFailure(r *Record, kind rdma.ConnEventKind, why error, was phase) {
	var note rdma.Note
	if c.note != nil {
		note = c.note()
	}
	switch {
	case kind == rdma.EventRejected:
		r.Outcome = rdma.Rejected
	case kind == rdma.EventUnreachable && was == accepted:
		r.Outcome = rdma.Unconfirmed
	case kind == rdma.EventUnreachable:
		r.Outcome = rdma.Unreachable
	case !ordinary(why):
		r.Outcome = rdma.Broken
	case note.Why == "":
		return
	default:
		r.Outcome, r.Err = rdma.Dropped, nil
	}
	r.Note = note
	c.l.dev.cfg.OnFailure(*r)
}

// saw is what the queue pair has kept, with what is under way.
func (q *qp) saw() Seen {
	s := q.seen
	for i, n, oldest := q.sqHead, 0, rdma.Time(0); i != q.sqTail; i++ {
		x := &q.sq[i%uint32(len(q.sq))]
		if x.fin || x.over || x.part {
			continue
		}
		if n++; oldest == 0 {
			oldest = x.at
		}
		if q.says(x) {
			s.Outstanding, s.Oldest = n, oldest
		}
	}
	s.Receives = len(q.rq.ids) - len(q.rq.free)
	return s
}

// says reports whether success of the request makes a completion: of one that has none, and after which there is none, nobody
// knows whether it is under way.
func (q *qp) says(s *sent) bool { return !s.silent || q.l.dev.disorder() }

// failing keeps a completion with an error.
func (q *qp) failing(op rdma.WCOp, s rdma.Status, vendor uint32) {
	if s == rdma.WRFlushErr {
		q.seen.Flushed++
		return
	}
	r := Request{At: q.l.now, Did: Failed, Op: op, Status: s, Vendor: vendor}
	if q.seen.Failed.Status == rdma.Success {
		q.seen.Failed = r
		q.seen.Failed.Count = 1
	}
	q.recent.add(r)
}
