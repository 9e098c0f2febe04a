package posixfs

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// listings cache the handles of the entries of large directories, in the order of the directory.
// The next listing of a directory finds the entries in the same order, and needs neither to look
// up their identities nor to make handles. It calls statx for each entry anyway, and the result
// tells whether the entry is still the same inode. Attributes are not cached.
type listings struct {
	mu    sync.Mutex
	of    map[ident]*listing
	order []ident // oldest first
	n     int     // entries of all
	seed  maphash.Seed
}

const (
	// listingMin is the smallest directory that is cached. listingsMax bounds the cached entries of
	// all directories; an entry has some 110 bytes.
	listingMin  = 256
	listingsMax = 1 << 18
	// resync bounds how many removed entries between two that exist are skipped.
	resync = 8
)

// listing is the cached listing of one directory. Its entries do not change once it is in listings.
type listing struct {
	list []known
	// epoch is that of the finder when all entries were recorded in it.
	epoch atomic.Uint64
}

// known is a cached entry.
type known struct {
	inc  incarnation
	name uint64 // its hash
	h    blockstore.Handle
	note blockstore.Note
}

func (l *listings) init() { l.of, l.seed = make(map[ident]*listing), maphash.MakeSeed() }

func (l *listings) get(dir *ident) *listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[*dir]
}

// put caches a listing that went from the beginning to the end of a directory.
func (l *listings) put(dir *ident, x *listing) {
	if len(x.list) < listingMin || len(x.list) > listingsMax {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(dir)
	for l.n+len(x.list) > listingsMax {
		l.remove(&l.order[0])
	}
	l.of[*dir] = x
	l.order = append(l.order, *dir)
	l.n += len(x.list)
}

// drop removes a listing, if it is still the cached one.
func (l *listings) drop(dir *ident, x *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[*dir] == x {
		l.remove(dir)
	}
}

// remove removes the listing of a directory. l.mu is held.
func (l *listings) remove(dir *ident) {
	x := l.of[*dir]
	if x == nil {
		return
	}
	l.n -= len(x.list)
	id := *dir // dir can point into l.order
	delete(l.of, id)
	i := slices.Index(l.order, id)
	l.order = slices.Delete(l.order, i, i+1)
}

// cursor is the place of a stream in the cached listing, or the new listing that it makes.
type cursor struct {
	old    *listing
	at     int // entries of old that the stream has passed
	missed int // entries that were not in it
	next   *listing
	epoch  uint64 // of the finder when it began
}

// begin is called for a stream at the start of a directory.
func (c *cursor) begin(f *FS, dir *ident) {
	c.epoch = f.find.epoch()
	if c.old = f.listings.get(dir); c.old == nil {
		c.next = &listing{}
		c.next.epoch.Store(c.epoch)
	}
}

// end is called at the end of the directory.
func (c *cursor) end(f *FS, dir *ident) {
	switch {
	case c.next != nil:
		f.listings.put(dir, c.next)
	case c.old == nil:
	case c.missed > len(c.old.list)/8:
		f.listings.drop(dir, c.old)
	default:
		c.old.epoch.Store(c.epoch)
	}
}

// find finds an entry in the cached listing, from place at on, and returns the place behind it.
func (c *cursor) find(at int, ino, name uint64) (*known, int) {
	if c.old == nil {
		return nil, at
	}
	list := c.old.list
	for i := at; i < min(at+resync, len(list)); i++ {
		if k := &list[i]; k.inc.ino == ino && k.name == name {
			return k, i + 1
		}
	}
	return nil, at
}

// pass records that an entry was emitted.
func (c *cursor) pass(e *listed) {
	if c.old != nil {
		c.at = e.at
		if e.was == nil {
			c.missed++
		}
	}
	if c.next == nil || !e.lasting {
		return
	}
	if len(c.next.list) == listingsMax {
		c.next = nil
		return
	}
	c.next.list = append(c.next.list, known{e.inc, e.hash, e.h, e.note})
}

// is reports whether the entry is the inode of a statx.
func (k *known) is(sx *unix.Statx_t) bool {
	inc, ok := keyOf(sx)
	return ok && inc == k.inc
}

// identOf is the identity in a handle that was made here.
func identOf(h *blockstore.Handle) ident {
	id := ident{kind: h.B[0] >> lenBits, n: h.B[0] & (1<<lenBits - 1)}
	copy(id.b[:], h.B[handleHead:handleHead+int(id.n)])
	return id
}
