package rc

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wq"
)

// PostSend queues requests, all or none. The memory of their SGLs belongs to the QP until the
// completion that covers the request; with Inline it is copied here. In ERR they are flushed.
//
//	flag or kind    the memory of the SGL is the user's again
//	Inline          when PostSend returns
//	SEND, WRITE     when the request has completed: the peer has acknowledged all of it
//	READ, atomic    when the request has completed: the response has arrived
//	unsignaled      when a later request has completed
//
// Until then a retransmission can read it at any time.
func (q *QP) PostSend(now rdma.Time, wrs []rdma.SendWR) error {
	switch q.state {
	case rdma.StateRTS, rdma.StateSQD, rdma.StateErr:
	default:
		return fmt.Errorf("%w: send requests cannot be posted in %v", rdma.ErrBadTransition, q.state)
	}
	if q.sq.Len()+len(wrs) > q.cfg.Caps.MaxSendWR {
		return rdma.ErrQueueFull
	}
	for i := range wrs {
		if err := q.checkSend(&wrs[i]); err != nil {
			return err
		}
	}
	for i := range wrs {
		e := q.sq.Push()
		e.sgl = append(e.sgl[:0], wrs[i].SGL...)
		e.wr = wrs[i]
		e.wr.SGL = nil
		e.length = uint32(wq.Length(e.sgl))
		if e.wr.Flags&rdma.Inline != 0 {
			e.inline = e.inline[:0]
			for _, s := range e.sgl {
				e.inline = append(e.inline, s.Buf...)
			}
			clear(e.sgl)
			e.sgl = append(e.sgl[:0], rdma.SGE{Buf: e.inline})
		}
		e.started, e.got, e.count = false, 0, 0
	}
	if q.state == rdma.StateErr {
		q.flush()
	}
	q.endAckDelay(now)
	return nil
}

// checkSend checks a request against the limits of the QP and MessageMax. The memory of its
// SGL is checked when the request is started, in begin.
func (q *QP) checkSend(w *rdma.SendWR) error {
	if len(w.SGL) > q.cfg.Caps.MaxSendSGE {
		return fmt.Errorf("%w: %d gather elements, the QP takes %d", rdma.ErrInvalidWR, len(w.SGL), q.cfg.Caps.MaxSendSGE)
	}
	n := wq.Length(w.SGL)
	switch w.Op {
	case rdma.OpSend, rdma.OpSendImm, rdma.OpSendInv, rdma.OpWrite, rdma.OpWriteImm, rdma.OpRead:
		if n > MessageMax {
			return fmt.Errorf("%w: a message of %d bytes; the most is 2 GiB", rdma.ErrInvalidWR, n)
		}
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		if n != 8 {
			return fmt.Errorf("%w: an atomic returns 8 bytes, the scatter list has %d", rdma.ErrInvalidWR, n)
		}
		if w.RemoteAddr&7 != 0 {
			return fmt.Errorf("%w: atomic on the unaligned address %#x", rdma.ErrInvalidWR, w.RemoteAddr)
		}
	case rdma.OpLocalInv:
	case rdma.OpBindMW, rdma.OpReg:
		if w.Bind == nil || w.Bind.MR == nil || w.Op == rdma.OpBindMW && w.Bind.MW == nil {
			return fmt.Errorf("%w: nothing to bind", rdma.ErrInvalidWR)
		}
	default:
		return fmt.Errorf("%w: unknown operation %d", rdma.ErrInvalidWR, w.Op)
	}
	if w.Flags&rdma.Inline != 0 && (w.Op > rdma.OpWriteImm || n > uint64(q.cfg.Caps.MaxInline)) {
		return fmt.Errorf("%w: %d bytes inline; the QP takes %d, of SENDs and RDMA WRITEs",
			rdma.ErrInvalidWR, n, q.cfg.Caps.MaxInline)
	}
	reads := w.Op == rdma.OpRead || w.Op == rdma.OpCompareSwap || w.Op == rdma.OpFetchAdd
	if reads && q.attr.MaxRdAtomic == 0 && q.state != rdma.StateErr {
		return fmt.Errorf("%w: the connection was negotiated without READ and atomics", rdma.ErrInvalidWR)
	}
	return nil
}

