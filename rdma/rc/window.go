package rc

import "github.com/rstored/rstored/rdma"

// window is a congestion window. It bounds the packets in flight: those of SENDs and RDMA WRITEs,
// or those of the READ responses that were requested.
//
// An Ethernet without priority flow control drops what its queues cannot take, and go-back-N makes
// this worse: each loss sends a whole window again. So the window shrinks at a loss, and at a
// congestion notification before there is a loss, and grows otherwise.
//
//   - While the round trip is as short as it ever was, no queue has grown. Then the window grows by
//     a share of itself, and a loss is probably damage and costs little.
//   - With a queue it behaves as in TCP (RFC 5681): one step per round trip, half at a loss.
//   - Notifications are answered as DCTCP answers marks (RFC 8257 section 3.3): the window
//     shrinks by a share that grows with the share of round trips that have one.
//
// In detail:
//
//	event                          size                              threshold
//	ACK, size below threshold      doubles in a round trip
//	ACK, otherwise                 + 1/2 packet in a round trip, or
//	                               + 1/16 of it without a queue
//	loss, with a queue             / 2                               size
//	loss, without a queue          - 1/8; / 2 after mildMax losses   size
//	notification                   - alpha / 2                       size
//	timeout                        2 packets                         1/2 of the size before
//	all acknowledged after that    the size before                   none
type window struct {
	size      int // packets, in units of windowUnit
	most      int // bound of size
	threshold int // slow start threshold: below it the window doubles in a round trip
	arrived   int // packets times their step, since it grew
	before    int // size before a timeout; 0 if there was none since the last response
	mild      int // losses that may still be taken for damage
	fixed     bool

	alpha   int       // share of the round trips with a notification, in units of 1/alphaOne
	decayed rdma.Time // the time of alpha
	cutAt   rdma.Time // of the last reduction; 0 = never
}

const (
	// windowUnit is the size of one packet. When many connections share a queue, each may have
	// less than one packet per round trip; pacing makes that possible.
	windowUnit = 16
	// windowMin is the least number of packets in flight: the second one shows the loss of the
	// first. sizeMin is the least size.
	windowMin = 2
	sizeMin   = windowUnit / 4
	// windowStart is the initial window in packets; it doubles until the first loss.
	windowStart = 64

	alphaOne   = 1 << 10
	alphaShift = 4 // a round trip moves alpha by a sixteenth

	// growStep is the growth per round trip. Without a queue, growShift and damageShift are the
	// shares by which the window grows per round trip and shrinks by a loss.
	growStep    = windowUnit / 2
	growShift   = 4
	damageShift = 3
	// mildMax is the number of losses in a row that may be taken for damage. Then the window is
	// halved once; the round trip after that shows whether there was a queue.
	mildMax = 15

	// cutGap is the least time between two reductions.
	cutGap = 50 * rdma.Microsecond
)

// start initializes a window of at most most packets.
func (w *window) start(most int, fixed bool) {
	most *= windowUnit
	*w = window{size: min(windowStart*windowUnit, most), most: most, threshold: most, fixed: fixed, alpha: alphaOne}
	if fixed {
		w.size = most
	}
}

// widen raises the bound to most packets.
func (w *window) widen(most int) {
	if w.threshold == w.most { // there was no congestion
		w.threshold = most * windowUnit
	}
	w.most = most * windowUnit
}

// packets is how many packets may be in flight.
func (w *window) packets() int { return max(w.size/windowUnit, min(windowMin, w.most/windowUnit)) }

// limited reports whether the window is below its bound: in slow start, or after congestion.
func (w *window) limited() bool { return w.size < w.most }

// grow handles the acknowledgement of n packets.
func (w *window) grow(n int, queued bool) {
	n = min(n, w.packets()) // after a timeout one ACK can be for all that was in flight before
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

// cut reports whether the window may be reduced now. All losses and marks within one round trip
// have one cause, and reduce it once.
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

// lost handles the loss of a packet that a NAK or a missing response shows.
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

// marked handles a congestion notification, and reports whether it reduced the window.
func (w *window) marked(now, rtt rdma.Time) bool {
	if !w.cut(now, rtt) {
		return false
	}
	w.decay(now, rtt)
	w.reduce(w.size * w.alpha / (2 * alphaOne))
	w.alpha += (alphaOne - w.alpha) >> alphaShift
	return true
}

// decay reduces alpha for the round trips since the last notification.
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

// timedOut is called at a retransmission timeout.
func (w *window) timedOut() {
	if w.fixed {
		return
	}
	w.before = max(w.before, w.size)
	w.threshold = max(w.before/2, sizeMin)
	w.size, w.arrived = min(windowMin*windowUnit, w.size), 0
}

// answered is called at progress. If it is the first after a timeout and acknowledges all packets,
// the peer was only slow and nothing was lost: the window is restored.
func (w *window) answered(all bool) {
	if w.before != 0 && all {
		w.size, w.threshold = w.before, w.most
	}
	w.before = 0
}
