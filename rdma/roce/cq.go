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

// cq is a completion queue. Completions that do not fit stay with their queue
// pairs, which hold one for each posted request at most, until Poll makes
// room: a completion is never lost.
type cq struct {
	s       *shard
	depth   int
	ring    []rdma.WC // grows up to depth
	head    int
	n       int
	onEvent func()
	armed   armed
	pending bool        // in shard.events
	waiting []harvester // have completions that did not fit
}

// harvester is a queue pair of any type, as its completion queues see it.
type harvester interface {
	harvest()
	gone() bool
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
		k := 0
		for k < len(dst) && c.n > 0 {
			m := copy(dst[k:], c.ring[c.head:min(c.head+c.n, len(c.ring))])
			k += m
			c.head += m
			c.n -= m
			if c.head == len(c.ring) {
				c.head = 0
			}
		}
		total += k
		dst = dst[k:]
		if len(dst) == 0 || len(c.waiting) == 0 {
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
func (c *cq) Arm(solicited bool) {
	switch {
	case c.armed == always:
	case !solicited:
		c.armed = forAny
	case c.armed == disarmed:
		c.armed = forSolicited
	}
}

// Close implements rdma.CQ. There is nothing to let go of but what the collector does.
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

// move gives the ring another size, which takes what is in it.
func (c *cq) move(size int) {
	ring := make([]rdma.WC, size)
	k := copy(ring, c.ring[c.head:min(c.head+c.n, len(c.ring))])
	copy(ring[k:], c.ring[:c.n-k])
	c.ring, c.head = ring, 0
}

// room returns space for completions to be written to, at most want; none if
// the queue is full. Follow with added.
func (c *cq) room() []rdma.WC {
	if c.n == len(c.ring) {
		if len(c.ring) == c.depth {
			return nil
		}
		c.move(min(c.depth, max(16, 2*len(c.ring))))
	}
	tail := c.head + c.n
	if tail >= len(c.ring) {
		tail -= len(c.ring)
		return c.ring[tail:c.head]
	}
	return c.ring[tail:]
}

// added says that the completions were written to what room returned.
func (c *cq) added(wcs []rdma.WC) {
	c.n += len(wcs)
	if len(wcs) == 0 || c.pending || c.onEvent == nil {
		return
	}
	switch c.armed {
	case disarmed:
		return
	case forSolicited:
		if !solicited(wcs) {
			return
		}
	}
	if c.armed != always {
		c.armed = disarmed
	}
	c.pending = true
	c.s.events = append(c.s.events, c)
}

// solicited reports whether one of the completions is an event that its peer asked for,
// or an error.
func solicited(wcs []rdma.WC) bool {
	for i := range wcs {
		if wcs[i].Flags&rdma.WithEvent != 0 || wcs[i].Status != rdma.Success {
			return true
		}
	}
	return false
}
