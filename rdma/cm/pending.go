package cm

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/rstored/rstored/rdma"
)

// This file decides which REQs get a place among the connections that are being set up. Anybody can
// forge REQs, as many as the network carries. A peer that exists must still get a connection while
// they arrive. See Config.PendingMax.
const (
	// halfOpenMin is the time for which no half-open connection is replaced: a round trip of a peer
	// that exists. It must be short, because a forger of REQs competes with the peer whose address it
	// uses for PeerPendingMax places per halfOpenMin. It must not be too short, because each place
	// costs a queue pair: 12,800 per second are less than a loop can make.
	halfOpenMin = 20 * rdma.Millisecond
	// queueEvery is the least time between two rounds of the queue.
	queueEvery = rdma.Millisecond
	// takeMax bounds the REQs that one round takes. Each costs the owner a queue pair, and
	// established connections wait for that.
	takeMax = 32
	// droppedMax is the number of dropped REQs that are remembered, a power of two: those of four
	// seconds, after which the Linux kernel repeats its REQs, in a flood of 60,000 per second.
	droppedMax = 1 << 18
)

// asker is an address that asked for connections that are being set up.
type asker struct {
	pending  int
	halfOpen halfOpen
}

// ask counts an ID that a peer asked for.
func (m *Machine) ask(id *ID) {
	m.pending++
	a := m.askers[id.Peer.Addr()]
	if a == nil {
		a = new(asker)
		m.askers[id.Peer.Addr()] = a
	}
	a.pending++
}

// leavePending removes an ID from the counts of connections that are being set up, if it is in
// them. It is called before the state of the ID changes.
func (m *Machine) leavePending(id *ID) {
	if !id.State.pending() {
		return
	}
	m.pending--
	if id.Active {
		return
	}
	a := m.askers[id.Peer.Addr()]
	if a.pending--; a.pending == 0 {
		delete(m.askers, id.Peer.Addr())
	}
}

// halfOpen lists connections whose REP was sent, oldest first. Some have left that state.
type halfOpen []*ID

// left reports whether a connection is not half-open any more.
func left(id *ID) bool { return id.State != REPSent }

// oldest is the connection that has waited longest for its RTU, or nil.
func (h *halfOpen) oldest() *ID {
	for len(*h) > 0 && left((*h)[0]) {
		(*h)[0] = nil
		*h = (*h)[1:]
	}
	if len(*h) == 0 {
		return nil
	}
	return (*h)[0]
}

// add appends an ID. A list longer than most is tidied first.
func (h *halfOpen) add(id *ID, most int) {
	if len(*h) >= most {
		*h = slices.DeleteFunc(*h, left)
	}
	*h = append(*h, id)
}

// waitForRTU adds a connection whose REP is sent to the half-open ones.
func (m *Machine) waitForRTU(id *ID) {
	m.halfOpen.add(id, 2*m.cfg.PendingMax)
	m.askers[id.Peer.Addr()].halfOpen.add(id, 2*m.cfg.PeerPendingMax)
}

// makeRoom finds a place for a connection that src asks for; it gives up an older one if it must.
// If there is none, due is the time when there may be one, 0 if that is unknown.
//
//	connections of src      all             place
//	PeerPendingMax          any             that of the oldest half-open one of src
//	less                    PendingMax      that of the oldest half-open one of any host
//	less                    less            a free one
func (m *Machine) makeRoom(now rdma.Time, src netip.Addr) (room bool, due rdma.Time) {
	list := &m.halfOpen
	if a := m.askers[src]; a != nil && a.pending >= m.cfg.PeerPendingMax {
		list = &a.halfOpen
	} else if m.pending < m.cfg.PendingMax {
		return true, 0
	}
	if len(m.queue.reqs) > 0 && !m.queue.taking {
		return false, m.queue.due // others came first
	}
	old := list.oldest()
	if old == nil {
		return false, 0
	}
	if due = old.since + halfOpenMin; now < due {
		return false, due
	}
	m.n.HalfOpenEvicted++
	if len(m.out) < outMax/2 { // the REPs are more important
		m.sendTimeout(old)
	}
	m.Forget(old)
	m.event(Event{Kind: Unreachable, ID: old, Err: ErrEvicted})
	return true, 0
}

// waitingREQ is a REQ that waits for its port, or for a place.
type waitingREQ struct {
	at       rdma.Time
	src, dst netip.Addr
	h        Header
	req      REQ
}