// PostRecv queues receives, all or none. Their memory belongs to the QP until they complete. In ERR
// they are flushed.
func (q *QP) PostRecv(_ rdma.Time, wrs []rdma.RecvWR) error {
	if q.state == rdma.StateReset {
		return fmt.Errorf("%w: receives cannot be posted in RESET", rdma.ErrBadTransition)
	}
	if q.cfg.SRQ != nil {
		return fmt.Errorf("%w: the QP takes its receives from a shared receive queue", rdma.ErrInvalidWR)
	}
	taken := 0
	if q.resp.inRecv {
		taken = 1
	}
	if err := q.rq.Post(wrs, taken); err != nil {
		return err
	}
	if q.state == rdma.StateErr {
		q.flush()
	}
	return nil
}

// Drained reports whether the QP is in SQD and all started requests have completed (IBTA 10.3.1).
func (q *QP) Drained() bool {
	return q.state == rdma.StateSQD && (q.sq.Len() == 0 || !q.sq.Front().started)
}

// PollSend moves completions of send requests into dst, oldest first.
func (q *QP) PollSend(dst []rdma.WC) int { return q.send.Drain(dst) }

// PollRecv moves completions of receives into dst, oldest first.
func (q *QP) PollRecv(dst []rdma.WC) int { return q.recv.Drain(dst) }

// Pending reports whether there are completions to poll.
func (q *QP) Pending() (send, recv bool) { return q.send.Len() > 0, q.recv.Len() > 0 }

// Outstanding is the number of send requests and receives that are posted and
// not completed.
func (q *QP) Outstanding() (send, recv int) {
	recv = q.rq.Len()
	if q.resp.inRecv {
		recv++
	}
	return q.sq.Len(), recv
}

// flush completes all posted requests and receives with WRFlushErr, in order (IBTA 10.3.1).
// Receives of an SRQ stay there for other QPs, except the one in progress.
func (q *QP) flush() {
	for q.sq.Len() > 0 {
		q.completeSend(rdma.WRFlushErr)
	}
	q.req.reset()
	q.cnp.due = false
	flushed := rdma.WC{Status: rdma.WRFlushErr, Op: rdma.WCRecv}
	if q.resp.inRecv {
		q.completeRecv(flushed)
	}
	for q.rq.Len() > 0 {
		q.takeRecv()
		q.completeRecv(flushed)
	}
}

// completeSend completes the oldest send request. An unsignaled request that succeeds has no
// completion of its own: a later one covers it. Its memory is the user's again.
func (q *QP) completeSend(s rdma.Status) {
	e := q.sq.Front()
	if s != rdma.Success || e.wr.Flags&rdma.Signaled != 0 {
		wc := q.send.Push()
		*wc = rdma.WC{ID: e.wr.ID, QPN: q.cfg.Num, Status: s, Op: wcOps[e.wr.Op]}
		if e.reads() && s == rdma.Success {
			wc.ByteLen = e.length
		}
	}
	clear(e.sgl)
	e.wr.Bind, e.wr.Volatile = nil, nil
	q.sq.Pop()
}

var wcOps = [...]rdma.WCOp{
	rdma.OpSend: rdma.WCSend, rdma.OpSendImm: rdma.WCSend, rdma.OpSendInv: rdma.WCSend,
	rdma.OpWrite: rdma.WCWrite, rdma.OpWriteImm: rdma.WCWrite, rdma.OpRead: rdma.WCRead,
	rdma.OpCompareSwap: rdma.WCCompareSwap, rdma.OpFetchAdd: rdma.WCFetchAdd, rdma.OpLocalInv: rdma.WCLocalInv,
	rdma.OpBindMW: rdma.WCBindMW, rdma.OpReg: rdma.WCReg,
}

// gather lists n bytes of sgl from byte off, by reference, in the scratch list.
func (q *QP) gather(sgl []rdma.SGE, off uint32, n int) [][]byte {
	parts := q.parts[:0]
	at := int(off)
	for _, s := range sgl {
		if n == 0 {
			break
		}
		if at >= len(s.Buf) {
			at -= len(s.Buf)
			continue
		}
		k := min(n, len(s.Buf)-at)
		parts = append(parts, s.Buf[at:at+k])
		n, at = n-k, 0
	}
	return parts
}

// packets is the number of PSNs of a message of n bytes.
func (q *QP) packets(n uint32) int { return max(1, (int(n)+q.mtu-1)/q.mtu) }
