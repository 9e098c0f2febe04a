package posixfs

import (
	"sync"

	"golang.org/x/sys/unix"
)

// The kernel reads ahead of a descriptor whose reads follow one another. But the READs of a
// client with several in flight arrive on several threads and in any order, and data in memory
// is sent without a read. So the kernel often sees no stream where there is one. This file finds
// the streams of files that are not all in memory, and asks the kernel to read ahead of them
// (fadvise, POSIX_FADV_WILLNEED).
const (
	// aheadMin is the shortest read that may be part of a stream.
	aheadMin = 64 << 10
	// aheadDepth is how far the kernel reads ahead of the furthest read, in bytes. At the beginning
	// of a stream it is twice what was read of it.
	aheadDepth = 8 << 20
	// aheadStep is the length of one fadvise. The kernel reads no more than the device's largest
	// request or read_ahead_kb, and ignores the rest.
	aheadStep = 512 << 10
	// aheadFlight is how many reads of a stream may be in flight, and so how far a read may be from
	// the others.
	aheadFlight = 16
	// aheadRuns is how many streams of a file are known at a time.
	aheadRuns = 4
	// aheadMax is about how many files are read ahead at the same time, each by a goroutine.
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
	cold         bool   // some of it was not in memory
	used         uint64 // tick of the last read
}

// near reports whether a read of n bytes at off can belong to the run.
func (r *run) near(off, n uint64) bool {
	slack := aheadFlight * n
	return r.used != 0 && off <= r.front+slack && off+n+slack >= r.start
}

// note records a read of n bytes at off of a file of size bytes. cold says that it has to wait
// for the disk. note returns the range that the kernel should read next; it is empty (from ==
// to) if there is none, if may is false, or until done is called. The caller has the kernel read
// a range that is not empty, and then calls done.
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
			r = x // the least recently used run
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
	// With gaps it is no stream, or most READs of it have not arrived yet.
	if span := r.front - r.start; !r.cold || r.covered < 2*n || r.covered < span-span/4 {
		return 0, 0
	}
	if r.asked > r.front+aheadDepth {
		r.asked = 0 // the value of an earlier stream, which was further ahead
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

// hasRead records that n bytes at off of an object were read, or are about to be read. size is
// the size of the file. cold says that not all of the bytes are in memory. hasRead does not
// wait: a goroutine asks the kernel to read ahead. It uses fd, and so has a use of the object.
func (f *FS) hasRead(o *object, fd int, off, n, size uint64, cold bool) {
	a := o.ahead.Load()
	switch {
	case n < aheadMin || f.inMemory:
		return
	case a == nil && !cold:
		return // all was in memory so far
	case a == nil:
		o.ahead.CompareAndSwap(nil, new(ahead))
		a = o.ahead.Load()
	}
	from, to := a.note(off, n, size, cold, f.aheads.Load() < aheadMax)
	if from == to {
		return
	}
	f.readAhead(o, fd, from, to, a.done)
}

// readAhead has the kernel read a range, in a goroutine with a use of the object of its own, and
// then calls done.
func (f *FS) readAhead(o *object, fd int, from, to uint64, done func()) {
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
		done()
		f.aheads.Add(-1)
		f.release(o)
	}()
}
