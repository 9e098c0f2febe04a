package grace

import (
	"maps"
	"slices"
)

// Watch decides when a node counts as lost: its count of beats has not changed for Patience, while
// this node could read it. Times are in nanoseconds of a clock that does not jump.
//
// A gap between two reads that is longer than Gap begins the wait anew: this process or the storage
// stood still, and so perhaps did the writes of the other node.
type Watch struct {
	Patience, Gap int64
	last          int64 // begin of the last read
	nodes         map[string]*beat
}

type beat struct {
	count string
	since int64 // when this node first read count
	alive int64 // begin of the read before: count was written after that
}

// Read records the counts of all nodes. The read began at begun and ended at now.
func (w *Watch) Read(begun, now int64, counts map[string]string) {
	if w.nodes == nil {
		w.nodes = make(map[string]*beat)
	}
	late := now-w.last > w.Gap
	maps.DeleteFunc(w.nodes, func(id string, _ *beat) bool {
		_, ok := counts[id]
		return !ok
	})
	for _, id := range slices.Sorted(maps.Keys(counts)) {
		b, count := w.nodes[id], counts[id]
		switch {
		case b == nil:
			w.nodes[id] = &beat{count: count, since: now}
		case b.count != count:
			b.count, b.since = count, now
			if w.last > 0 {
				b.alive = w.last
			}
		case late:
			b.since = now
		}
	}
	w.last = begun
}

// Lost reports whether a node counts as lost. A node without a count is not known yet.
func (w *Watch) Lost(id string) bool {
	b := w.nodes[id]
	return b != nil && w.last-b.since >= w.Patience
}

// AliveSince reports whether a node is known to have lived after a time.
func (w *Watch) AliveSince(id string, at int64) bool {
	b := w.nodes[id]
	return b != nil && b.alive > at
}
