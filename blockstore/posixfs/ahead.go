package posixfs

import (
	"sync"

	"golang.org/x/sys/unix"
)

// The kernel reads ahead of a descriptor whose reads follow one another. Those of a client that
// has several under way come by several threads, in any order, and what of them is in memory is
// sent without a read at all, so that it often sees no stream where there is one. It is found
// here, for files of which something was not in memory, and the kernel asked to have the next of
// it there in time.
const (
	// aheadMin is the shortest read that may be part of a stream.
	aheadMin = 64 << 10
	// aheadDepth is how far ahead of the furthest read the kernel is asked to be, in bytes; at the
	// beginning of a stream it is twice what was read of it.
	aheadDepth = 8 << 20
	// aheadStep is how much is asked for at a time: the kernel takes no more than the device's largest
	// request or read_ahead_kb, and leaves the rest out.
	aheadStep = 512 << 10
	// aheadFlight is how many reads may be under way: how far from the others one may come.
	aheadFlight = 16
	// aheadRuns is how many streams of a file are known at a time.
	aheadRuns = 4
	// aheadMax is how many files are about read ahead of at the same moment, by a goroutine each.
	aheadMax = 8
)

// ahead knows the streams of one file. Its methods may be called from any goroutine.
type ahead struct {
	mu   sync.Mutex
	runs [aheadRuns]run
	tick uint64
	busy bool // a goroutine asks the kernel
}

// run is a stretch of a file, most of which is being read.
type run struct {
	start, front uint64 // where it begins, and the end of the furthest read
	covered      uint64 // bytes of it that were read
	asked        uint64 // up to where the kernel was asked to read
	cold         bool   // something was not in memory
	used         uint64 // tick of the last read
}

// near reports whether a read of n bytes at off may be of the run.
func (r *run) near(off, n uint64) bool {
	slack := aheadFlight * n
	return r.used != 0 && off <= r.front+slack && off+n+slack >= r.start
}

// note takes a read of n bytes at off of a file of size bytes, cold if it has to wait for some
// of them. It returns what of its stream is wanted in memory next; from is to if there is
// nothing, and else the caller has the kernel read it and then calls done. Until then, and if
// may is false, nothing is wanted.
func (a *ahead) note(off, n, size uint64, cold, may bool) (from, to uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tick++
	r := &a.runs[0]
	for i := range a.runs {
		if x := &a.runs[i]; x.near(off, n) {
			r = x
			break
		} else if x.used < r.used {
			r = x // the one that nobody has read of for longest
		}
	}
	if !r.near(off, n) {
		*r = run{start: off, front: off}
	}
	r.used = a.tick
	r.start, r.front = min(r.start, off), max(r.front, off+n)
	r.cold = r.cold || cold
	r.covered = min(r.covered+n, r.front-r.start)
	if span := r.front - r.start; span > 4*aheadDepth {
		r.start += span / 2
		r.covered = min(r.covered-r.covered/2, span-span/2)
	}
	// With gaps it is no stream, or one of which most is on its way here.
	if span := r.front - r.start; !r.cold || r.covered < 2*n || r.covered < span-span/4 {
		return 0, 0
	}
	if r.asked > r.front+aheadDepth {
		r.asked = 0 // of a stream that was further
	}
	depth := min(2*r.covered, aheadDepth)
	from, to = max(r.front, r.asked), min(r.front+depth, size)
	if a.busy || !may || r.asked > r.front+depth/2 || from >= to {
		return 0, 0
	}
	a.busy, r.asked = true, to
	return from, to
}

func (a *ahead) done() {
	a.mu.Lock()
	a.busy = false
	a.mu.Unlock()
}

// hasRead is told of n bytes at off of an object that were read, or are about to be. size is
// that of the file, and cold says that not all of them are in memory. It does not wait: what is
// wanted ahead of them is asked for by a goroutine.
func (f *FS) hasRead(o *object, fd int, off, n, size uint64, cold bool) {
	a := o.ahead.Load()
	switch {
	case n < aheadMin || f.inMemory:
		return
	case a == nil && !cold:
		return // nothing to gain so far
	case a == nil:
		o.ahead.CompareAndSwap(nil, new(ahead))
		a = o.ahead.Load()
	}
	from, to := a.note(off, n, size, cold, f.aheads.Load() < aheadMax)
	if from == to {
		return
	}
	f.aheads.Add(1)
	f.objects.share(o)
	go func() {
		for ; from < to; from += aheadStep {
			k := min(aheadStep, to-from)
			if unix.Fadvise(fd, int64(from), int64(k), unix.FADV_WILLNEED) != nil {
				break
			}
			f.count.readAhead.Add(k)
		}
		a.done()
		f.aheads.Add(-1)
		f.release(o)
	}()
}
