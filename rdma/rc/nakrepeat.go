package rc

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// ErrPeerStopped means that the peer did not retransmit lost requests although NAKs requested it.
var ErrPeerStopped = errors.New("the peer has stopped sending its requests")

// The responder repeats its NAK for missing packets. A packet out of sequence shows that earlier
// packets were sent. A requester retransmits all of them after one NAK (IBTA 9.7.5.2), or when
// its timer expires.
//
// rdma_rxe sometimes does neither. When it goes back it executes the memory registrations between
// its messages a second time, which fails. It then sends nothing more, has no timer running, and
// reports its failure only when the next acknowledgement arrives. So the responder repeats ACK
// and NAK while something is missing. If that does not help it ends the connection, and the peer
// reconnects within seconds.
const (
	// nakRepeatMin is the least silence before a repetition. nakRepeatRounds round trips must have
	// passed too, or nakRepeatNoRTT if there is no round-trip time because we send no requests.
	nakRepeatMin    = rdma.Millisecond
	nakRepeatNoRTT  = 100 * rdma.Millisecond
	nakRepeatRounds = 4
	// nakRepeatMax bounds the time between two repetitions, which grows by half each time.
	nakRepeatMax = 512 * rdma.Millisecond
	// nakRepeatEnd is the silence that ends the connection. Every working peer has retransmitted by
	// then, after a dozen repetitions.
	nakRepeatEnd = 3 * rdma.Second
	// A PSN more than nakRepeatSpan beyond epsn starts no repetitions. An attacker who guesses the QP
	// number but not the PSN must not be able to end the connection.
	nakRepeatSpan = 1024
	// ackRepeats is how often the ACK of a duplicate is repeated. A duplicate shows that an ACK was
	// lost. The repeated ACK may be lost too, and an rdma_rxe whose requester has failed sends
	// only one duplicate.
	ackRepeats = 8
)

// nakRepeat is the state of the repetition of NAKs and ACKs.
//
//	gap        wait          1.5 wait        2.25 wait         nakRepeatEnd after the last packet
//	 |----------|---------------|----------------|---- ... -----------|
//	NAK      ACK, NAK        ACK, NAK         ACK, NAK         the connection ends
//
// A packet of the peer restarts the silence. When known has arrived, the repetition ends.
type nakRepeat struct {
	on    bool      // request packets are missing
	known wire.PSN  // the last PSN that the peer is known to have sent
	last  rdma.Time // when the last request packet arrived
	at    rdma.Time // of the next repetition
	wait  rdma.Time // time between the last repetition and the next
	due   bool      // an ACK goes before the NAK
	acks  int       // ACKs to repeat, if nothing is missing
}

// missing handles a request packet that is out of sequence.
func (q *QP) missing(now rdma.Time, psn wire.PSN) {
	r := &q.resp
	m := &r.repeat
	if r.notReady || psn.Sub(r.epsn) > nakRepeatSpan {
		return
	}
	if !m.on || psn.After(m.known) {
		m.on, m.known, m.acks = true, psn, 0
	}
	q.armRepeat(now)
}

// repeated handles a duplicate request packet.
func (q *QP) repeated(now rdma.Time) {
	m := &q.resp.repeat
	if !m.on {
		if q.noICRC {
			return // rstored, which sends another duplicate if it needs another ACK
		}
		m.acks = ackRepeats
	}
	q.armRepeat(now)
}

// arrived handles an expected request packet.
func (q *QP) arrived(now rdma.Time) {
	m := &q.resp.repeat
	if !m.on {
		*m = nakRepeat{}
		return
	}
	if m.known.Before(q.resp.epsn) {
		*m = nakRepeat{}
		return
	}
	q.armRepeat(now)
}

// armRepeat sets the time of the first repetition. Until then the peer has time to retransmit by
// itself.
func (q *QP) armRepeat(now rdma.Time) {
	m := &q.resp.repeat
	m.wait = nakRepeatNoRTT
	if t := &q.req.timers; t.srtt != 0 {
		m.wait = min(max(nakRepeatMin, nakRepeatRounds*(t.srtt+t.rttvar)), nakRepeatMax)
	}
	m.last, m.at, m.due = now, now+m.wait, false
}

// repeatNAK makes the next repetition due, if it is time.
func (q *QP) repeatNAK(now rdma.Time) {
	r := &q.resp
	m := &r.repeat
	switch {
	case m.at == 0 || now < m.at:
		return
	case !m.on:
		r.ackDue = true
		if m.acks--; m.acks == 0 {
			*m = nakRepeat{}
			return
		}
		m.wait = min(m.wait+m.wait/2, nakRepeatMax)
		m.at = now + m.wait
		return
	}
	if silent := now - m.last; silent >= nakRepeatEnd {
		q.n.PeerStopped++
		q.fail(fmt.Errorf("%w: %v sent up to PSN %d, was repeatedly asked for PSN %d, and has sent nothing for %d ms",
			ErrPeerStopped, q.flow.Dst, m.known, r.epsn, silent/rdma.Millisecond))
		return
	}
	m.wait = min(m.wait+m.wait/2, nakRepeatMax)
	m.at = min(now+m.wait, m.last+nakRepeatEnd)
	q.n.TxNAKRepeats++
	q.n.TxNAKSequence++
	q.summary.TxNAK.add(wire.NAKSequence, r.epsn)
	r.gap, r.gapSent = true, now
	r.nakDue, r.nak, r.nakPSN = true, wire.NAKSequence, r.epsn
	m.due = true
}
