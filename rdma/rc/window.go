package rc

import "github.com/rstored/rstored/rdma"

// window bounds packets that are under way: those of SENDs and RDMA WRITEs, or those of
// the READ responses that were asked for. An Ethernet without priority flow control drops
// what its queues cannot take, and to go back N over and over makes it worse; so the
// window shrinks at a loss, and where switches mark packets before they have to drop
// them, at a congestion notification, and grows without either.
//
// A short round trip that is as short as it ever was says that no queue has grown: then
// there is room, the window grows by a share of itself, and a loss is more likely damage
// than congestion and costs little. With a queue it is as in TCP (RFC 5681): a step in a
// round trip, and half at a loss. Notifications are answered as DCTCP answers marks (RFC
// 8257 section 3.3): by a share that grows with how many round trips bring one.
type window struct {
	size      int // packets, in units of windowUnit
	most      int
	threshold int // below it the window doubles in a round trip
	arrived   int // packets times their step, since it grew
	before    int // size when the peer fell silent, 0 if it speaks
	mild      int // losses that may be taken for damage until the next half
	fixed     bool

	alpha   int       // share of the round trips with a notification, of alphaOne
	decayed rdma.Time // up to when alpha is
	cutAt   rdma.Time // 0 = never
}

const (
	// windowUnit is a packet. Where many share a queue each has less than one in a round
	// trip; pacing sees to that.
	windowUnit = 16
	// windowMin is the least number of packets that are let out: a loss of the first is
	// noticed by the one behind. sizeMin is the least size.
	windowMin = 2
	sizeMin   = windowUnit / 4
	// windowStart is what a connection begins with; it doubles until the first loss.
	windowStart = 64

	alphaOne   = 1 << 10
	alphaShift = 4 // a round trip moves alpha by a sixteenth

	// growStep is what the window grows by in a round trip. growShift and damageShift are
	// the shares of it that it grows by, and loses by a loss, when there is no queue.
	growStep    = windowUnit / 2
	growShift   = 4
	damageShift = 3
	// mildMax is how many losses in a row may be taken for damage. After a half the round
	// trip is as short as it can be made, and shows whether there was a queue.
	mildMax = 15

	// cutGap is the least time between two reductions.
	cutGap = 50 * rdma.Microsecond
)

// start begins with a window of at most so many packets.
func (w *window) start(most int, fixed bool) {
	most *= windowUnit
	*w = window{size: min(windowStart*windowUnit, most), most: most, threshold: most, fixed: fixed, alpha: alphaOne}
	if fixed {
		w.size = most
	}
}

// packets is how many may be under way.
func (w *window) packets() int { return max(w.size/windowUnit, min(windowMin, w.most/windowUnit)) }

// limited reports whether the network has shown that it takes less than the most.
func (w *window) limited() bool { return w.size < w.most }

// grow takes n packets that have arrived.
func (w *window) grow(n int, queued bool) {
	n = min(n, w.packets()) // after a silence it may be all that was sent before
	switch {
	case w.size >= w.most:
	case w.size < w.threshold:
		w.size = min(w.size+n*windowUnit, w.threshold, w.most)
	default:
		step := growStep
		if !queued {
			step = max(step, w.size>>growShift)
		}
		w.arrived += n * step * windowUnit
		k := w.arrived / w.size
		w.arrived -= k * w.size
		w.size = min(w.size+k, w.most)
	}
}

// cut reports whether the window may be reduced now: what happens within one round trip
// has one cause.
func (w *window) cut(now, rtt rdma.Time) bool {
	if w.fixed || w.cutAt != 0 && now-w.cutAt < max(rtt, cutGap) {
		return false
	}
	w.cutAt = now
	return true
}

func (w *window) reduce(by int) {
	w.size = max(w.size-by, sizeMin)
	w.threshold, w.arrived = w.size, 0
}

// lost takes the loss of a packet that the peer tells of.
func (w *window) lost(now, rtt rdma.Time, queued bool) {
	if !w.cut(now, rtt) {
		return
	}
	if queued || w.mild == 0 {
		w.mild = mildMax
		w.reduce(w.size / 2)
		return
	}
	w.mild--
	w.reduce(w.size >> damageShift)
}

// marked takes a congestion notification, and reports whether it reduced the window.
func (w *window) marked(now, rtt rdma.Time) bool {
	if !w.cut(now, rtt) {
		return false
	}
	w.decay(now, rtt)
	w.reduce(w.size * w.alpha / (2 * alphaOne))
	w.alpha += (alphaOne - w.alpha) >> alphaShift
	return true
}

// decay lets alpha shrink for the round trips since the last notification.
func (w *window) decay(now, rtt rdma.Time) {
	gap := max(rtt, cutGap)
	if w.decayed == 0 {
		w.decayed = now
	}
	for ; now-w.decayed > gap && w.alpha > 0; w.decayed += gap {
		w.alpha -= (w.alpha + 1<<alphaShift - 1) >> alphaShift
	}
	w.decayed = now
}

// silent is called when nothing was heard for a while.
func (w *window) silent() {
	if w.fixed {
		return
	}
	w.before = max(w.before, w.size)
	w.threshold = max(w.before/2, sizeMin)
	w.size, w.arrived = min(windowMin*windowUnit, w.size), 0
}

// spoke is called when something is heard again. If that acknowledges all, the peer was
// only slow, and nothing was lost.
func (w *window) spoke(all bool) {
	if w.before != 0 && all {
		w.size, w.threshold = w.before, w.most
	}
	w.before = 0
}
