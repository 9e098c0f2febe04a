package roce

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// cqDepthMax bounds a completion queue.
const cqDepthMax = 1 << 20

// armed says what the next event of a completion queue is for.
type armed uint8

const (
	disarmed armed = iota
	forSolicited
	forAny
	always
)

// cq is a completion queue. Completions that do not fit stay in the engines of their queue pairs,
// at most one for each posted request, until Poll makes room. So no completion is lost. It
// implements rdma.CQ.
type cq struct {
	s       *shard
	depth   int
	ring    []rdma.WC // grows up to depth
	head    int       // oldest completion
	n       int       // completions in ring
	onEvent func()
	armed   armed
	pending bool        // in shard.events
	waiting []harvester // have completions that did not fit
}

// harvester is a queue pair of any type, as its completion queues use it.
type harvester interface {
	// harvest moves completions from the engine to the queues. If a queue is full, the queue pair
	// enters itself in cq.waiting of that queue.
	harvest()
	gone() bool // destroyed
}

func checkDepth(depth int) error {
	if depth <= 0 || depth > cqDepthMax {
		return fmt.Errorf("%w: a completion queue of %d entries; the most is %d", rdma.ErrInvalidWR, depth, cqDepthMax)
	}
	return nil
}

// Poll implements rdma.CQ.
func (c *cq) Poll(dst []rdma.WC) int {
	total := 0
	for {
		for total < len(dst) && c.n > 0 {
			m := copy(dst[total:], c.ring[c.head:min(c.head+c.n, len(c.ring))])
			total += m
			c.n -= m
			if c.head += m; c.head == len(c.ring) {
				c.head = 0
			}
		}
		if total == len(dst) || len(c.waiting) == 0 {
			return total
		}
		w := c.waiting
		c.waiting = nil
		for i, q := range w {
			if !q.gone() && (i == 0 || w[i-1] != q) {
				q.harvest()
			}
		}
		if c.n == 0 {
			return total
		}
	}
}

// Arm implements rdma.CQ.
//
//	armed           a completion without SE    with SE, or an error    then
//	disarmed        no event                   no event
//	forSolicited    no event                   event                   disarmed
//	forAny          event                      event                   disarmed
//	always          event                      event                   always
func (c *cq) Arm(solicited bool) {
	switch {
	case c.armed == always:
	case !solicited:
		c.armed = forAny
	case c.armed == disarmed:
		c.armed = forSolicited
	}
}

// Close implements rdma.CQ. The garbage collector frees the queue.
func (c *cq) Close() { c.onEvent = func() {} }

// Resize implements rdma.CQ.
func (c *cq) Resize(depth int) error {
	if err := checkDepth(depth); err != nil {
		return err
	}
	if depth < c.n {
		return fmt.Errorf("%w: %d completions do not fit into %d entries", rdma.ErrInvalidWR, c.n, depth)
	}
	c.depth = depth
	if len(c.ring) > depth {
		c.move(depth)
	}
	return nil
}

// move makes a ring of another size, in which the completions fit.
func (c *cq) move(size int) {
	ring := make([]rdma.WC, size)
	k := copy(ring, c.ring[c.head:min(c.head+c.n, len(c.ring))])
	copy(ring[k:], c.ring[:c.n-k])
	c.ring, c.head = ring, 0
}

// room returns space for completions, none if the queue is full. added follows.
func (c *cq) room() []rdma.WC {
	if c.n == len(c.ring) {
		if len(c.ring) == c.depth {
			return nil
		}
		c.move(min(c.depth, max(16, 2*len(c.ring))))
	}
	tail := c.head + c.n
	if tail >= len(c.ring) {
		return c.ring[tail-len(c.ring) : c.head]
	}
	return c.ring[tail:]
}

// added adds the completions that were written to the space of room, and makes the event that Arm
// asked for.
func (c *cq) added(wcs []rdma.WC) {
	c.n += len(wcs)
	if len(wcs) == 0 || c.pending || c.onEvent == nil || c.armed == disarmed ||
		c.armed == forSolicited && !solicited(wcs) {
		return
	}
	if c.armed != always {
		c.armed = disarmed
	}
	c.pending = true
	c.s.events.Add(c)
}

// fill moves completions from an engine to the queue. It reports false if the queue is full before
// the engine is empty.
func (c *cq) fill(poll func([]rdma.WC) int) bool {
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

// solicited reports whether one of the completions is an error, or of a message with the
// solicited-event bit.
func solicited(wcs []rdma.WC) bool {
	for i := range wcs {
		if wcs[i].Flags&rdma.WithEvent != 0 || wcs[i].Status != rdma.Success {
			return true
		}
	}
	return false
}
