package rc

import (
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Run is one packet, or several with the same opcode and consecutive PSNs.
type Run struct {
	At       rdma.Time // of the first
	Out      bool
	Op       wire.Opcode
	AckReq   bool  // of the last
	Syndrome uint8 // of the AETH, if the opcode has one
	PSN      wire.PSN
	Count    int32
	Bytes    int64 // of payload, all together
}

// runsMax is the number of runs that a QP remembers, a power of two.
const runsMax = 32

// recorder records the last packets of a QP for a post-mortem. A long message is one run, so that
// it does not displace the packets before it.
type recorder struct {
	runs [runsMax]Run
	n    uint32 // recorded so far
}

// add records a packet. A packet that continues the last run extends it; one with an AETH never
// does, because the syndrome of each is of interest.
func (r *recorder) add(now rdma.Time, out bool, p *wire.Packet, bytes int) {
	if last := &r.runs[(r.n-1)%runsMax]; r.n > 0 && last.Op == p.Op && last.Out == out &&
		p.PSN == last.PSN.Add(int(last.Count)) && !p.Op.Is(wire.HasAETH) {
		last.Count++
		last.Bytes += int64(bytes)
		last.AckReq = p.AckReq
		return
	}
	e := &r.runs[r.n%runsMax]
	r.n++
	*e = Run{At: now, Out: out, Op: p.Op, AckReq: p.AckReq, PSN: p.PSN, Count: 1, Bytes: int64(bytes)}
	if p.Op.Is(wire.HasAETH) {
		e.Syndrome = p.AETH.Syndrome
	}
}

// Recent returns the last packets that the QP has sent and received, oldest first.
func (q *QP) Recent() []Run {
	r := &q.recent
	n := min(r.n, runsMax)
	list := make([]Run, 0, n)
	for i := r.n - n; i != r.n; i++ {
		list = append(list, r.runs[i%runsMax])
	}
	return list
}

// put appends a packet to the batch, records and counts it. payload stays where it is until the
// link has sent the batch. Packets with data and packets without data have different flows, see
// flows.
func (q *QP) put(b *wire.Batch, p *wire.Packet, payload [][]byte) {
	f := &q.flow
	switch {
	case p.Op == wire.CNP:
		f = &q.about
	case len(payload) > 0:
		f = &q.data
	}
	b.Add(f, p, payload)
	q.n.TxPackets++
	q.summary.TxPackets++
	n := 0
	for _, d := range payload {
		n += len(d)
	}
	q.recent.add(q.now, true, p, n)
}