// postpone handles a REQ for a port that nobody listens on. It reports false if the REQ is to be
// refused. While the user starts, the REQ waits for Listen; a repetition of it is dropped.
func (m *Machine) postpone(e waitingREQ) bool {
	if m.ending || !m.cfg.Starting {
		return m.ending
	}
	m.n.Early++
	again := slices.ContainsFunc(m.early, func(k waitingREQ) bool {
		return k.src == e.src && k.req.GUID == e.req.GUID && k.req.LocalID == e.req.LocalID
	})
	if !again && len(m.early) < m.cfg.PeerPendingMax {
		m.early = append(m.early, e)
	}
	return true
}

// admitEarly handles the REQs that waited for a port.
func (m *Machine) admitEarly(port uint16) {
	waits := func(e waitingREQ) bool { p, _ := ServicePort(e.req.ServiceID); return p == port }
	for _, e := range m.early {
		if waits(e) {
			m.request(e.at, e.src, e.dst, e.h, e.req)
		}
	}
	m.early = slices.DeleteFunc(m.early, waits)
}

// Started ends Config.Starting: requests for ports that nobody listens on are refused from now on,
// also those that wait.
func (m *Machine) Started() {
	m.cfg.Starting = false
	early := m.early
	m.early = nil
	for _, e := range early {
		m.request(e.at, e.src, e.dst, e.h, e.req)
	}
}

// reqQueue is the queue of the REQs that wait for a place.
type reqQueue struct {
	// reqs[:repeated] were dropped before and have come again; no other REQ replaces them. They
	// are at most half of PeerPendingMax, so new REQs always find places to compete for.
	reqs     []waitingREQ
	repeated int       // the first of reqs, which were dropped before
	due      rdma.Time // of the next round
	taking   bool      // in a round

	dropped []uint32 // marks of dropped REQs by hash; nil if there are none
	key     uint64   // of the hash
}

// mark is the index and the mark of a REQ among the dropped ones.
func (q *reqQueue) mark(e *waitingREQ) (i int, mark uint32) {
	a := e.src.As16()
	h := q.key
	for _, w := range [...]uint64{
		binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]), e.req.GUID,
		uint64(e.req.LocalID)<<32 | uint64(e.req.QPN),
	} {
		h = (h ^ w) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return int(h % droppedMax), uint32(h>>32) | 1
}

// drop drops a REQ of the queue, and remembers it.
func (m *Machine) drop(e *waitingREQ) {
	q := &m.queue
	m.n.DropFull++
	if q.dropped == nil {
		q.dropped, q.key = make([]uint32, droppedMax), m.newTID()
	}
	i, mark := q.mark(e)
	q.dropped[i] = mark
}

// wasDropped reports whether a REQ was dropped before.
func (q *reqQueue) wasDropped(e *waitingREQ) bool {
	if q.dropped == nil {
		return false
	}
	i, mark := q.mark(e)
	return q.dropped[i] == mark
}

// enqueue makes a REQ wait until there may be a place. A flood has no reason to repeat a REQ, and a
// peer that exists has one. So a REQ that was dropped before waits at the front, where no other REQ
// replaces it.
func (m *Machine) enqueue(now, due rdma.Time, e waitingREQ) {
	q := &m.queue
	if len(q.reqs) == 0 {
		q.due = max(due, now+queueEvery)
	}
	i := len(q.reqs)
	if i < m.cfg.PeerPendingMax {
		q.reqs = append(q.reqs, e)
	} else {
		i = q.repeated + int(m.cfg.Random()>>1)%(i-q.repeated)
		m.drop(&q.reqs[i])
		q.reqs[i] = e
	}
	if !q.taking && q.repeated < m.cfg.PeerPendingMax/2 && q.wasDropped(&e) {
		q.reqs[i], q.reqs[q.repeated] = q.reqs[q.repeated], q.reqs[i]
		q.repeated++
	}
}

// takeQueue handles the REQs for which there is a place now, in order. The others stay.
func (m *Machine) takeQueue(now rdma.Time) {
	q := &m.queue
	waited, first := q.reqs, q.repeated
	q.reqs, q.repeated, q.taking = nil, 0, true
	taken := 0
	for i, e := range waited {
		before := len(q.reqs)
		if taken == takeMax {
			q.reqs = append(q.reqs, e)
		} else if m.request(now, e.src, e.dst, e.h, e.req); len(q.reqs) == before {
			taken++
		}
		if i < first {
			q.repeated = len(q.reqs)
		}
	}
	q.taking = false
	if taken == takeMax {
		q.due = now + queueEvery
	}
}
