package posixfs

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Files are the file descriptors that the stores of a process share. When too many objects are
// open, the store with the most open objects closes its least recently used one. So a store can
// always have at least an equal share. Its methods may be called from any goroutine.
type Files struct {
	objects int // the most objects of all stores
	locks   int // the most files with locks of the host
	pins    int // the most pinned files
	open    atomic.Int64
	locked  atomic.Int64
	pinned  atomic.Int64

	windows     atomic.Int64 // that are mapped; see windows.go
	windowsMost atomic.Int64

	mu     sync.Mutex
	caches []*cache
}

// Descriptors returns how many file descriptors the process may have.
func Descriptors() int {
	const most = 1 << 20
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) != nil {
		return 1024
	}
	return int(min(lim.Cur, most))
}

// NewFiles divides a number of descriptors. Half of them is for objects, which have up to three
// each, a sixth for files with locks, and a sixteenth for pinned files.
func NewFiles(descriptors int) *Files {
	f := &Files{
		objects: max(descriptors/6, openFilesMin), locks: max(descriptors/6, openFilesMin),
		pins: max(descriptors/16, openFilesMin),
	}
	f.LimitMapped(MappedDefault)
	return f
}

// Open returns how many objects are open.
func (f *Files) Open() int { return int(f.open.Load()) }

// Mapped returns how many bytes of files are mapped, to lend them to the network. They count as
// memory of the process (RSS) as far as they are in the page cache.
func (f *Files) Mapped() int64 { return f.windows.Load() * windowSize }

// LimitMapped bounds Mapped, for all stores together, in steps of 4 MiB up to MappedMax. With 0
// nothing is mapped. What is mapped beyond the bound and not in use is unmapped at once.
func (f *Files) LimitMapped(bytes int64) {
	f.windowsMost.Store(min(max(bytes, 0), MappedMax) / windowSize)
	f.mu.Lock()
	caches := slices.Clone(f.caches)
	f.mu.Unlock()
	for _, c := range caches {
		c.windows.mu.Lock()
		for f.windows.Load() > f.windowsMost.Load() && c.windows.evict(time.Time{}, math.MinInt64) {
		}
		c.windows.mu.Unlock()
	}
}

// addWindow counts one more window, and reports whether there may be so many.
func (f *Files) addWindow() bool { return addBounded(&f.windows, 1, int(f.windowsMost.Load())) }

// evictWindow unmaps a window of another store than w, whose mutex the caller holds, and reports
// whether it did. It passes over stores whose mutex is held: two of them could wait for each other.
func (f *Files) evictWindow(w *windows, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.caches {
		if c.windows == w || !c.windows.mu.TryLock() {
			continue
		}
		done := c.windows.evict(now, c.windows.rest)
		c.windows.mu.Unlock()
		if done {
			return true
		}
	}
	return false
}

func (f *Files) join(c *cache) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.caches = append(f.caches, c)
}

func (f *Files) leave(c *cache) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.caches = slices.DeleteFunc(f.caches, func(o *cache) bool { return o == c })
}

// settle closes objects while too many are open, of the store that has the most.
func (f *Files) settle() {
	for f.open.Load() > int64(f.objects) {
		f.mu.Lock()
		var most *cache
		for _, c := range f.caches {
			if most == nil || c.size.Load() > most.size.Load() {
				most = c
			}
		}
		f.mu.Unlock()
		if most == nil || !most.evictOldest() {
			return // all of them are in use
		}
	}
}

// addBounded adds n to a count. It adds nothing and reports false if n is positive and the sum
// exceeds most.
func addBounded(count *atomic.Int64, n, most int) bool {
	if count.Add(int64(n)) > int64(most) && n > 0 {
		count.Add(int64(-n))
		return false
	}
	return true
}

// pin counts n more pinned files, and reports whether there may be so many.
func (f *Files) pin(n int) bool { return addBounded(&f.pinned, n, f.pins) }

// restoreLock counts a file whose locks another process has handed over, however many there are.
func (f *Files) restoreLock() { f.locked.Add(1) }

// lock counts n more files with locks, and reports whether there may be so many.
func (f *Files) lock(n int) bool { return addBounded(&f.locked, n, f.locks) }
