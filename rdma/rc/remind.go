package rc

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// ErrPeerStopped is why a QP has failed whose peer did not send again what was lost, though it was asked for.
var ErrPeerStopped = errors.New("the peer has stopped sending its requests")

// The responder asks again for what is missing. A packet that came out of sequence shows that the packets before it
// were sent. A requester sends all of them again after one NAK (IBTA 9.7.5.2.4), or when its timer expires. rdma_rxe
// does not always: it carries out the memory registrations between its messages a second time when it goes back, which
// fails. It then sends nothing more, has no timer running, and notices its failure by the next packet that
// acknowledges something. So the responder repeats ACK and NAK while something is missing. Where that does not help
// either it ends the connection, so that the peer connects anew within seconds.
const (
	// remindLeast is the least silence after which the peer is asked again. remindRounds round trips must have passed
	// too, or remindFar where their time is not known, as we send nothing that is acknowledged.
	remindLeast  = rdma.Millisecond
	remindFar    = 100 * rdma.Millisecond
	remindRounds = 4
	// remindMost bounds the time between two reminders, which grows by half with each.
	remindMost = 512 * rdma.Millisecond
	// remindStop is the silence that ends the connection. A peer of any make has sent again by then: it was asked a
	// dozen times.
	remindStop = 3 * rdma.Second
	// remindSpan bounds how far ahead a packet is believed to be the peer's. Somebody who guesses the queue pair's
	// number, and no sequence number, must not end the connection.
	remindSpan = 1024
	// remindACKs is how often the ACK of a packet that came twice is repeated. The peer asks by it for an ACK that was
	// lost. This one may be lost too, and an rdma_rxe whose requester has failed asks once.
	remindACKs = 8
)

// reminder is what the responder knows to be missing.
type reminder struct {
	on    bool
	known wire.PSN  // the last PSN that the peer is known to have sent, at or after the expected one
	heard rdma.Time // when the last request packet came
	at    rdma.Time // of the next reminder
	wait  rdma.Time // between the last and that
	due   bool      // an ACK goes before the NAK
	acks  int       // to be repeated, where nothing is missing
}

// missing takes note of a request packet that came out of sequence.
func (q *QP) missing(now rdma.Time, psn wire.PSN) {
	r := &q.resp
	m := &r.remind
	if r.notReady || psn.Sub(r.epsn) > remindSpan {
		return
	}
	if !m.on || psn.After(m.known) {
		m.on, m.known, m.acks = true, psn, 0
	}
	q.remindLater(now)
}

// cameAgain takes note of a request packet that came before.
func (q *QP) cameAgain(now rdma.Time) {
	if m := &q.resp.remind; !m.on {
		m.acks = remindACKs
	}
	q.remindLater(now)
}

// came takes note of a request packet that was expected.
func (q *QP) came(now rdma.Time) {
	m := &q.resp.remind
	if !m.on {
		*m = reminder{}
		return
	}
	if m.known.Before(q.resp.epsn) {
		*m = reminder{}
		return
	}
	q.remindLater(now)
}

// remindLater lets the peer go on by itself first.
func (q *QP) remindLater(now rdma.Time) {
	m := &q.resp.remind
	m.wait = remindFar
	if t := &q.req.timers; t.srtt != 0 {
		m.wait = min(max(remindLeast, remindRounds*(t.srtt+t.rttvar)), remindMost)
	}
	m.heard, m.at, m.due = now, now+m.wait, false
}

// remind asks for what is missing when its time has come.
func (q *QP) remind(now rdma.Time) {
	r := &q.resp
	m := &r.remind
	switch {
	case m.at == 0 || now < m.at:
		return
	case !m.on:
		r.ackDue = true
		if m.acks--; m.acks == 0 {
			*m = reminder{}
			return
		}
		m.wait = min(m.wait+m.wait/2, remindMost)
		m.at = now + m.wait
		return
	}
	if silent := now - m.heard; silent >= remindStop {
		q.n.PeerStopped++
		q.fail(fmt.Errorf("%w: %v has sent up to PSN %d, was asked for PSN %d again and again, and has sent nothing for %d ms",
			ErrPeerStopped, q.flow.Dst, m.known, r.epsn, silent/rdma.Millisecond))
		return
	}
	m.wait = min(m.wait+m.wait/2, remindMost)
	m.at = min(now+m.wait, m.heard+remindStop)
	q.n.TxReminders++
	q.n.TxNAKSequence++
	q.seen.TxNAK.add(wire.NAKSequence, r.epsn)
	r.gap, r.gapSent = true, now
	r.nakDue, r.nak, r.nakPSN = true, wire.NAKSequence, r.epsn
	m.due = true
}
