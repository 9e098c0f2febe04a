package roce

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/eventloop"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wq"
)

// limits bound the queue pairs of a device.
var limits = rdma.Limits{WRs: workRequestsMax, Inline: inlineMax}

const (
	workRequestsMax = 1 << 16
	inlineMax       = 1 << 10
	// qpnRest is how long a QP number is not given out again after its use. It is longer than a
	// peer remembers a connection that has ended (TIMEWAIT), and longer than a packet lives.
	qpnRest = 10 * rdma.Second
	// restingMax bounds the QP numbers that rest.
	restingMax = 1 << 16
	// qpnMin leaves out QP0, QP1 and the numbers that other devices give out first.
	qpnMin = 64
)

// qpBase is what the queue pairs of both types have in common: their place in a shard.
type qpBase struct {
	s        *shard
	num      uint32
	pd       *pd
	caps     rdma.QPCaps
	since    rdma.Time
	send     *cq
	recv     *cq
	srq      *srq // nil if the queue pair has receives of its own
	onEvent  func(rdma.QPEvent)
	reported rdma.QPState // for which onEvent was called
	dirty    bool         // in shard.dirty or shard.udDirty
	ready    bool         // in shard.ready or shard.udReady
	dead     bool         // destroyed
}

// qp is a queue pair of a reliable connection: an engine and its place in a shard. It implements
// rdma.QP.
type qp struct {
	qpBase
	rc    *rc.QP
	conn  *conn // nil if the user connects the queue pair without CM
	timer eventloop.Timer
	// owing: an acknowledgement is postponed, and has been for waited turns.
	owing  bool
	waited int
	quiet  bool // the connection knows of the state ERR, or has caused it
}

var _ rdma.QP = (*qp)(nil)

// newBase checks the configuration of a queue pair, and counts the queue pair as a user of the
// device and of the shared receive queue. release undoes that.
func (s *shard) newBase(c *rdma.QPConfig, num uint32) (b qpBase, err error) {
	p, ok := c.PD.(*pd)
	if !ok || p.d != s.dev {
		return b, fmt.Errorf("%w: the queue pair's protection domain belongs to another device", rdma.ErrInvalidWR)
	}
	send, ok1 := c.SendCQ.(*cq)
	recv, ok2 := c.RecvCQ.(*cq)
	if !ok1 || !ok2 || send.s != s || recv.s != s {
		return b, fmt.Errorf("%w: the queue pair's completion queues belong to another loop", rdma.ErrInvalidWR)
	}
	if err := limits.Check(&c.Caps); err != nil {
		return b, err
	}
	var shared *srq
	if c.SRQ != nil {
		if shared, ok = c.SRQ.(*srq); !ok || shared.s != s || shared.pd != p.id || shared.closed {
			return b, fmt.Errorf("%w: the shared receive queue belongs to another loop or protection domain, or is closed",
				rdma.ErrInvalidWR)
		}
	}
	if s.dev.qps.Add(1) > int64(s.dev.cfg.QPMax) {
		s.dev.qps.Add(-1)
		return b, fmt.Errorf("%w: the device has %d queue pairs already", rdma.ErrNoResources, s.dev.cfg.QPMax)
	}
	if shared != nil {
		shared.users++
	}
	return qpBase{
		s: s, num: num, pd: p, caps: c.Caps, since: s.now, send: send, recv: recv, srq: shared,
		onEvent: c.OnEvent,
	}, nil
}

// receives is the engine's side of the shared receive queue, nil for none.
func (b *qpBase) receives() *wq.SRQ {
	if b.srq == nil {
		return nil
	}
	return b.srq.rc
}

// release undoes newBase. The number rests from now on.
func (b *qpBase) release() {
	if b.srq != nil {
		b.srq.users--
	}
	s := b.s
	if s.resting.len() == restingMax {
		delete(s.isResting, s.resting.pop().qpn)
	}
	s.resting.v = append(s.resting.v, rested{b.num, s.now + qpnRest})
	s.isResting[b.num] = true
	s.dev.qps.Add(-1)
}

// Num implements rdma.QP.
func (b *qpBase) Num() uint32 { return b.num }

func (b *qpBase) gone() bool { return b.dead }

// watch reports the events of a queue pair in the given state to its user.
func (b *qpBase) watch(state rdma.QPState, drained bool) {
	if b.srq != nil {
		b.srq.watch()
	}
	if b.onEvent == nil || b.reported == state {
		return
	}
	var e rdma.QPEvent
	switch {
	case state == rdma.StateSQD && drained:
		e = rdma.SQDrained
	case state == rdma.StateErr && b.srq != nil:
		e = rdma.LastWQEReached
	case state == rdma.StateSQD:
		return // until it is drained
	}
	b.reported = state
	if e == 0 {
		return
	}
	b.s.later.Add(func() {
		if !b.dead {
			b.onEvent(e)
		}
	})
}

func (s *shard) newQP(c rdma.QPConfig) (*qp, error) { return s.newQPNumbered(c, s.newQPN()) }

