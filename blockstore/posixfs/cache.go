package posixfs

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// cache holds the open objects by handle. It holds a bounded number of them, and evicts the
// least recently used one first.
//
// It does not evict an object that is in use. It syncs one that has unstable writes before it
// evicts it: the kernel reports an error of writing data back only to descriptors that were open
// then, so that a COMMIT through a later descriptor would succeed although the data is lost. An
// object without names leaves the cache at once, and is closed by its last user.
type cache struct {
	mu      sync.Mutex
	max     int
	pinned  int // objects with leases, which are not evicted
	byH     map[blockstore.Handle]*object
	ends    object        // sentinel of the LRU list: ends.newer is the oldest, ends.old the newest
	clean   func(*object) // syncs unstable writes
	discard func(*object) // closes an object that has left the cache. mu is not held
	files   *Files
	windows *windows     // of the same store
	size    atomic.Int64 // of byH
}

func (c *cache) init(max int, files *Files, w *windows, clean, discard func(*object)) {
	c.max, c.clean, c.discard, c.files, c.windows = max, clean, discard, files, w
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

// get returns the object of h with one more user, or nil. The caller releases it.
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

// share adds a user to an object that has one.
func (c *cache) share(o *object) {
	c.mu.Lock()
	o.refs++
	c.mu.Unlock()
}

// put adds o with one user, and makes room. If there is an object of this handle already, put
// closes o and returns that one with one more user.
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

// count adds n to the number of objects.
func (c *cache) count(n int64) {
	c.size.Add(n)
	c.files.open.Add(n)
}

// evictOldest evicts the least recently used object without users, and reports whether there was
// one. It syncs unstable writes first. An object that is used or written meanwhile stays.
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
		if !o.evicted { // by a call that found it without names
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

// evict removes o. It returns o if it has no users; else the last user discards it. c.mu is held.
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

// dropUnused removes an object that has no user but the caller and no unstable writes, and reports
// whether it has done so.
func (c *cache) dropUnused(o *object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.evicted || o.refs > 1 || o.dirty.Load() {
		return false
	}
	c.evict(o)
	return true
}

// drop removes the object of h, which has no names any more.
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

// leave removes a user. It reports whether the caller has to discard the object.
func (c *cache) leave(o *object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o.refs--
	return o.evicted && o.refs == 0
}

// pin keeps an object that has a user in the cache. It reports false if too many objects are
// pinned, or if the object has left the cache.
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

// unpin undoes pin.
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

// list returns all objects.
func (c *cache) list() []*object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.byH))
}

// close closes all objects. None is pinned. An object that still has a user is closed by that user.
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

// acquire returns the open object of a handle, and opens it if it is not in the cache. The caller
// releases it.
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

// adopt makes an object of a path descriptor. It owns the descriptor, also if it fails. The caller
// releases the object.
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
		unix.Close(fd) // open_by_handle_at finds removed inodes that are open elsewhere
		return nil, blockstore.ErrStale
	}
	f.leaving.room()
	f.count.opens.Add(1)
	return f.objects.put(o), nil
}

// release ends the use of an object. After the last use of an object without names, or with
// unstable writes, closing it can take long: another goroutine does it.
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

// clean syncs unstable writes before their object is closed. Otherwise the kernel would have no
// descriptor to which it could report an error of writing them back, and the verifier would not
// change.
func (f *FS) clean(o *object) {
	var st unix.Stat_t
	if o.dirty.Swap(false) && o.stat(&st) == nil {
		_ = f.syncData(o, f.failures(o)) // a failure has changed the verifier
	}
}

// leavingMax bounds the objects that wait to be discarded. Calls that open objects wait beyond it.
const leavingMax = 64

// leaving are objects that lost their last name while they were in use, and now have no users.
// Discarding one can take long, because the kernel frees the file when its last descriptor is
// closed. One goroutine does it: the last user can be an event loop, which must not wait.
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

// add gives o to the goroutine, without waiting.
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
