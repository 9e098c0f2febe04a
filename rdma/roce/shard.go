package roce

import (
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/eventloop"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// shard is one loop: a link and the queue pairs that live on it. It implements rdma.Loop.
// Everything but the inbox and forwarded belongs to the goroutine of the loop.
//
// The first shard has the connection manager of the device, and with it all cm.IDs. Other shards
// reach it by Submit.
type shard struct {
	dev   *Device
	index int
	link  link.Link
	// inner is the link that Config.Wrap got, or the same as link.
	inner link.Link
	cm    *cm.Machine // first shard only
	now   rdma.Time   // of this turn

	rx    *link.Rx
	flow  wire.Flow // of the packet that is checked
	pkt   wire.Packet
	batch *wire.Batch

	qps  map[uint32]*qp
	uds  map[uint32]*udqp
	last *qp // of the last packet: most packets come in runs
	// penalties are the hosts that may not connect now. First shard only.
	penalties penalties
	// hosts are answers of the routing tables about peers. First shard only.
	hosts hosts
	conns map[*conn]struct{}
	// resolutions are our SIDR requests without an answer.
	resolutions map[*resolution]struct{}
	// resting are the QP numbers that are not given out again yet, oldest first, and isResting
	// their set.
	resting   restQueue
	isResting map[uint32]bool

	timers eventloop.Timers
	inbox  eventloop.Inbox
	// forwarded counts the datagrams in the inbox, which came to other shards.
	forwarded atomic.Int64
	dirty     eventloop.Batch[*qp] // see touch
	ready     eventloop.Batch[*qp] // may have packets to send
	// owing lists queue pairs with a postponed ACK. An entry may be stale: the ACK was sent with
	// other data. owes counts the entries that are not stale.
	owing []*qp
	owes  int
	// udDirty and udReady are the same for datagrams.
	udDirty, udReady eventloop.Batch[*udqp]
	events           eventloop.Batch[*cq] // have new completions
	later            eventloop.Batch[func()]
	// afterFlush is run when the packets of the turn have been sent.
	afterFlush eventloop.Batch[func()]
	cmEvents   [16]cm.Event

	// postponing: datagrams for the connection manager wait in postponed.
	postponing bool
	postponed  []SnapshotDatagram

	messages int  // SENDs that arrived since their receivers ran, see portion
	yield    bool // see Yield
	// listening: the loop takes what is submitted without being woken.
	listening atomic.Bool
	leaving   bool // the device is being closed
	leaveBy   rdma.Time
	// dreqs are the connections whose DREQ has to be answered, or time out, before the loop ends.
	dreqs  []*cm.ID
	warned rdma.Time // last warning about packets that cannot be sent
	stats  Stats
}

var (
	_ rdma.Loop    = (*shard)(nil)
	_ rdma.Yielder = (*shard)(nil)
)

func newShard(d *Device, i int, l link.Link) *shard {
	return &shard{
		dev: d, index: i, link: l, now: l.Now(),
		rx: link.NewRx(rxSlots, rxSlot), batch: wire.NewBatch(batchSize),
		qps: map[uint32]*qp{}, uds: map[uint32]*udqp{}, conns: map[*conn]struct{}{}, resolutions: map[*resolution]struct{}{},
		isResting: map[uint32]bool{},
	}
}

// Now implements rdma.Loop.
func (s *shard) Now() rdma.Time { return s.now }

// Yield implements rdma.Yielder.
func (s *shard) Yield() { s.yield = true }

// After implements rdma.Loop.
func (s *shard) After(d rdma.Time, fn func()) func() { return s.timers.After(s.now, d, fn) }

// Submit implements rdma.Loop.
func (s *shard) Submit(fn func()) bool {
	queued, first := s.inbox.Put(fn)
	if first && !s.listening.Load() {
		s.link.Wake()
	}
	return queued
}

// on runs fn on the loop of shard to: at once if that is this one. It reports false if the loop of
// to has ended.
func (s *shard) on(to *shard, fn func()) bool {
	if s == to {
		fn()
		return true
	}
	return to.Submit(fn)
}

// run is the goroutine of the loop.
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

// roundsMax bounds the rounds of callbacks in a turn. A callback may post requests that complete
// at once, and so cause another round.
const roundsMax = 4

// turn is one round of the loop. It sleeps in Recv only, and only if there is nothing to do.
func (s *shard) turn() error {
	n, err := s.link.Recv(s.rx, s.deadline())
	s.now = s.link.Now()
	if err != nil {
		s.lost(err)
		return err
	}
	s.stats.Turns++
	// Submitted functions come before packets: a listener that was opened before the peer's REQ
	// left is then open when the REQ is handled.
	s.inbox.Run()
	for i := range n {
		s.packet(&s.rx.D[i])
		if s.messages >= portion && i+1 < n {
			if err := s.serve(); err != nil {
				s.lost(err)
				return err
			}
		}
	}
	s.acknowledge(n == 0)
	s.timers.Expire(s.now)
	if s.cm != nil {
		if d := s.cm.Deadline(); d != 0 && d <= s.now {
			s.cm.Expire(s.now)
		}
	}
	if err := s.serve(); err != nil {
		s.lost(err)
		return err
	}
	for _, fn := range s.afterFlush.Take() {
		fn()
	}
	if s.yield {
		if err := s.listen(); err != nil {
			s.lost(err)
			return err
		}
	}
	if s.leaving && s.left() {
		return rdma.ErrClosed
	}
	return nil
}

// listen lets the goroutines run that the turn has made ready. What they submit meanwhile it runs
// and sends at once: they need not wake the loop, which need not look for packets first.
func (s *shard) listen() error {
	s.yield = false
	s.listening.Store(true)
	runtime.Gosched()
	s.listening.Store(false) // before Run: what comes after it wakes the loop
	if !s.inbox.Waits() {
		return nil
	}
	if l, ok := s.inner.(link.Caller); ok {
		l.Called()
	}
	s.now = s.link.Now()
	s.inbox.Run()
	return s.serve()
}

// portion is how many messages the loop serves before it sends their answers. The peer then works
// on the first answers while the loop serves the rest. If all answers left together, one end would
// always wait while the other one works.
const portion = 8

// serve runs the callbacks for what has happened, and sends the packets that this causes.
func (s *shard) serve() error {
	s.messages = 0
	for range roundsMax {
		s.settle()
		if !s.callbacks() {
			break
		}
	}
	return s.flush()
}

// deadline is how long the loop may sleep.
func (s *shard) deadline() rdma.Time {
	if s.ready.Len() > 0 || s.owes > 0 || s.dirty.Len() > 0 || s.udReady.Len() > 0 || s.udDirty.Len() > 0 ||
		s.events.Len() > 0 || s.later.Len() > 0 || s.cm != nil && s.cm.HasWork() {
		return link.NoWait
	}
	d := s.timers.Next()
	if s.cm != nil {
		d = rdma.Earlier(d, s.cm.Deadline())
	}
	if s.leaving {
		d = rdma.Earlier(d, s.leaveBy)
	}
	return d
}

// lingerMax bounds how long a closed device waits for the answers to its DREQs.
const lingerMax = 200 * rdma.Millisecond

// leave begins the end of the loop: all connections end, with a DREQ to their peers.
func (s *shard) leave() {
	s.leaving = true
	s.leaveBy = s.now + lingerMax
	s.closeAll(rdma.ErrClosed)
}

// closeAll ends the connections of the shard and its SIDR requests.
func (s *shard) closeAll(why error) {
	for c := range s.conns {
		c.goDown(rdma.EventDisconnected, 0, nil, why, true)
	}
	for r := range s.resolutions {
		r.answer(rdma.UDAddress{Err: why})
	}
}

// left reports whether the loop can end: all peers have answered the DREQ, or had the time to.
func (s *shard) left() bool {
	if s.later.Len() > 0 || s.events.Len() > 0 {
		return false
	}
	if s.cm == nil || s.now >= s.leaveBy {
		return true
	}
	for _, id := range s.dreqs {
		if id.State == cm.DREQSent {
			return false
		}
	}
	return !s.cm.HasWork()
}

// lost ends all connections because the link has failed.
func (s *shard) lost(err error) {
	s.closeAll(err)
	s.settle()
	s.callbacks()
}

// end closes the link. It runs the functions in the inbox first: Submit has accepted them.
func (s *shard) end() {
	for _, fn := range s.inbox.Close() {
		fn()
	}
	s.settle()
	s.callbacks()
	_ = s.link.Close()
}
