//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/connstate"
)

// asyncEvent is an event of a device or of one of its queue pairs.
type asyncEvent struct {
	kind int
	at   rdma.Time
}

// cmEventNames and asyncEventNames are the names in the headers of the libraries, without the
// prefix. Administrators look for these names.
var (
	cmEventNames = map[int]string{
		C.RDMA_CM_EVENT_ADDR_RESOLVED:    "ADDR_RESOLVED",
		C.RDMA_CM_EVENT_ADDR_ERROR:       "ADDR_ERROR",
		C.RDMA_CM_EVENT_ROUTE_RESOLVED:   "ROUTE_RESOLVED",
		C.RDMA_CM_EVENT_ROUTE_ERROR:      "ROUTE_ERROR",
		C.RDMA_CM_EVENT_CONNECT_REQUEST:  "CONNECT_REQUEST",
		C.RDMA_CM_EVENT_CONNECT_RESPONSE: "CONNECT_RESPONSE",
		C.RDMA_CM_EVENT_CONNECT_ERROR:    "CONNECT_ERROR",
		C.RDMA_CM_EVENT_UNREACHABLE:      "UNREACHABLE",
		C.RDMA_CM_EVENT_REJECTED:         "REJECTED",
		C.RDMA_CM_EVENT_ESTABLISHED:      "ESTABLISHED",
		C.RDMA_CM_EVENT_DISCONNECTED:     "DISCONNECTED",
		C.RDMA_CM_EVENT_DEVICE_REMOVAL:   "DEVICE_REMOVAL",
		C.RDMA_CM_EVENT_ADDR_CHANGE:      "ADDR_CHANGE",
		C.RDMA_CM_EVENT_TIMEWAIT_EXIT:    "TIMEWAIT_EXIT",
	}
	asyncEventNames = map[int]string{
		C.IBV_EVENT_QP_FATAL:            "QP_FATAL",
		C.IBV_EVENT_QP_REQ_ERR:          "QP_REQ_ERR",
		C.IBV_EVENT_QP_ACCESS_ERR:       "QP_ACCESS_ERR",
		C.IBV_EVENT_COMM_EST:            "COMM_EST",
		C.IBV_EVENT_SQ_DRAINED:          "SQ_DRAINED",
		C.IBV_EVENT_PATH_MIG:            "PATH_MIG",
		C.IBV_EVENT_PATH_MIG_ERR:        "PATH_MIG_ERR",
		C.IBV_EVENT_QP_LAST_WQE_REACHED: "QP_LAST_WQE_REACHED",
		C.IBV_EVENT_DEVICE_FATAL:        "DEVICE_FATAL",
		C.IBV_EVENT_PORT_ACTIVE:         "PORT_ACTIVE",
		C.IBV_EVENT_PORT_ERR:            "PORT_ERR",
	}
)

func cmEventName(kind int) string    { return eventName("RDMA_CM_EVENT_", cmEventNames, kind) }
func asyncEventName(kind int) string { return eventName("IBV_EVENT_", asyncEventNames, kind) }

func eventName(prefix string, names map[int]string, kind int) string {
	if s := names[kind]; s != "" {
		return prefix + s
	}
	return fmt.Sprintf("event %d", kind)
}

// record is the REQ for a failure record.
func (r *request) record() *REQ {
	q := r.req
	q.PathMTU, q.Private = r.PathMTU(), r.private
	return &q
}

// recordRefusal records a REQ that was rejected.
func (r *request) recordRefusal(reason uint16, err error) {
	d := r.l.dev
	if d.cfg.OnFailure == nil {
		return
	}
	x := d.newRecord()
	x.Outcome, x.Local, x.Remote, x.Reason, x.Err, x.REQ = rdma.Refused, r.local, r.remote, reason, err, r.record()
	x.Event = cmEventName(C.RDMA_CM_EVENT_CONNECT_REQUEST)
	if r.note != nil {
		x.Note = r.note()
	}
	d.cfg.OnFailure(x)
}

// newRecord is a record with the properties of the device.
func (d *Device) newRecord() Record {
	return Record{Device: d.name, Transport: d.kind, Software: d.quirks.software, PathMTUMax: d.mtu}
}

var errCut = errors.New("the peer ended the connection while requests were under way")

