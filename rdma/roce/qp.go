package roce

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wq"
)

// Limits of a queue pair.
const (
	workRequestsMax = 1 << 16
	inlineMax       = 1 << 10
	// qpnRest is how long a QP number is not used again: longer than a peer
	// keeps the identity of a connection that has ended (TIMEWAIT), and than a
	// packet lives.
	qpnRest = 10 * rdma.Second
	// qpnMin leaves out QP0, QP1 and numbers that other devices give out first.
	qpnMin = 64
)

// qp is a queue pair: an engine and its place in a shard. It implements
// rdma.QP.
type qp struct {
	s     *shard
	rc    *rc.QP
	num   uint32
	caps  rdma.QPCaps
	since rdma.Time
	send  *cq
	recv  *cq
	srq   *srq // nil if it has receives of its own
	on    func(rdma.QPEvent)
	told  rdma.QPState // what on was called for
	conn  *conn        // nil for queue pairs that CM knows nothing of
	timer timer
	dirty bool // in shard.dirty
	ready bool // in shard.ready
	// owing: an acknowledgement waits, and has for waited turns.
	owing  bool
	waited int
	quiet  bool // the connection need not be told of ERR any more
	dead   bool
}

var _ rdma.QP = (*qp)(nil)

// parts is what a queue pair is made of.
type parts struct {
	pd   *pd
	send *cq
	recv *cq
	srq  *srq // nil if it has receives of its own
}

// source is the engine's side of the shared receive queue, nil for none.
func (p *parts) source() *wq.SRQ {
	if p.srq == nil {
		return nil
	}
	return p.srq.rc
}

// reserve checks what a queue pair is to be made of, and counts it.
func (s *shard) reserve(c *rdma.QPConfig) (k parts, err error) {
	p, ok := c.PD.(*pd)
	if !ok || p.d != s.dev {
		return k, fmt.Errorf("%w: the queue pair's protection domain belongs to another device", rdma.ErrInvalidWR)
	}
	send, ok1 := c.SendCQ.(*cq)
	recv, ok2 := c.RecvCQ.(*cq)
	if !ok1 || !ok2 || send.s != s || recv.s != s {
		return k, fmt.Errorf("%w: the queue pair's completion queues belong to another loop", rdma.ErrInvalidWR)
	}
	if c.Caps.MaxSendWR < 0 || c.Caps.MaxRecvWR < 0 || c.Caps.MaxSendWR > workRequestsMax || c.Caps.MaxRecvWR > workRequestsMax {
		return k, fmt.Errorf("%w: queues of %d and %d requests; the most is %d", rdma.ErrInvalidWR, c.Caps.MaxSendWR, c.Caps.MaxRecvWR, workRequestsMax)
	}
	if c.Caps.MaxInline < 0 || c.Caps.MaxInline > inlineMax {
		return k, fmt.Errorf("%w: %d bytes inline; the most is %d", rdma.ErrInvalidWR, c.Caps.MaxInline, inlineMax)
	}
	var shared *srq
	if c.SRQ != nil {
		if shared, ok = c.SRQ.(*srq); !ok || shared.s != s || shared.pd != p.id || shared.closed {
			return k, fmt.Errorf("%w: the shared receive queue belongs to another loop or protection domain, or is closed", rdma.ErrInvalidWR)
		}
	}
	if s.dev.qps.Add(1) > int64(s.dev.cfg.QPMax) {
		s.dev.qps.Add(-1)
		return k, fmt.Errorf("%w: the device has %d queue pairs", rdma.ErrNoResources, s.dev.cfg.QPMax)
	}
	if shared != nil {
		shared.users++
	}
	return parts{pd: p, send: send, recv: recv, srq: shared}, nil
}

// release undoes reserve, and lets the number rest.
func (s *shard) release(num uint32, shared *srq) {
	if shared != nil {
		shared.users--
	}
	if s.resting.len() == restingMax {
		delete(s.rests, s.resting.pop().qpn)
	}
	s.resting.v = append(s.resting.v, rested{num, s.now + qpnRest})
	s.rests[num] = true
	s.dev.qps.Add(-1)
}

func (s *shard) newQP(c rdma.QPConfig) (*qp, error) { return s.newQPNumbered(c, s.newQPN()) }

