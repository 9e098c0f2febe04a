package fusefs

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// node is an object that the kernel knows.
type node struct {
	id     uint64 // of FUSE
	handle client.Handle
	typ    blockstore.FileType

	// nodes.mu guards these.
	lookups uint64 // lookups that the kernel has not forgotten
	at      place  // where the object was found last; the zero value is unknown

	// This mount increments these counts when a change of the object begins, and again when it
	// ends. touched counts all changes, wrote only changes of the data and the times. If a count is
	// the same as before, nothing has changed in between. See reading.
	touched, wrote atomic.Uint64

	data atomic.Uint64 // counts changes of the data; older blocks that were read ahead are stale

	changes atomic.Uint64 // of the data by other clients that this mount has noticed
	dropped atomic.Uint64 // value of changes up to which the kernel has dropped its cache

	mu       sync.Mutex
	attr     nfs3.Attr
	seq      uint64 // FS.seq when the call for attr began
	until    time.Time
	ttl      time.Duration
	cached   nfs3.Attr          // attributes when the kernel's cache was filled
	cachedAt uint64             // value of wrote when the call for cached began
	fresh    *client.Delegation // delegation that the file has had since attr was read; nil: none
	freshAt  uint64             // value of touched when a call began that returned the same as attr
	sized    *client.Delegation // attr.Size was read or set after the grant of this delegation
	opens    int
	again    map[uint32]struct{} // processes whose open(2) has to look the name up again, see openAgain
	silly    *place              // name that replaces the removed one
	w        *writer
	locks    map[lockKey]*client.File
	localEnd uint64 // end of the data that was written since the server's size was known
	acked    uint64 // FS.seq when the last WRITE was acknowledged
}

// place is a name in a directory.
type place struct {
	dir  uint64 // node ID; 0 is none
	name string
}

// nodes are the objects that the kernel knows.
type nodes struct {
	times CacheTimes
	root  *node

	mu       sync.RWMutex
	last     uint64
	byID     map[uint64]*node
	byHandle map[string]*node
	byPlace  map[place]*node
}

func (t *nodes) init(root *client.Node, seq uint64, times CacheTimes) {
	t.times = times
	t.last = fuse.FUSE_ROOT_ID
	t.root = &node{id: t.last, handle: root.Handle, typ: root.Attr.Type, attr: root.Attr, cached: root.Attr, seq: seq}
	t.byID = map[uint64]*node{t.root.id: t.root}
	t.byHandle = map[string]*node{string(root.Handle): t.root}
	t.byPlace = make(map[place]*node)
}

func (t *nodes) count() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.byID)
}

// get returns the node of an ID. The kernel sends only IDs that it has not forgotten.
func (t *nodes) get(id uint64) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id]
}

// lookup returns the node of an object that was found at a place, and counts one more lookup of the
// kernel. It makes the node if there is none.
func (t *nodes) lookup(got *client.Node, at place) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byHandle[string(got.Handle)]
	if n == nil || n.typ != got.Attr.Type {
		t.last++
		n = &node{id: t.last, handle: got.Handle, typ: got.Attr.Type}
		t.byHandle[string(n.handle)] = n
	}
	t.byID[n.id] = n // the kernel may have forgotten it
	n.lookups++
	t.place(n, at)
	return n
}

// place records where an object is. mu is held.
func (t *nodes) place(n *node, at place) {
	if t.byPlace[n.at] == n {
		delete(t.byPlace, n.at)
	}
	n.at = at
	if at.dir != 0 {
		t.byPlace[at] = n
	}
}

// move records that an object has moved, and returns the object that was at the new place.
func (t *nodes) move(from, to place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.byPlace[to]; old != nil {
		t.place(old, place{})
	}
	if n := t.byPlace[from]; n != nil {
		t.place(n, to)
	}
}

// removed records that nothing is at a place any more.
func (t *nodes) removed(at place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.byPlace[at]; n != nil {
		t.place(n, place{})
	}
}

// find returns the object that was last seen at a place, or nil.
func (t *nodes) find(at place) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byPlace[at]
}

