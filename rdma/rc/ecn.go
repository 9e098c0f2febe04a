package rc

import (
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Codepoints of the ECN field (RFC 3168 section 5), the low two bits of a traffic class.
const (
	ecnMask = 3
	ect0    = 2
	ecnCE   = 3
)

// cnpGap is the least time between two CNPs of a queue pair, that of network cards.
const cnpGap = 50 * rdma.Microsecond

// notifier is the notification point of a queue pair (annex A17.9.3): it sends CNPs to the peer
// when a switch has marked the peer's packets.
//
//	peer --ECT(0)--> switch with a queue --CE--> notifier --CNP--> peer slows down (congested)
type notifier struct {
	due  bool
	last rdma.Time // when a CNP became due, 0 = never
}

// flows sets the IP headers of the packets. Packets with data are ECN-capable (ECT(0)) if
// congestion control is on: a switch then marks them instead of dropping them. Without congestion
// control, and for packets without data, nothing would be slowed down by a mark, so they are not
// ECN-capable.
func (q *QP) flows() {
	a := &q.attr
	q.flow = wire.Flow{
		Src: a.LocalAddr.Unmap(), Dst: a.RemoteAddr.Unmap(), SrcPort: wire.Port,
		TOS: a.TrafficClass &^ ecnMask,
	}
	q.data, q.about = q.flow, q.flow
	if c := q.cfg.CNPTrafficClass &^ ecnMask; c != 0 {
		q.about.TOS = c
	}
	if !q.cfg.Fixed {
		q.data.TOS |= ect0
	}
}

// marked handles the mark on a received packet: a CNP becomes due, one per cnpGap at most.
func (q *QP) marked(now rdma.Time) {
	q.n.RxECN++
	c := &q.cnp
	if c.last == 0 || now-c.last >= cnpGap {
		c.due, c.last = true, now
	}
}

// notify sends the CNP that is due.
func (q *QP) notify(b *wire.Batch) {
	q.cnp.due = false
	p := q.packet(wire.CNP, 0)
	p.MigReq, p.BECN = false, true
	q.put(b, p, cnpBody)
	q.n.TxCNP++
}

// cnpBody is reserved and zero (annex A17.9.3).
var cnpBody = [][]byte{make([]byte, 16)}

// congested handles a CNP. It does not say whether our requests or our READ responses were
// marked, so the QP slows down whichever of them it sent lately.
func (q *QP) congested(now rdma.Time) {
	q.n.RxCNP++
	r := &q.req
	handled := false
	if r.inFlight() > 0 {
		if handled = r.window.marked(now, r.srtt); handled {
			q.pace(now)
		}
	}
	if q.resp.rate.marked(now) {
		handled = true
	}
	if handled {
		q.n.CNPHandled++
	}
}