// newQPNumbered is newQP with a number that is free.
func (s *shard) newQPNumbered(c rdma.QPConfig, num uint32) (*qp, error) {
	if c.Type != rdma.RC {
		return nil, fmt.Errorf("%w: queue pairs of type %v cannot be connected", rdma.ErrInvalidWR, c.Type)
	}
	b, err := s.newBase(&c, num)
	if err != nil {
		return nil, err
	}
	q := &qp{qpBase: b}
	q.timer.Fn = q.expire
	q.rc = rc.New(rc.Config{
		Num: num, PD: b.pd.id, Mem: &s.dev.mem, Caps: c.Caps, SRQ: b.receives(),
		CNPTrafficClass: s.dev.cfg.CNPDSCP << dscpShift,
	})
	s.qps[num] = q
	return q, nil
}

// newQPN finds a free number. It is random, so that a host which does not see the packets of a
// connection cannot guess it. Its low bits name the shard: the kernel chooses the socket by them.
func (s *shard) newQPN() uint32 {
	for s.resting.len() > 0 && s.resting.oldest().until <= s.now {
		delete(s.isResting, s.resting.pop().qpn)
	}
	mask := uint32(len(s.dev.shards) - 1)
	for {
		n := s.dev.random.uint32()&wire.PSNMask&^mask | uint32(s.index)
		if n < qpnMin || n == wire.PSNMask || s.qps[n] != nil || s.uds[n] != nil || s.isResting[n] {
			continue
		}
		return n
	}
}

// rested is a QP number that is not given out before a time.
type rested struct {
	qpn   uint32
	until rdma.Time
}

// restQueue is a queue of QP numbers in the order of their time.
type restQueue struct {
	v    []rested
	head int
}

func (r *restQueue) len() int        { return len(r.v) - r.head }
func (r *restQueue) oldest() *rested { return &r.v[r.head] }
func (r *restQueue) pop() rested {
	e := r.v[r.head]
	if r.head++; r.head == len(r.v) {
		r.v, r.head = r.v[:0], 0
	}
	return e
}

// State implements rdma.QP.
func (q *qp) State() rdma.QPState { return q.rc.State() }

// Modify implements rdma.QP.
func (q *qp) Modify(a rdma.QPAttr) error {
	if q.dead {
		return rdma.ErrClosed
	}
	if a.State == rdma.StateRTR && !a.LocalAddr.IsValid() {
		a.LocalAddr = q.s.dev.ip
	}
	if a.MaxRdAtomic > MaxRdAtomic || a.MaxDestRd > MaxRdAtomic {
		return fmt.Errorf("%w: %d READs started and %d served at once; the most is %d", rdma.ErrInvalidWR, a.MaxRdAtomic,
			a.MaxDestRd, MaxRdAtomic)
	}
	if err := q.s.dev.initPKey(&a); err != nil {
		return err
	}
	err := q.rc.Modify(q.s.now, a)
	q.s.touch(q)
	return err
}

// fail moves the queue pair to ERR: its requests are flushed.
func (q *qp) fail() {
	_ = q.rc.Modify(q.s.now, rdma.QPAttr{State: rdma.StateErr}) // legal from every state (IBTA 10.3.1)
	q.s.touch(q)
}

// initPKey checks the P_Key of a transition to INIT. 0 means the first of the table.
func (d *Device) initPKey(a *rdma.QPAttr) error {
	if a.State != rdma.StateInit {
		return nil
	}
	table := *d.pkeys.Load()
	if a.PKey == 0 {
		a.PKey = table[0]
	}
	if table.of(a.PKey) != a.PKey {
		return fmt.Errorf("%w: the partition key %#04x is not in the device's table", rdma.ErrInvalidWR, a.PKey)
	}
	return nil
}

// PostSend implements rdma.QP.
func (q *qp) PostSend(wrs []rdma.SendWR) error {
	if q.dead {
		return rdma.ErrClosed
	}
	err := q.rc.PostSend(q.s.now, wrs)
	q.s.touch(q)
	return err
}

// PostRecv implements rdma.QP.
func (q *qp) PostRecv(wrs []rdma.RecvWR) error {
	if q.dead {
		return rdma.ErrClosed
	}
	err := q.rc.PostRecv(q.s.now, wrs)
	if q.rc.State() == rdma.StateErr {
		q.s.touch(q) // the receives are flushed at once
	}
	return err
}

// Destroy implements rdma.QP.
func (q *qp) Destroy() {
	if q.dead {
		return
	}
	q.dead = true
	s := q.s
	s.owesNot(q)
	s.timers.Cancel(&q.timer)
	delete(s.qps, q.num)
	s.stats.RC.Add(q.rc.Counters()) // without the final NAK, see speaks
	if s.last == q {
		s.last = nil
	}
	q.release()
}

// speaks reports whether packets of the queue pair may still be sent. A queue pair that failed, and
// that its user destroyed for that, still sends the NAK that says why.
func (q *qp) speaks() bool { return !q.dead || q.rc.Parting() }

// harvest implements harvester.
func (q *qp) harvest() {
	send, recv := q.rc.Pending()
	if send && !q.send.fill(q.rc.PollSend) {
		q.send.waiting = append(q.send.waiting, q)
	}
	if recv && !q.recv.fill(q.rc.PollRecv) {
		q.recv.waiting = append(q.recv.waiting, q)
	}
}
