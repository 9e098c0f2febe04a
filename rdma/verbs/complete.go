//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/rstored/rstored/rdma"
)

// kernelWithInv is the flag of the kernel for a message that has invalidated a key. rdma_rxe hands
// it to programs as it is, where it means IBV_WC_IP_CSUM_OK. The key is then in the host's byte
// order, where the library swaps it as if it were immediate data.
const kernelWithInv = 4

// translate makes a completion for the user out of one of the device. It reports false if the user
// gets none: the request was posted without Signaled, is part of another, or is of a destroyed
// queue pair.
//
//	completion                                   the user gets
//	of a receive                                 see received
//	of a queue pair that was destroyed           nothing
//	of a request outside of sqHead to sqTail     nothing: it was completed before
//	success, posted with Signaled                a completion
//	success, silent or part of another           nothing
//	error                                        a completion, also of a silent request
//	error of a part after another failed part    nothing
func (l *loop) translate(in *C.struct_rs_wc, out *rdma.WC) bool {
	handle := uint32(uint64(in.id)>>32) &^ (1 << 31)
	number := uint32(in.id)
	*out = rdma.WC{QPN: uint32(in.qpn), Status: rdma.Status(in.status)}
	l.n.completions.Add(1)
	if out.Status != rdma.Success {
		l.n.failure(out.Status)
	}
	if uint64(in.id)&recvBit != 0 {
		return l.received(handle, number, in, out)
	}
	q := l.qps[handle]
	if q == nil {
		return false
	}
	// A device may complete a request twice, or one that was completed here (noFlush).
	s := q.at(number)
	if number-q.sqHead >= q.sqTail-q.sqHead || s.fin {
		return false // the request is not in the queue
	}
	if s.fin = true; l.dev.quirks.disorder {
		for q.sqHead != q.sqTail && q.at(q.sqHead).fin {
			q.sqHead++
		}
	} else {
		// Requests complete in order, so those before it without a completion have succeeded.
		for ; q.sqHead != number; q.sqHead++ {
			q.at(q.sqHead).done(q, true)
		}
		q.sqHead++
	}
	ok := out.Status == rdma.Success
	s.done(q, ok)
	out.ID, out.Op = s.id, s.op
	if ok {
		if s.op == rdma.WCRead || s.op == rdma.WCCompareSwap || s.op == rdma.WCFetchAdd {
			out.ByteLen = uint32(in.byte_len)
		}
		return !s.unsignaled && !s.part
	}
	over := s.over
	if !over {
		q.recordError(s.op, out.Status, uint32(in.vendor))
		if out.Status == rdma.WRFlushErr && q.completes(s) {
			q.cut++
		}
	}
	q.erred(out.Status)
	if s.part {
		q.at(number + 1).over = true
	}
	return !over
}

// received is translate for receives. Receives of a shared queue may be of a queue pair that was
// destroyed: q is nil then.
func (l *loop) received(handle, at uint32, in *C.struct_rs_wc, out *rdma.WC) bool {
	q := l.qps[handle]
	if s := l.srqs[handle]; s != nil {
		out.ID = s.slots.release(at)
		q = s.user(uint32(in.qpn))
	} else if q != nil {
		out.ID = q.rq.release(at)
	} else {
		return false
	}
	out.Op = rdma.WCRecv
	if out.Status != rdma.Success {
		if q != nil {
			q.recordError(out.Op, out.Status, uint32(in.vendor))
			q.erred(out.Status)
		}
		return true
	}
	out.ByteLen = uint32(in.byte_len)
	if in.opcode == C.IBV_WC_RECV_RDMA_WITH_IMM {
		out.Op = rdma.WCRecvWithImm
	}
	if in.flags&C.IBV_WC_WITH_IMM != 0 {
		out.Flags |= rdma.WithImm
		out.Imm = uint32(in.imm)
	}
	if library := in.flags&C.IBV_WC_WITH_INV != 0; library || l.dev.quirks.rxe && in.flags&kernelWithInv != 0 {
		out.Flags |= rdma.WithInv
		out.InvRKey = uint32(in.imm)
		if !library {
			out.InvRKey = bits.ReverseBytes32(out.InvRKey)
		}
	}
	if in.flags&C.IBV_WC_GRH != 0 {
		out.Flags |= rdma.GRH
	}
	if q == nil {
		return true
	}
	if out.Flags&rdma.WithInv != 0 {
		q.invalidated(out.InvRKey)
	}
	if q.typ == rdma.UD {
		out.SrcQPN = uint32(in.src_qp)
	}
	if q.conn != nil {
		q.conn.traffic()
	}
	q.recordReceived(out)
	return true
}

// flushPatience is how long a connection with flushed requests waits for the reason.
const flushPatience = rdma.Second

var errFlushed = errors.New("the device ended the queue pair, as it does when the peer terminates the connection")

// erred is called for each completion with an error. The first one says why the queue pair is in
// ERR.
//
//	queue pair    error               state afterwards
//	UD            flushed             unchanged
//	UD            other               SQE, or ERR with the quirk noSQE
//	RC            the first, flushed  ERR; the connection ends after flushPatience at the latest
//	RC            other               ERR; the connection ends with this reason
func (q *qp) erred(s rdma.Status) {
	if q.typ != rdma.RC {
		if q.state == rdma.StateRTS && s != rdma.WRFlushErr {
			if q.state = rdma.StateSQE; q.l.dev.quirks.noSQE {
				q.inError()
			}
		}
		return
	}
	was := q.state
	if was != rdma.StateErr {
		q.inError()
	}
	switch c := q.conn; {
	case c == nil:
	case s != rdma.WRFlushErr:
		c.failed(fmt.Errorf("RDMA request failed: %v", s))
	case was != rdma.StateErr:
		// The connection manager is about to report the reason. Over iWARP it does not always.
		q.l.After(flushPatience, func() { c.failed(errFlushed) })
	}
}
