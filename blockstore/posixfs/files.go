package posixfs

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Files is what the stores of a process share of its file descriptors: those that are open may
// be of one store or of many. When there are too many, the store that has most closes the one
// that it used longest ago, so that each has an equal part at least, if it wants it. Its methods
// may be called from any goroutine.
type Files struct {
	objects int // the most, of all stores
	locks   int // files with locks on the host, of all stores
	pins    int // files that are pinned, of all stores
	open    atomic.Int64
	locked  atomic.Int64
	pinned  atomic.Int64

	mu     sync.Mutex
	caches []*cache
}

// Descriptors is how many file descriptors the process may have.
func Descriptors() int {
	const most = 1 << 20
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) != nil {
		return 1024
	}
	return int(min(lim.Cur, most))
}

// NewFiles shares out so many descriptors: an object has up to three, and half of all is for
// objects; a sixth is for files with locks, a sixteenth for files that are pinned.
func NewFiles(descriptors int) *Files {
	return &Files{objects: max(descriptors/6, openFilesMin), locks: max(descriptors/6, openFilesMin), pins: max(descriptors/16, openFilesMin)}
}

// Open is how many objects are kept open.
func (f *Files) Open() int { return int(f.open.Load()) }

func (f *Files) join(c *cache) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.caches = append(f.caches, c)
}

func (f *Files) leave(c *cache) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, o := range f.caches {
		if o == c {
			f.caches = append(f.caches[:i], f.caches[i+1:]...)
			return
		}
	}
}

// settle closes objects while there are too many, where most of them are.
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
			return // all that there are may not be closed
		}
	}
}

// pin counts one more file that is pinned, or less, and reports whether there may be one.
func (f *Files) pin(n int) bool {
	if f.pinned.Add(int64(n)) > int64(f.pins) && n > 0 {
		f.pinned.Add(int64(-n))
		return false
	}
	return true
}

// takeLock counts a file that had locks in another process, however many there are.
func (f *Files) takeLock() { f.locked.Add(1) }

// lock counts one more file with locks, or less, and reports whether there may be one.
func (f *Files) lock(n int) bool {
	if f.locked.Add(int64(n)) > int64(f.locks) && n > 0 {
		f.locked.Add(int64(-n))
		return false
	}
	return true
}
