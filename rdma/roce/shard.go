package roce

import (
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/inbox"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// shard is one loop: a link and the queue pairs that live on it. It implements
// rdma.Loop. Everything but the inbox belongs to the loop's goroutine.
type shard struct {
	dev   *Device
	index int
	link  link.Link
	// wrapped is the link inside of link, or the same one.
	wrapped link.Link
	cm      *cm.Machine // in the first shard only
	now     rdma.Time

	rx    *link.Rx
	flow  wire.Flow // of the packet being checked
	pkt   wire.Packet
	batch *wire.Batch

	qps      map[uint32]*qp
	uds      map[uint32]*udqp
	last     *qp      // of the last packet: most come in runs
	suspects suspects // in the first shard only
	conns    map[*conn]struct{}
	// resolutions are questions for datagram services that are not answered.
	resolutions map[*resolution]struct{}
	resting     restQueue
	rests       map[uint32]bool

	timers timers
	inbox  inbox.Inbox
	// forwarded are datagrams in the inbox, from other shards.
	forwarded atomic.Int64
	dirty     []*qp // something happened to them
	ready     []*qp // may have packets to send
	// owing are those that owe an acknowledgement that may wait, and some that did; owes
	// counts the first.
	owing []*qp
	owes  int
	// udDirty and udReady are the same for datagrams.
	udDirty, udReady []*udqp
	events           []*cq // have new completions
	later            []func()
	// afterFlush is run when the turn's packets are on their way.
	afterFlush []func()
	spare      struct {
		dirty, ready []*qp
		events       []*cq
		later        []func()
	}
	cmEvents [16]cm.Event

	// holding: what comes for the connection manager is kept.
	holding bool
	kept    []SnapshotDatagram

	yield    bool // others can run
	leaving  bool
	leaveBy  rdma.Time
	goodbyes []*cm.ID
	warned   rdma.Time
	stats    Stats
}

var (
	_ rdma.Loop    = (*shard)(nil)
	_ rdma.Yielder = (*shard)(nil)
)

func newShard(d *Device, i int, l link.Link) *shard {
	return &shard{
		dev: d, index: i, link: l, now: l.Now(),
		rx: link.NewRx(rxSlots, rxSlot), batch: wire.NewBatch(batchSize),
		qps: map[uint32]*qp{}, uds: map[uint32]*udqp{}, conns: map[*conn]struct{}{}, resolutions: map[*resolution]struct{}{}, rests: map[uint32]bool{},
	}
}

// Now implements rdma.Loop.
func (s *shard) Now() rdma.Time { return s.now }

// Yield implements rdma.Yielder.
func (s *shard) Yield() { s.yield = true }

// run is the loop's goroutine.
func (s *shard) run() {
	defer s.dev.ended.Done()
	defer s.end()
	for {
		if err := s.turn(); err != nil {
			if !errors.Is(err, rdma.ErrClosed) {
				s.dev.cfg.Logger.Error("the RDMA device stopped", "address", s.dev.addr, "shard", s.index, "error", err)
			}
			return
		}
	}
}

// roundsMax bounds how often in one turn the users of completions are called
// because their requests completed on the spot.
const roundsMax = 4

// turn is one round of the loop. It sleeps in Recv only, and there only if
// there is nothing to do.
func (s *shard) turn() error {
	n, err := s.link.Recv(s.rx, s.deadline())
	s.now = s.link.Now()
	if err != nil {
		s.lost(err)
		return err
	}
	s.stats.Turns++
	// What was submitted comes first: a listener that was opened before the
	// peer's packets left is then open when they are looked at.
	s.inbox.Run()
	for i := range n {
		s.packet(&s.rx.D[i])
	}
	s.acknowledge(n == 0)
	s.expire()
	for range roundsMax {
		s.settle()
		if !s.callbacks() {
			break
		}
	}
	if err := s.flush(); err != nil {
		s.lost(err)
		return err
	}
	for i, fn := range s.afterFlush {
		s.afterFlush[i] = nil
		fn()
	}
	s.afterFlush = s.afterFlush[:0]
	if s.yield {
		s.yield = false
		runtime.Gosched()
	}
	if s.leaving && s.left() {
		return rdma.ErrClosed
	}
	return nil
}

// deadline is how long the loop may sleep.
func (s *shard) deadline() rdma.Time {
	if len(s.ready) > 0 || s.owes > 0 || len(s.dirty) > 0 || len(s.udReady) > 0 || len(s.udDirty) > 0 || len(s.events) > 0 || len(s.later) > 0 || s.cm != nil && s.cm.HasWork() {
		return link.NoWait
	}
	var d rdma.Time
	if len(s.timers) > 0 {
		d = s.timers[0].at
	}
	if s.cm != nil {
		d = rdma.Earlier(d, s.cm.Deadline())
	}
	if s.leaving {
		d = rdma.Earlier(d, s.leaveBy)
	}
	return d
}

// touch notes that something happened to q: completions may be there, packets
// may have to be sent, its deadline may have moved.
func (s *shard) touch(q *qp) {
	if !q.dirty {
		q.dirty = true
		s.dirty = append(s.dirty, q)
	}
}

// settle looks after the queue pairs that something happened to.
func (s *shard) settle() {
	if s.cm != nil {
		s.connections()
	}
	d := s.dirty
	s.dirty, s.spare.dirty = s.spare.dirty[:0], d
	for i, q := range d {
		d[i] = nil
		q.dirty = false
		if q.dead {
			continue
		}
		q.harvest()
		q.watch()
		if q.rc.Stutters() {
			s.suspect(q)
		}
		if at := q.rc.Deadline(); at != 0 {
			s.timers.set(&q.timer, at)
		}
		if !q.ready && q.rc.HasWork(s.now) {
			if q.rc.OwesAck(s.now) && q.waited < ackTurns {
				s.owe(q)
			} else {
				s.owesNot(q)
				q.ready, q.waited = true, 0
				s.ready = append(s.ready, q)
			}
		}
		if !q.quiet && q.conn != nil && q.rc.State() == rdma.StateErr {
			q.quiet = true
			q.conn.failed(q.rc.Err())
		}
	}
	s.settleUD()
}

// suspect tells the link that packets of q are lost as they are if the network card makes wrong segments.
func (s *shard) suspect(q *qp) {
	l, ok := s.link.(link.Segmenter)
	if !ok {
		l, ok = s.wrapped.(link.Segmenter)
	}
	peer := q.rc.Attr().RemoteAddr
	if ok && l.Suspect(peer) {
		s.dev.cfg.Logger.Warn("UDP segmentation offload makes packets that the peer drops; packets to it are sent without: "+
			"look for a newer driver, or turn the offload off ('ethtool -K IFACE tx-udp-segmentation off')",
			"address", s.dev.addr.String(), "peer", peer.String())
	}
}

// ackTurns is how many turns of the loop an acknowledgement waits at most.
const ackTurns = 4

// owe has the acknowledgement that q owes wait for the next turn. Each is a datagram, which
// wakes the peer for itself; while packets come in, or are about to leave, it is worth waiting.
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

// acknowledge looks at the acknowledgements that wait: they leave when nothing came in.
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

// callbacks tells users what happened and reports whether there was anything.
func (s *shard) callbacks() bool {
	if len(s.events) == 0 && len(s.later) == 0 {
		return false
	}
	l := s.later
	s.later, s.spare.later = s.spare.later[:0], l
	for i, fn := range l {
		l[i] = nil
		fn()
	}
	e := s.events
	s.events, s.spare.events = s.spare.events[:0], e
	for i, c := range e {
		e[i] = nil
		c.pending = false
		c.onEvent()
	}
	return true
}

// flush sends one batch: a share for each queue pair that has packets, in turn,
// then what the connection manager has to say. It comes last so that a queue
// pair's parting NAK is not overtaken by the DREQ, and has room kept for it.
func (s *shard) flush() error {
	b := s.batch
	b.Reset()
	talk := s.cm != nil && s.cm.HasWork()
	full := func() bool { return b.Full() || talk && b.Room() < cmRoom }
	s.flushUD(b)
	for len(s.ready) > 0 && !full() {
		r := s.ready
		s.ready, s.spare.ready = s.spare.ready[:0], r
		for i, q := range r {
			r[i] = nil
			if !full() && q.speaks() {
				before := len(b.D)
				more := q.rc.Transmit(s.now, b)
				// It may have completed requests, failed, or set its timer.
				s.touch(q)
				if more && len(b.D) == before && !b.Full() {
					more = false // it has nothing to send after all
				}
				if !more {
					q.ready = false
					continue
				}
			}
			if !q.speaks() {
				q.ready = false
				continue
			}
			s.ready = append(s.ready, q)
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
	// What Transmit did beside packets shows in the timers; the rest can wait
	// for the next turn.
	for _, q := range s.dirty {
		if !q.dead {
			if at := q.rc.Deadline(); at != 0 {
				s.timers.set(&q.timer, at)
			}
		}
	}
	return nil
}

// tooBig notes for the post-mortems of the connections to a peer that a packet to it did not fit our interface.
func (s *shard) tooBig(err error) {
	var e *link.TooBigError
	if !errors.As(err, &e) {
		return
	}
	for c := range s.conns {
		if c.remote.Addr() == e.Dst.Unmap() {
			c.tooBig = e
		}
	}
}

// cmRoom is the part of a batch that is kept for the connection manager when it
// has something to say.
const cmRoom = 16

// lingerMax bounds how long a closed device waits for answers to its goodbyes.
const lingerMax = 200 * rdma.Millisecond

// leave begins the end of the loop.
func (s *shard) leave() {
	s.leaving = true
	s.leaveBy = s.now + lingerMax
	for c := range s.conns {
		c.close(rdma.ErrClosed)
	}
	s.abandon(rdma.ErrClosed)
}

// abandon answers the questions that nobody will.
func (s *shard) abandon(why error) {
	for r := range s.resolutions {
		r.tell(rdma.UDAddress{Err: why})
	}
}

// left reports whether the loop can end: its peers know, or had the time to.
func (s *shard) left() bool {
	if len(s.later) > 0 || len(s.events) > 0 {
		return false
	}
	if s.cm == nil || s.now >= s.leaveBy {
		return true
	}
	for _, id := range s.goodbyes {
		if id.State == cm.DREQSent {
			return false
		}
	}
	return !s.cm.HasWork()
}

// lost tells the users that the link is gone.
func (s *shard) lost(err error) {
	for c := range s.conns {
		c.close(err)
	}
	s.abandon(err)
	s.settle()
	s.callbacks()
}

// end releases the link. What was submitted too late is run all the same, as
// Submit has promised it.
func (s *shard) end() {
	for _, fn := range s.inbox.Close() {
		fn()
	}
	s.settle()
	s.callbacks()
	_ = s.link.Close()
}

// on runs fn on shard to: at once if that is this one. It reports false if
// the loop of to has ended.
func (s *shard) on(to *shard, fn func()) bool {
	if s == to {
		fn()
		return true
	}
	return to.Submit(fn)
}