// newQPNumbered is newQP with a number that is free.
func (s *shard) newQPNumbered(c rdma.QPConfig, num uint32) (*qp, error) {
	if c.Type != rdma.RC {
		return nil, fmt.Errorf("%w: a connection with a queue pair of type %v", rdma.ErrInvalidWR, c.Type)
	}
	k, err := s.reserve(&c)
	if err != nil {
		return nil, err
	}
	q := &qp{s: s, num: num, caps: c.Caps, send: k.send, recv: k.recv, srq: k.srq, on: c.OnEvent, since: s.now}
	q.timer.qp = q
	q.rc = rc.New(rc.Config{
		Num: q.num, PD: k.pd.id, Mem: &s.dev.mem, Caps: c.Caps, SRQ: k.source(),
		CNPTrafficClass: s.dev.cfg.CNPDSCP << dscpShift,
	})
	s.qps[q.num] = q
	return q, nil
}

// newQPN finds a random free number whose low bits name the shard.
func (s *shard) newQPN() uint32 {
	for s.resting.len() > 0 && s.resting.oldest().until <= s.now {
		delete(s.rests, s.resting.pop().qpn)
	}
	mask := uint32(len(s.dev.shards) - 1)
	for {
		n := s.dev.random.uint32()&wire.PSNMask&^mask | uint32(s.index)
		if n < qpnMin || n == wire.PSNMask || s.qps[n] != nil || s.uds[n] != nil || s.rests[n] {
			continue
		}
		return n
	}
}

// rested is a QP number that was used lately.
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
	r.head++
	if r.head == len(r.v) {
		r.v, r.head = r.v[:0], 0
	}
	return e
}

// restingMax bounds the QP numbers that are remembered after their use.
const restingMax = 1 << 16

// Num implements rdma.QP.
func (q *qp) Num() uint32 { return q.num }

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
		return fmt.Errorf("%w: %d READs started and %d served at once; the most is %d", rdma.ErrInvalidWR, a.MaxRdAtomic, a.MaxDestRd, MaxRdAtomic)
	}
	if err := q.s.dev.initPKey(&a); err != nil {
		return err
	}
	err := q.rc.Modify(q.s.now, a)
	q.s.touch(q)
	return err
}

// initPKey checks the P_Key of a transition to INIT; 0 is the first of the table.
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
		q.s.touch(q)
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
	s.timers.cancel(&q.timer)
	delete(s.qps, q.num)
	s.stats.RC.Add(q.rc.Counters()) // what it still says, a NAK at most, is not in them
	if s.last == q {
		s.last = nil
	}
	s.release(q.num, q.srq)
}

// watch tells the user of events beside completions.
func (q *qp) watch() {
	if q.srq != nil {
		q.srq.watch()
	}
	if q.on == nil {
		return
	}
	state := q.rc.State()
	var e rdma.QPEvent
	switch {
	case state == rdma.StateSQD && q.rc.Drained():
		e = rdma.SQDrained
	case state == rdma.StateErr && q.srq != nil:
		e = rdma.LastWQEReached
	}
	if q.told == state || e == 0 {
		if state != rdma.StateSQD && state != rdma.StateErr {
			q.told = state
		}
		return
	}
	q.told = state
	q.s.later = append(q.s.later, func() {
		if !q.dead {
			q.on(e)
		}
	})
}

// speaks reports whether packets of the queue pair may still be sent. One whose user
// destroyed it because it failed sends the NAK that says why.
func (q *qp) speaks() bool { return !q.dead || q.rc.Parting() }

// harvest moves completions to the queues, as far as there is room. A queue
// that is full asks again when it was polled.
func (q *qp) harvest() {
	send, recv := q.rc.Pending()
	if send && !fill(q.send, q.rc.PollSend) {
		q.send.waiting = append(q.send.waiting, q)
	}
	if recv && !fill(q.recv, q.rc.PollRecv) {
		q.recv.waiting = append(q.recv.waiting, q)
	}
}

func (q *qp) gone() bool { return q.dead }

// fill moves completions into c and reports whether that was all.
func fill(c *cq, poll func([]rdma.WC) int) bool {
	for {
		dst := c.room()
		if len(dst) == 0 {
			return false
		}
		n := poll(dst)
		c.added(dst[:n])
		if n < len(dst) {
			return true
		}
	}
}