// recordEnd records the end of the connection if it is a failure. The record is made now, because
// the user may destroy the queue pair. It is reported after the event for the user, so that the
// user can add to it. before is what the queue pair had outstanding when the end began.
func (c *conn) recordEnd(kind rdma.ConnEventKind, reason uint16, why error, was connstate.Phase, before *Summary) {
	d, q := c.l.dev, c.q
	if d.cfg.OnFailure == nil {
		return
	}
	r := d.newRecord()
	r.Local, r.Remote, r.Active, r.Reason, r.Err, r.REQ = c.LocalAddr, c.RemoteAddr, c.Active, reason, why, c.req
	r.Established, r.Age, r.Ended = was == connstate.Established, c.l.now-q.since, c.l.now
	r.LocalQPN, r.RemoteQPN, r.PathMTU, r.AckTimeout = q.num, c.peerQPN, c.MTU, c.ackTimeout
	r.ReadsServed, r.ReadsStarted = c.Params.ResponderResources, c.Params.InitiatorDepth
	r.RetryCount, r.RNRRetryCount, r.EventStatus = c.Params.RetryCount, c.Params.RNRRetryCount, c.lastStatus
	if c.eventful {
		r.Event = cmEventName(c.lastEvent)
	}
	a := q.lastAsync
	if p := d.lastAsync.Load(); p != nil && p.at >= max(a.at, q.since) {
		a = *p
	}
	if a.at != 0 {
		r.Async, r.AsyncAt = asyncEventName(a.kind), min(a.at, r.Ended)
	}
	r.Summary, r.Recent = q.summary, q.recent.list()
	r.Summary.Outstanding, r.Summary.Oldest, r.Summary.Receives = before.Outstanding, before.Oldest, before.Receives
	if q.cut == 0 && q.outstanding().Outstanding == 0 {
		// All requests had completed. The loop handles an event of the connection manager before
		// the completions of the same turn.
		r.Summary.Outstanding, r.Summary.Oldest = 0, 0
	}
	if d.iwarp && errors.Is(why, connstate.ErrPeerLeft) && (q.cut > 0 || r.Summary.Outstanding > 0) {
		// A peer that refuses a request terminates the connection, without a reason.
		why, r.Err = errCut, errCut
	}
	c.l.after.Add(func() {
		if r.Outcome, r.Note = c.Outcome(kind, reason, was, why); r.Outcome == "" {
			return
		}
		if r.Outcome == rdma.Dropped {
			r.Err = nil
		}
		d.cfg.OnFailure(r)
	})
}

// outstanding returns the counters of the queue pair, with what is in its queues now. A request
// without a completion counts if a later request has one: otherwise it is unknown whether it has
// completed.
func (q *qp) outstanding() Summary {
	s := q.summary
	n, oldest := 0, rdma.Time(0)
	for i := q.sqHead; i != q.sqTail; i++ {
		x := q.at(i)
		if x.fin || x.over || x.part {
			continue
		}
		if n++; oldest == 0 {
			oldest = x.at
		}
		if q.completes(x) {
			s.Outstanding, s.Oldest = n, oldest
		}
	}
	s.Receives = q.rq.posted()
	return s
}

// completes reports whether the success of a request makes a completion.
func (q *qp) completes(s *sent) bool { return !s.unsignaled || q.l.dev.quirks.disorder }

// recordPosted counts requests for the failure record.
func (q *qp) recordPosted(wrs []rdma.SendWR) {
	for i := range wrs {
		n := uint64(0)
		for k := range wrs[i].SGL {
			n += uint64(len(wrs[i].SGL[k].Buf))
		}
		q.recent.add(Request{At: q.l.now, Op: sendOps[wrs[i].Op].wc, Bytes: n})
		q.summary.PostedBytes += n
	}
	q.summary.Posted += uint64(len(wrs))
}

// recordReceived counts a message.
func (q *qp) recordReceived(wc *rdma.WC) {
	q.summary.Received++
	q.summary.ReceivedBytes += uint64(wc.ByteLen)
	q.recent.add(Request{At: q.l.now, Did: Received, Op: wc.Op, Bytes: uint64(wc.ByteLen)})
}

// recordError counts a completion with an error.
func (q *qp) recordError(op rdma.WCOp, s rdma.Status, vendor uint32) {
	if s == rdma.WRFlushErr {
		q.summary.Flushed++
		return
	}
	r := Request{At: q.l.now, Did: Failed, Op: op, Status: s, Vendor: vendor}
	if q.summary.Failed.Status == rdma.Success {
		q.summary.Failed = r
		q.summary.Failed.Count = 1
	}
	q.recent.add(r)
}