// whereIs returns where an object was found last.
func (t *nodes) whereIs(n *node) place {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return n.at
}

// Forget implements fuse.RawFileSystem. The kernel forgets no object that it has open. A node with
// data that waits to be written, or with a delegation, is found by its handle until the server has
// the data: a program that looks the file up again, and a recall, need the data.
func (f *FS) Forget(id, n uint64) {
	x := f.nodes.forget(id, n)
	if x == nil {
		return
	}
	x.mu.Lock()
	w := x.w
	x.mu.Unlock()
	if (w == nil || w.clear()) && !f.c.HasDelegation(x.handle) {
		f.nodes.remove(x)
		return
	}
	f.work.Go(func() {
		if err := x.commit(f.ctx); err != nil {
			f.cfg.Log.Warn("writing a file that is not in use any more", "fileid", x.fileID(), "error", err)
		}
		if f.nodes.forgotten(x) {
			f.giveUp(f.ctx, x)
		}
		f.nodes.remove(x)
	})
}

// forgotten reports whether the kernel does not know a node.
func (t *nodes) forgotten(x *node) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[x.id] != x
}

// remove removes a node if the kernel does not know it.
func (t *nodes) remove(x *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[x.id] != x && t.byHandle[string(x.handle)] == x {
		delete(t.byHandle, string(x.handle))
	}
}

// forget returns the node if the kernel has forgotten it, else nil. The node can still be found by
// its handle, until remove.
func (t *nodes) forget(id, n uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.byID[id]
	if x == nil || x == t.root {
		return nil
	}
	x.lookups -= min(n, x.lookups)
	if x.lookups > 0 {
		return nil
	}
	t.place(x, place{})
	delete(t.byID, id)
	return x
}

func (n *node) fileID() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.attr.FileID
}

// sameVersion reports whether an object has not changed between two readings of its attributes.
func sameVersion(a, b *nfs3.Attr) bool {
	return a.Ctime.Equal(b.Ctime) && a.Mtime.Equal(b.Mtime) && a.Size == b.Size
}

// change records that a change of the data or the times by this mount begins. The function that it
// returns records the end.
func (n *node) change() (end func()) {
	count := func() {
		n.touched.Add(1)
		n.wrote.Add(1)
	}
	count()
	return count
}

// changedHere reports whether this mount has changed the file since the attributes were read with
// which others are compared.
func (n *node) changedHere() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wrote.Load() != n.cachedAt
}

// reading is what was known when a call for the attributes of an object began.
type reading struct {
	seq            uint64 // FS.seq
	touched, wrote uint64 // of the node
	own            bool   // the call itself changes or creates the object
	d              *client.Delegation
}

// reading begins a call for the attributes of an object.
func (f *FS) reading(n *node) reading {
	return reading{touched: n.touched.Load(), wrote: n.wrote.Load(), d: f.c.Delegation(n.handle), seq: f.seq.Add(1)}
}

// update takes the attributes that the call b has returned, and returns the attributes to show.
// changed says that another client has changed the data since the kernel cached it.
//
// While the server has not executed all WRITEs that this mount sent before the call, the server's
// size is too small. Then the size that the kernel knows is right.
func (f *FS) update(n *node, a *nfs3.Attr, b reading) (shown nfs3.Attr, ttl time.Duration, changed bool) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	seq, own := b.seq, b.own || n.wrote.Load() != n.cachedAt
	// Attributes of a call that began earlier count if their change time is later.
	if seq >= n.seq || a.Ctime.After(n.attr.Ctime) {
		least, most := f.cfg.Times.RegMin, f.cfg.Times.RegMax
		if n.typ == blockstore.TypeDir {
			least, most = f.cfg.Times.DirMin, f.cfg.Times.DirMax
		}
		switch {
		case n.seq == 0 || !sameVersion(a, &n.attr):
			n.ttl = least
		case now.After(n.until):
			n.ttl = min(max(2*n.ttl, least), most)
		}
		n.attr, n.seq, n.until = *a, seq, now.Add(n.ttl)
	}
	if b.d.Valid() { // the file has had b.d since the call began, so attr is as new as the grant, or newer
		if n.fresh != b.d {
			n.fresh, n.freshAt = b.d, 0
		}
		n.freshAt, n.sized = max(n.freshAt, b.touched), b.d
	}
	shown, ttl = n.attr, n.ttl
	pending := n.w != nil && n.w.pending()
	if pending || n.acked >= seq {
		shown.Size = max(shown.Size, n.localEnd)
		return shown, 0, false
	}
	if d := f.c.Delegation(n.handle); d == nil || d == n.sized {
		n.localEnd = 0
	}
	switch {
	case own || n.cached.Type == 0:
		n.cached, n.cachedAt = n.attr, b.wrote
	case n.typ == blockstore.TypeReg && !sameVersion(&n.cached, &n.attr):
		// A change of the mode or the owner alone changes the ctime too.
		if changed = !n.cached.Mtime.Equal(n.attr.Mtime) || n.cached.Size != n.attr.Size; changed {
			n.changes.Add(1)
		}
		n.cached = n.attr
	}
	return shown, ttl, changed
}

