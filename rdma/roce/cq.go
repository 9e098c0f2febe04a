package roce

import "github.com/rstored/rstored/rdma"

// cqDepthMax bounds a completion queue.
const cqDepthMax = 1 << 20

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
	pending bool  // in shard.events
	waiting []*qp // have completions that did not fit
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
			if !q.dead && (i == 0 || w[i-1] != q) {
				q.harvest()
			}
		}
		if c.n == 0 {
			return total
		}
	}
}

// room returns space for completions to be written to, at most want; none if
// the queue is full. Follow with added.
func (c *cq) room() []rdma.WC {
	if c.n == len(c.ring) {
		if len(c.ring) == c.depth {
			return nil
		}
		ring := make([]rdma.WC, min(c.depth, max(16, 2*len(c.ring))))
		k := copy(ring, c.ring[c.head:])
		copy(ring[k:], c.ring[:c.head])
		c.ring, c.head = ring, 0
	}
	tail := c.head + c.n
	if tail >= len(c.ring) {
		tail -= len(c.ring)
		return c.ring[tail:c.head]
	}
	return c.ring[tail:]
}

// added says that n completions were written to what room returned.
func (c *cq) added(n int) {
	c.n += n
	if n > 0 && !c.pending && c.onEvent != nil {
		c.pending = true
		c.s.events = append(c.s.events, c)
	}
}
