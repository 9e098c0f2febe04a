package rc

import (
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wq"
)

// SRQ is a shared receive queue.
type SRQ = wq.SRQ

// NewSRQ makes an SRQ for up to depth receives of up to sges elements.
func NewSRQ(depth, sges int) *SRQ { return wq.NewSRQ(depth, sges, sgeMax) }

// noReceive reports whether there is no receive for the message that begins. A SEND and an RDMA
// WRITE with immediate need one.
//
//	message                    receive taken by
//	SEND                       its first packet
//	RDMA WRITE with immediate  its last packet; the receive's memory is not used
//	RDMA WRITE, READ, atomic   none
func (q *QP) noReceive() bool {
	if q.cfg.SRQ != nil {
		return q.cfg.SRQ.Len() == 0
	}
	return q.rq.Len() == 0
}

// takeRecv takes a receive for the message that begins. The caller has checked that there is one.
func (q *QP) takeRecv() *wq.Recv {
	if q.cfg.SRQ != nil {
		q.cfg.SRQ.Take(&q.cur)
	} else {
		q.rq.Take(&q.cur)
	}
	q.resp.inRecv = true
	return &q.cur
}

// completeRecv completes the receive of the message in progress with wc, and sets its ID. The
// memory of the receive is the user's again.
func (q *QP) completeRecv(wc rdma.WC) {
	q.resp.inRecv = false
	wc.ID, wc.QPN = q.cur.ID, q.cfg.Num
	*q.recv.Push() = wc
	clear(q.cur.SGL)
}
