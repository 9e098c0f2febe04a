//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// cq is a completion queue. It implements rdma.CQ.
//
// There are two kinds. If the user does not arm the queue, the loop polls the device and moves the
// completions into ring, which grows with the number of posted requests. If the user arms the queue
// (manual), Poll polls the device. ring then has only the completions that a resize has left there,
// and those of requests that did not reach the device.
//
//	                       Armed is false                    Armed is true (manual)
//	completions wait in    ring                              the device
//	the device is polled   by the loop, in its turn          by Poll
//	OnEvent is called      when the loop has added some      when the device makes an event
//	the device is armed    when the loop stops polling       when the user calls Arm
//
//	depth <= cqe, and needs <= cqe: the queue of the device never overflows
type cq struct {
	l       *loop
	cq      *C.struct_ibv_cq
	cookie  uint64
	cqe     int // entries of the device's queue
	needs   int // most requests of the queue pairs at once
	manual  bool
	onEvent func()

	ring    []rdma.WC
	head    int  // oldest completion in ring
	owed    bool // ring has completions for which the device makes no event
	isHot   bool // in loop.hot
	pending bool // in loop.events
	users   int  // queue pairs; one that uses the queue for sends and receives counts twice
	closed  bool // by its user
	dead    bool // destroyed
}

// completionsMin is the least size of a queue. It saves most resizes.
const completionsMin = 256

// CreateCQ implements rdma.Device.
func (d *Device) CreateCQ(lp rdma.Loop, o rdma.CQOptions) (rdma.CQ, error) {
	l, err := d.loopOf(lp)
	if err != nil {
		return nil, err
	}
	if o.Depth <= 0 || d.limits.CQEs > 0 && o.Depth > d.limits.CQEs {
		return nil, fmt.Errorf("%w: a completion queue of %d entries; the most of %s is %d", rdma.ErrInvalidWR, o.Depth,
			d.name, d.limits.CQEs)
	}
	c := &cq{l: l, manual: o.Armed, onEvent: o.OnEvent}
	c.cookie = newCookie(c)
	n := max(o.Depth, completionsMin)
	if d.quirks.fixedCQs {
		n = max(8*o.Depth, 4*completionsMin) // a guess at what the queue pairs will need
	}
	n = min(n, d.limits.CQEs)
	if c.cq, err = C.rs_create_cq(d.ctx, C.int(n), C.uint64_t(c.cookie), l.comp); c.cq == nil {
		dropCookie(c.cookie)
		return nil, fmt.Errorf("%w: creating a completion queue of %d entries of %s: %w", rdma.ErrNoResources, n, d.name,
			cause(err))
	}
	c.cqe = int(c.cq.cqe)
	l.cqs[c.cookie] = c
	if !c.manual {
		c.event() // polls and then arms it
	}
	return c, nil
}

func (c *cq) home() *loop { return c.l }

// async implements eventful.
func (c *cq) async(kind int) {
	if kind == C.IBV_EVENT_CQ_ERR {
		c.l.dev.log.Error("a completion queue has failed: its connections hang until their peers give up",
			"device", c.l.dev.name, "entries", c.cqe)
	}
}

// event handles an event of the device for new completions.
func (c *cq) event() {
	switch {
	case c.dead:
	case c.manual:
		c.notify()
	case !c.isHot:
		c.isHot = true
		c.l.hot = append(c.l.hot, c)
	}
}

// notify queues the callback of the user.
func (c *cq) notify() {
	if !c.pending && !c.closed && c.onEvent != nil {
		c.pending = true
		c.l.events.Add(c)
	}
}

// Close implements rdma.CQ.
func (c *cq) Close() {
	c.closed = true
	if c.users == 0 {
		c.destroy()
	}
}

// fetch polls until the device has no more completions, or pollTurn: other queues of the loop have
// their turn then. It moves them to the ring, and reports whether there were any.
func (c *cq) fetch() bool {
	total := 0
	for total < pollTurn {
		n := int(C.rs_poll(c.cq, &c.l.wcs[0], pollMax))
		c.l.n.polls.Add(1)
		for i := range max(n, 0) {
			var wc rdma.WC
			if c.l.translate(&c.l.wcs[i], &wc) {
				c.add(wc)
			}
		}
		total += max(n, 0)
		if n < pollMax {
			break
		}
	}
	return total > 0
}

