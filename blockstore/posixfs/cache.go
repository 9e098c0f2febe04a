package posixfs

import (
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// cache holds the open objects by handle, a bounded number of them, the least recently used
// leaving first. An object that is in use, or has unstable writes, does not leave for room: a
// COMMIT has to go by the descriptor that they were written by, as the kernel reports an error
// of writing them back to descriptors that it finds open. An object that is gone leaves at once,
// and outlives its place here while it is in use.
type cache struct {
	mu      sync.Mutex
	max     int
	pinned  int
	byH     map[blockstore.Handle]*object
	ends    object        // sentinel: ends.newer is the oldest, ends.old the newest
	clean   func(*object) // syncs unstable writes
	discard func(*object)
	files   *Files
	size    atomic.Int64 // of byH
}

func (c *cache) init(max int, files *Files, clean, discard func(*object)) {
	c.max, c.clean, c.discard, c.files = max, clean, discard, files
	files.join(c)
	c.byH = make(map[blockstore.Handle]*object)
	c.ends.newer, c.ends.old = &c.ends, &c.ends
}

func (c *cache) unlink(o *object) {
	o.newer.old, o.old.newer = o.old, o.newer
	o.newer, o.old = nil, nil
}

func (c *cache) linkNewest(o *object) {
	o.old, o.newer = c.ends.old, &c.ends
	o.old.newer, c.ends.old = o, o
}

// get returns the object of h with one more user, or nil.
func (c *cache) get(h *blockstore.Handle) *object {
	c.mu.Lock()
	o := c.byH[*h]
	if o != nil {
		o.refs++
		if c.ends.old != o && !o.pinned {
			c.unlink(o)
			c.linkNewest(o)
		}
	}
	c.mu.Unlock()
	return o
}

// share gives an object that has a user one more.
func (c *cache) share(o *object) {
	c.mu.Lock()
	o.refs++
	c.mu.Unlock()
}

// put adds o with one user, or returns the object that is already there with
// one more, and then closes o.
func (c *cache) put(o *object) *object {
	c.mu.Lock()
	if have := c.byH[o.h]; have != nil {
		have.refs++
		c.mu.Unlock()
		o.closeFiles()
		return have
	}
	o.refs++
	c.byH[o.h] = o
	c.count(1)
	c.linkNewest(o)
	c.mu.Unlock()
	for c.size.Load() > int64(c.max) && c.evictOldest() {
	}
	c.files.settle()
	return o
}

// count notes n objects more, or less.
func (c *cache) count(n int64) {
	c.size.Add(n)
	c.files.open.Add(n)
}

// evictOldest evicts the object that was not used for longest, of those that nobody uses, and
// reports whether there is one. Unstable writes are synced first; if the object is used or
// written meanwhile, it stays.
func (c *cache) evictOldest() bool {
	for range evictTries {
		c.mu.Lock()
		o := c.ends.newer
		for o != &c.ends && o.refs > 0 {
			o = o.newer
		}
		if o == &c.ends {
			c.mu.Unlock()
			return false
		}
		if o.dirty.Load() {
			o.refs++
			c.mu.Unlock()
			c.clean(o)
			c.mu.Lock()
			o.refs--
			if o.refs > 0 || o.dirty.Load() && !o.evicted {
				c.mu.Unlock()
				continue
			}
		}
		if !o.evicted { // by somebody who found it gone
			c.evict(o)
		}
		c.mu.Unlock()
		c.discard(o)
		return true
	}
	return false
}

// evictTries bounds how many objects with unstable writes are synced to make room for one.
const evictTries = 4

// evict takes o out and returns it if nobody uses it; else the last user
// discards it. c.mu is held.
func (c *cache) evict(o *object) *object {
	if !o.pinned {
		c.unlink(o)
	}
	delete(c.byH, o.h)
	c.count(-1)
	o.evicted = true
	if o.refs > 0 {
		return nil
	}
	return o
}

// dropUnused takes an object out that has one user, the caller, and no unstable writes, and
// reports whether it has.
func (c *cache) dropUnused(o *object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.evicted || o.refs > 1 || o.dirty.Load() {
		return false
	}
	c.evict(o)
	return true
}

// drop takes the object of h out, because it is gone.
func (c *cache) drop(h *blockstore.Handle) {
	c.mu.Lock()
	var out *object
	if o := c.byH[*h]; o != nil {
		out = c.evict(o)
	}
	c.mu.Unlock()
	if out != nil {
		c.discard(out)
	}
}

// leave takes a user away, who is to discard the object if leave reports true.
func (c *cache) leave(o *object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o.refs--
	return o.evicted && o.refs == 0
}

// pin keeps an object that has a user in the cache, which counts it then among the
// pinned ones. It reports false if those are too many, or the object has left.
func (c *cache) pin(o *object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.evicted || o.pinned || c.pinned >= c.max/2 {
		return false
	}
	c.unlink(o)
	o.pinned = true
	c.pinned++
	return true
}

// unpin ends that.
func (c *cache) unpin(o *object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !o.pinned {
		return
	}
	o.pinned = false
	c.pinned--
	if !o.evicted {
		c.linkNewest(o)
	}
}

// leased is the objects that are pinned.
func (c *cache) leased() (list []*object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pinned == 0 {
		return nil
	}
	for _, o := range c.byH {
		if o.pinned {
			list = append(list, o)
		}
	}
	return list
}

// close closes all objects. None is pinned, and those that have a user yet are closed by
// him.
func (c *cache) close() {
	for {
		c.mu.Lock()
		if len(c.byH) == 0 {
			c.mu.Unlock()
			c.files.leave(c)
			return
		}
		out := c.evict(c.ends.newer)
		c.mu.Unlock()
		if out != nil {
			c.discard(out)
		}
	}
}

// acquire returns the open object of a handle; release gives it back.
func (f *FS) acquire(h blockstore.Handle) (*object, error) {
	if h == f.root.h {
		return f.root, nil
	}
	if o := f.objects.get(&h); o != nil {
		return o, nil
	}
	id, err := f.tag.ident(&h)
	if err != nil {
		if err == blockstore.ErrStale {
			f.count.foreign.Add(1)
		}
		return nil, err
	}
	if id.kind != f.kind {
		return nil, blockstore.ErrStale
	}
	fd, pinned, err := f.pins.dup(&h)
	switch {
	case !pinned:
		fd, err = f.find.open(&id)
	case err != nil:
		err = mapErr(err)
	}
	if err != nil {
		return nil, err
	}
	return f.adopt(id, fd)
}

// adopt makes an object of a path descriptor, which it owns from now on.
func (f *FS) adopt(id ident, fd int) (*object, error) {
	if id == f.root.id {
		unix.Close(fd)
		return f.root, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, mapErr(err)
	}
	o := f.newObject(id, fd, typeOf(st.Mode))
	if st.Nlink == 0 && !f.pins.has(&o.h) {
		unix.Close(fd)
		return nil, blockstore.ErrStale
	}
	f.leaving.room()
	f.count.opens.Add(1)
	return f.objects.put(o), nil
}

func (f *FS) release(o *object) {
	if o == f.root || !f.objects.leave(o) {
		return
	}
	var st unix.Stat_t
	if o.dirty.Load() || o.stat(&st) == blockstore.ErrStale {
		f.windows.drop(o)
		f.leaving.add(f, o)
		return
	}
	f.discard(o)
}

// acquireDir is acquire for what must be a directory.
func (f *FS) acquireDir(h blockstore.Handle) (*object, error) {
	o, err := f.acquire(h)
	if err != nil {
		return nil, err
	}
	if o.typ != blockstore.TypeDir {
		f.release(o)
		return nil, blockstore.ErrNotDir
	}
	return o, nil
}

// discard closes an object that left the cache.
func (f *FS) discard(o *object) {
	f.count.evictions.Add(1)
	f.windows.drop(o)
	f.clean(o)
	o.closeFiles()
}

// clean syncs unstable writes before their object is closed: an error of writing them back would
// otherwise have nobody left to report to, and no verifier would change.
func (f *FS) clean(o *object) {
	var st unix.Stat_t
	if o.dirty.Swap(false) && o.stat(&st) == nil {
		_ = f.syncData(o, f.failures(o)) // a failure has changed the verifier
	}
}

// leavingMax is how many objects may wait for leaving before calls that open further ones wait.
const leavingMax = 64

// leaving are objects that were gone while they were in use, and that nobody uses any more. To
// discard them may take long: the last descriptor of a file without names is closed. One
// goroutine does it, because the last user may be a loop that moves packets.
type leaving struct {
	mu   sync.Mutex
	less sync.Cond // an object was discarded
	list []*object // the first is being discarded
	max  int
}

func (l *leaving) init() {
	l.less.L = &l.mu
	l.max = leavingMax
}

// add has o discarded, without waiting.
func (l *leaving) add(f *FS, o *object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, o)
	if len(l.list) == 1 {
		go l.run(f)
	}
}

func (l *leaving) run(f *FS) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.list) > 0 {
		o := l.list[0]
		l.mu.Unlock()
		f.discard(o)
		l.mu.Lock()
		l.list = l.list[1:]
		l.less.Broadcast()
	}
	l.list = nil
}

// room waits until fewer than max objects wait.
func (l *leaving) room() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.list) >= l.max {
		l.less.Wait()
	}
}

// drain waits until all objects are discarded.
func (l *leaving) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.list) > 0 {
		l.less.Wait()
	}
}
