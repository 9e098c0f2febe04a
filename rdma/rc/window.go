package rc

import "github.com/rstored/rstored/rdma/wire"

// window bounds the packets of SENDs and RDMA WRITEs that are under way. An Ethernet
// without priority flow control drops what its queues cannot take, and to go back N over
// and over makes it worse; so the window shrinks at a loss and grows without, as TCP's
// does (RFC 5681). It begins as large as it may be: most networks of this kind have room,
// and a loss corrects it within a round trip.
type window struct {
	size      int // packets
	most      int
	threshold int      // below it the window doubles in a round trip, above it grows by one packet
	acked     int      // packets since it grew
	seen      wire.PSN // acknowledged up to here
	before    int      // size when it fell silent
}

// windowMin is the smallest window: a loss in it is still noticed by the packets behind.
const windowMin = 4

func (w *window) start(psn wire.PSN, most int) {
	*w = window{size: most, most: most, threshold: most, seen: psn}
}

// grow takes acknowledgements up to una.
func (w *window) grow(una wire.PSN) {
	n := min(int(una.Sub(w.seen)), w.size) // the PSNs of a READ's data are no packets of ours
	w.seen = una
	if w.size >= w.most || n <= 0 {
		return
	}
	if w.size < w.threshold {
		w.size = min(w.size+n, w.threshold)
		return
	}
	if w.acked += n; w.acked >= w.size {
		w.acked -= w.size
		w.size++
	}
}

// lost is called when packets were lost that the peer tells of.
func (w *window) lost() {
	w.size = max(w.size/2, windowMin)
	w.threshold, w.acked = w.size, 0
}

// silent is called when nothing was heard for a while.
func (w *window) silent() {
	w.before = max(w.before, w.size)
	w.threshold = max(w.size/2, windowMin)
	w.size, w.acked = windowMin, 0
}

// spoke is called when something is heard again. If that acknowledges all, the peer was
// only slow, and nothing was lost.
func (w *window) spoke(all bool) {
	if all {
		w.size, w.threshold = w.before, w.most
	}
	w.before = 0
}