// push adds a completion for a request that did not reach the device.
func (c *cq) push(wc rdma.WC) {
	c.add(wc)
	c.owed = c.manual
}

// add adds a completion to the ring, and notifies a user who does not arm the queue.
func (c *cq) add(wc rdma.WC) {
	if c.head > 0 && len(c.ring) == cap(c.ring) {
		c.ring = c.ring[:copy(c.ring, c.ring[c.head:])]
		c.head = 0
	}
	c.ring = append(c.ring, wc)
	if !c.manual {
		c.notify()
	}
}

// Poll implements rdma.CQ.
func (c *cq) Poll(dst []rdma.WC) int {
	k := copy(dst, c.ring[c.head:])
	if c.head += k; c.head == len(c.ring) {
		c.ring, c.head = c.ring[:0], 0
	}
	for c.manual && k < len(dst) && !c.dead {
		n := int(C.rs_poll(c.cq, &c.l.wcs[0], C.int(min(pollMax, len(dst)-k))))
		c.l.n.polls.Add(1)
		if n <= 0 {
			break
		}
		for i := range n {
			if c.l.translate(&c.l.wcs[i], &dst[k]) {
				k++
			}
		}
	}
	return k
}

// Arm implements rdma.CQ.
func (c *cq) Arm(solicited bool) {
	if !c.manual || c.dead {
		return
	}
	if c.owed {
		c.owed = false
		c.notify()
		return
	}
	n := C.int(0)
	if solicited && !c.l.dev.iwarp { // iWARP has no such events: any completion makes one
		n = 1
	}
	C.rs_arm(c.cq, n)
}

// Resize implements rdma.CQ.
func (c *cq) Resize(depth int) error {
	if depth <= 0 || c.l.dev.limits.CQEs > 0 && depth > c.l.dev.limits.CQEs {
		return fmt.Errorf("%w: a completion queue of %d entries; the most is %d", rdma.ErrInvalidWR, depth,
			c.l.dev.limits.CQEs)
	}
	c.fetch()
	if n := len(c.ring) - c.head; depth < n {
		return fmt.Errorf("%w: %d completions do not fit into %d entries", rdma.ErrInvalidWR, n, depth)
	}
	n := max(depth, c.needs, min(completionsMin, c.l.dev.limits.CQEs))
	if n > c.cqe || n < c.cqe && !c.l.dev.quirks.fixedCQs {
		if err := c.resize(n); err != nil {
			return err
		}
	}
	return nil
}

func (c *cq) resize(n int) error {
	if e := C.rs_resize_cq(c.cq, C.int(n)); e != 0 {
		return fmt.Errorf("%w: %s does not resize a completion queue of %d entries to %d: %w", rdma.ErrInvalidWR,
			c.l.dev.name, c.cqe, n, errno(e))
	}
	c.cqe = int(c.cq.cqe)
	return nil
}

// reserve makes room for the completions of a queue pair, and release undoes that. A completion for
// which there is no room is an overflow, and ends every queue pair of the queue.
func (c *cq) reserve(n int) error {
	if c.needs+n > c.cqe {
		if err := c.resize(max(c.needs+n, min(2*c.cqe, c.l.dev.limits.CQEs))); err != nil {
			return fmt.Errorf("%w: %w", rdma.ErrNoResources, err)
		}
	}
	c.needs += n
	c.users++
	return nil
}

func (c *cq) release(n int) {
	c.needs -= n
	c.users--
	if c.closed && c.users == 0 {
		c.destroy()
	}
}

// destroy destroys the queue. No queue pair uses it any more, or the loop ends. Completions that
// are left in the ring are lost with the queue.
func (c *cq) destroy() {
	if c.dead {
		return
	}
	c.dead = true
	dropCookie(c.cookie)
	delete(c.l.cqs, c.cookie)
	C.rs_destroy_cq(c.cq)
}
