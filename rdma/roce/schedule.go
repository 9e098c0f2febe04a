package roce

import (
	"errors"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// touch notes that something happened to q: it may have completions, packets to send, or another
// deadline. settle handles it, once for all that happened in the turn.
func (s *shard) touch(q *qp) {
	if !q.dirty {
		q.dirty = true
		s.dirty.Add(q)
	}
}

// settle handles the queue pairs that touch noted.
//
//	1  connections       events of the connection manager
//	2  harvest           completions go from the engines to the completion queues
//	3  watch             events of the queue pair: SQ drained, last WQE reached
//	4  LosesSegments     the loss pattern of wrong segments goes to the link
//	5  setTimer          the deadline of the engine
//	6  ready or owing    packets to send, or an ACK that may wait
//	7  failed            the end of a connection, after its completions
func (s *shard) settle() {
	if s.cm != nil {
		s.connections()
	}
	for _, q := range s.dirty.Take() {
		q.dirty = false
		if q.dead {
			continue
		}
		q.harvest()
		state := q.rc.State()
		q.watch(state, state == rdma.StateSQD && q.rc.Drained())
		if q.rc.LosesSegments() {
			s.suspectSegments(q)
		}
		s.setTimer(q)
		if !q.ready && q.rc.HasWork(s.now) {
			if q.rc.OwesAck(s.now) && q.waited < ackTurns {
				s.owe(q)
			} else {
				s.owesNot(q)
				q.ready, q.waited = true, 0
				s.ready.Add(q)
			}
		}
		if !q.quiet && q.conn != nil && q.rc.State() == rdma.StateErr {
			q.quiet = true
			q.conn.failed(q.rc.Err())
		}
	}
	s.settleUD()
}

// setTimer sets the timer of q to its deadline.
func (s *shard) setTimer(q *qp) {
	if at := q.rc.Deadline(); at != 0 {
		s.timers.Set(&q.timer, at)
	}
}

// expire is the function of the timer of q. The deadline may have moved to a later time since the
// timer was set. settle sets the timer again.
func (q *qp) expire() {
	if d := q.rc.Deadline(); d != 0 && d <= q.s.now {
		q.rc.Expire(q.s.now)
	}
	q.s.touch(q)
}

// suspectSegments reports to the link that packets of q are lost in the pattern of a network card
// with wrong segmentation offload.
func (s *shard) suspectSegments(q *qp) {
	l, ok := s.link.(link.Segmenter)
	if !ok {
		l, ok = s.inner.(link.Segmenter)
	}
	peer := q.rc.Attr().RemoteAddr
	if ok && l.Suspect(peer) {
		s.dev.cfg.Logger.Warn("UDP segmentation offload makes packets that the peer drops; packets to it are sent without: "+
			"look for a newer driver, or turn the offload off ('ethtool -K IFACE tx-udp-segmentation off')",
			"address", s.dev.addr.String(), "peer", peer.String())
	}
}

// ackTurns is the most turns of the loop that an acknowledgement waits.
const ackTurns = 4

// owe postpones the acknowledgement that q owes to the next turn. Each acknowledgement is a
// datagram of its own, which wakes the peer. While packets come in or go out, waiting pays off: a
// later acknowledgement covers more packets, or rides on a message. An ACK waits ackTurns turns
// at most, and not longer than until a turn in which nothing arrives. So a peer that waits for
// the ACK sees no timeout.
func (s *shard) owe(q *qp) {
	if !q.owing {
		q.owing = true
		s.owes++
		s.owing = append(s.owing, q)
	}
}

func (s *shard) owesNot(q *qp) {
	if q.owing {
		q.owing = false
		s.owes--
	}
}

// acknowledge handles the postponed acknowledgements. All of them leave in a turn in which nothing
// arrived.
func (s *shard) acknowledge(idle bool) {
	for i, q := range s.owing {
		s.owing[i] = nil
		if !q.owing {
			continue
		}
		s.owesNot(q)
		if q.waited++; idle {
			q.waited = ackTurns
		}
		s.touch(q)
	}
	s.owing = s.owing[:0]
}

// callbacks runs the callbacks of users: first of connections and queue pairs, then of completion
// queues. It reports whether there were any.
func (s *shard) callbacks() bool {
	if s.events.Len() == 0 && s.later.Len() == 0 {
		return false
	}
	for _, fn := range s.later.Take() {
		fn()
	}
	for _, c := range s.events.Take() {
		c.pending = false
		c.onEvent()
	}
	return true
}

// cmRoom is the part of a batch that is reserved for the connection manager when it has packets.
const cmRoom = 16

// flush sends one batch: datagrams, then a share for each ready queue pair in turn, then the
// packets of the connection manager. These come last, so that a DREQ does not overtake the NAK that
// says why a queue pair failed.
//
//	| datagrams (udShare at most) | ready queue pairs, in turn | CM: cmRoom at least |
//
// Datagrams that Send does not send are lost. The engines treat that like loss in the network,
// and retransmit. Only a closed link ends the loop.
func (s *shard) flush() error {
	b := s.batch
	b.Reset()
	talk := s.cm != nil && s.cm.HasWork()
	full := func() bool { return b.Full() || talk && b.Room() < cmRoom }
	s.flushUD(b)
	for s.ready.Len() > 0 && !full() {
		for _, q := range s.ready.Take() {
			if !full() && q.speaks() && !s.transmit(q, b) || !q.speaks() {
				q.ready = false
				continue
			}
			s.ready.Add(q)
		}
	}
	if talk {
		s.cm.Transmit(b)
	}
	if len(b.D) == 0 {
		return nil
	}
	if err := s.link.Send(b); err != nil {
		if errors.Is(err, link.ErrClosed) {
			return err
		}
		s.stats.SendErrors++
		s.tooBig(err)
		if s.warned == 0 || s.now-s.warned > 10*rdma.Second {
			s.warned = s.now
			s.dev.cfg.Logger.Warn("RDMA packets cannot be sent", "error", err)
		}
	}
	// Transmit may have moved deadlines. They count in this turn; everything else that it did waits
	// for the next.
	for _, q := range s.dirty.Values() {
		if !q.dead {
			s.setTimer(q)
		}
	}
	return nil
}

// transmit adds packets of q to the batch and reports whether q has more.
func (s *shard) transmit(q *qp, b *wire.Batch) (more bool) {
	before := len(b.D)
	more = q.rc.Transmit(s.now, b)
	s.touch(q) // it may have completed requests, failed, or moved its deadline
	// A queue pair that added nothing though there was room has nothing to send after all.
	return more && (len(b.D) != before || b.Full())
}

// tooBig notes, for the failure records of the connections to a peer, that a packet to the peer did
// not fit our interface.
func (s *shard) tooBig(err error) {
	var e *link.TooBigError
	if !errors.As(err, &e) {
		return
	}
	for c := range s.conns {
		if c.RemoteAddr.Addr() == e.Dst.Unmap() {
			c.tooBig = e
		}
	}
}
