package lock

import (
	"cmp"
	"slices"
)

// span is a range of bytes, end included.
type span struct{ start, end uint64 }

var everything = span{0, ToEnd}

// insert keeps the locks of a file sorted by Start.
func (f *file) insert(l Lock) {
	i, _ := slices.BinarySearchFunc(f.locks, l, func(a, b Lock) int { return cmp.Compare(a.Start, b.Start) })
	f.locks = slices.Insert(f.locks, i, l)
}

// put enters a lock that nothing conflicts with. It joins the lock with adjacent ones of the same
// owner and kind. Call with the shard's mu held.
func (t *Table) put(x *file, l Lock) {
	t.cut(x, l.Owner, l.Start, l.End)
	n := len(x.locks)
	x.locks = slices.DeleteFunc(x.locks, func(h Lock) bool {
		if h.Owner != l.Owner || h.Exclusive != l.Exclusive {
			return false
		}
		switch {
		case h.End != ToEnd && h.End+1 == l.Start:
			l.Start = h.Start
		case l.End != ToEnd && l.End+1 == h.Start:
			l.End = h.End
		default:
			return false
		}
		return true
	})
	x.insert(l)
	t.add(l.Owner.Client, len(x.locks)-n)
}

// cut removes a range from the locks of an owner. A lock on both sides of the range becomes two.
// Call with the shard's mu held.
func (t *Table) cut(x *file, o Owner, start, end uint64) {
	n := len(x.locks)
	var rest []Lock
	x.locks = slices.DeleteFunc(x.locks, func(h Lock) bool {
		if h.Start > end || start > h.End || h.Owner != o {
			return false
		}
		if h.Start < start {
			left := h
			left.End = start - 1
			rest = append(rest, left)
		}
		if h.End > end {
			right := h
			right.Start = end + 1
			rest = append(rest, right)
		}
		return true
	})
	for _, l := range rest {
		x.insert(l)
	}
	t.add(o.Client, len(x.locks)-n)
}

// spans returns the bytes within a range that any client has locked, in order, without overlaps.
func (f *file) spans(within span) (out []span) {
	for i := range f.locks {
		l := span{max(f.locks[i].Start, within.start), min(f.locks[i].End, within.end)}
		n := len(out) - 1
		switch {
		case l.start > l.end:
		case n < 0 || out[n].end != ToEnd && l.start > out[n].end+1:
			out = append(out, l)
		default:
			out[n].end = max(out[n].end, l.end)
		}
	}
	return out
}

// without returns a without the bytes of b. Both are in order.
func without(a, b []span) (out []span) {
	for _, x := range a {
		done := false
		for _, y := range b {
			if y.end < x.start || y.start > x.end {
				continue
			}
			if y.start > x.start {
				out = append(out, span{x.start, y.start - 1})
			}
			if y.end >= x.end {
				done = true
				break
			}
			x.start = y.end + 1
		}
		if !done {
			out = append(out, x)
		}
	}
	return out
}