// refreshed is update. It also drops the cached data that another client has changed. An operation
// must not call it while the kernel holds a lock of the page cache.
func (f *FS) refreshed(n *node, a *nfs3.Attr, b reading) (nfs3.Attr, time.Duration) {
	shown, ttl, changed := f.update(n, a, b)
	if changed {
		f.stats.invalidated.Add(1)
		n.data.Add(1)
		f.work.Go(func() { f.dropData(n) }) // it can wait for requests of the same file
	}
	return shown, ttl
}

// dropData makes the kernel drop what it has cached of a file.
func (f *FS) dropData(n *node) {
	changes := n.changes.Load()
	if st := f.server.InodeNotify(n.id, 0, 0); st == fuse.OK || st == fuse.ENOENT { // ENOENT: no such inode
		n.droppedAt(changes)
	}
}

// droppedAt records that the kernel has dropped what it had cached before the change with this
// number (node.changes).
func (n *node) droppedAt(change uint64) {
	for {
		old := n.dropped.Load()
		if old >= change || n.dropped.CompareAndSwap(old, change) {
			return
		}
	}
}

// kept reports whether the data in the kernel's cache is valid. It is not valid from the moment when
// the mount notices another client's change until the kernel has dropped the data.
func (n *node) kept() bool { return n.dropped.Load() >= n.changes.Load() }

// show converts attributes to those of FUSE.
func (f *FS) show(a *nfs3.Attr, out *fuse.Attr) {
	out.Ino = a.FileID
	if fsid := f.nodes.root.attr.FSID; a.FSID != fsid {
		out.Ino ^= (a.FSID ^ fsid) * 0x9e3779b97f4a7c15 // the object is in another file system of the server
	}
	out.Size, out.Blocks = a.Size, (a.Used+511)/512
	out.SetTimes(&a.Atime, &a.Mtime, &a.Ctime)
	out.Mode = a.Mode&0o7777 | typeBits(a.Type)
	out.Nlink = a.NLink
	out.Uid, out.Gid = a.UID, a.GID
	if f.cfg.UID != nil {
		out.Uid = *f.cfg.UID
	}
	if f.cfg.GID != nil {
		out.Gid = *f.cfg.GID
	}
	if a.Type == blockstore.TypeBlk || a.Type == blockstore.TypeChr {
		out.Rdev = a.Minor&0xff | a.Major<<8 | (a.Minor&^0xff)<<12 // new_encode_dev of Linux
	}
	out.Blksize = maxTransfer
}

var typesOfMode = map[blockstore.FileType]uint32{
	blockstore.TypeReg: fuse.S_IFREG, blockstore.TypeDir: fuse.S_IFDIR, blockstore.TypeLnk: fuse.S_IFLNK,
	blockstore.TypeFifo: 0o010000, blockstore.TypeSock: 0o140000, blockstore.TypeBlk: 0o060000,
	blockstore.TypeChr: 0o020000,
}

func typeBits(t blockstore.FileType) uint32 { return typesOfMode[t] }
