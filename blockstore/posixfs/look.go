package posixfs

import (
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// Sizes of batches of entries. The first batch is small: looking up entries that do not fit into
// the reply is wasted work.
const (
	batchFirst = 16
	batchMax   = 512
	// chunk is how many entries a goroutine takes at once.
	chunk = 16
	// helpMin is the smallest batch for which other goroutines help.
	helpMin = 64
	// helpersMax bounds the goroutines that help with one listing.
	helpersMax = 3
)

// batch is a run of entries whose attributes are being looked up, by the goroutine of the listing
// and by its helpers.
type batch struct {
	mu   sync.Mutex
	nth  int // its number in the listing
	list []listed
	next int // the first entry that no goroutine has taken

	left atomic.Int32 // entries that are not looked up yet
	done chan struct{}
}

// job is a batch for a helper. When the helper receives the job, b may already be reused for a
// later batch: then nth is not b.nth.
type job struct {
	b   *batch
	nth int
}

// looker looks up the entries of a listing, one batch ahead of the entries that are being
// emitted. Nearly all time goes into the kernel's lookup of names, so that several goroutines
// share a large batch. It looks up nothing before a request needs it.
type looker struct {
	f    *FS
	d    *object
	st   *unix.Stat_t
	s    *stream
	plus bool
	// placed: the finder already has the places of the cached entries; see FS.entry.
	placed bool

	batches [2]batch
	lists   [2][]listed // of the batches
	nth     int         // batches so far
	size    int         // of the last one
	scan    []byte      // records that are not in a batch yet
	then    int         // number of buffers of s.then that are in a batch or in scan
	at      int         // the place of scan in the cached listing

	helpers int
	work    chan job
	helping sync.WaitGroup
}

var lookers = sync.Pool{New: func() any {
	l := new(looker)
	for i := range l.batches {
		l.batches[i].done = make(chan struct{}, 1)
	}
	return l
}}

func (l *looker) begin(f *FS, d *object, st *unix.Stat_t, s *stream, plus bool) {
	l.f, l.d, l.st, l.s, l.plus = f, d, st, s, plus
	l.placed = s.old != nil && s.old.epoch.Load() == f.find.epoch()
	l.scan, l.then, l.at, l.size = s.rest, 0, s.at, 0
}

// end waits for the helpers, because they write to entries of the listing.
func (l *looker) end() {
	l.nth++
	for i := range l.batches {
		l.batches[i].set(l.nth, nil)
	}
	if l.helpers > 0 {
		close(l.work)
		l.helping.Wait()
	}
	l.helpers, l.work = 0, nil
	for i := range l.lists {
		clear(l.lists[i])
		l.lists[i] = l.lists[i][:0]
	}
	l.f, l.d, l.st, l.s, l.scan = nil, nil, nil, nil, nil
}

// next returns the next batch, or nil at the end of the directory. before is the number of
// entries in the batches before it.
func (l *looker) next(before int) (*batch, error) {
	s := l.s
	if len(l.scan) == 0 && l.then == len(s.then) {
		b, err := s.read()
		if err != nil || len(b) == 0 {
			return nil, err
		}
		if len(s.rest) == 0 {
			s.rest, l.scan = b, b
		} else {
			s.then = append(s.then, b)
		}
	}
	if len(l.scan) == 0 {
		l.scan = s.then[l.then]
		l.then++
	}
	// A reply with as many entries as the one before then ends with a batch.
	n := min(max(batchFirst, 2*l.size), batchMax)
	if d := s.took - before; d > 0 {
		n = min(max(d, batchFirst), batchMax)
	}
	l.nth++
	turn := l.nth % len(l.batches)
	list := l.lists[turn][:0]
	for len(l.scan) > 0 && len(list) < n {
		e, size, ok := parseDirent(l.scan)
		if !ok {
			return nil, blockstore.ErrIO
		}
		l.scan = l.scan[size:]
		x := listed{dirent: e, rest: l.scan, at: l.at}
		if s.old != nil || s.next != nil {
			x.hash = maphash.Bytes(l.f.listings.seed, e.name)
			x.was, x.at = s.find(l.at, e.ino, x.hash)
			l.at = x.at
		}
		list = append(list, x)
	}
	l.size, l.lists[turn] = len(list), list
	b := &l.batches[turn]
	b.set(l.nth, list)
	l.help(b)
	return b, nil
}

// help gives a batch to other goroutines, too.
func (l *looker) help(b *batch) {
	if !l.plus || len(b.list) < helpMin {
		return
	}
	if l.work == nil {
		l.helpers = min(runtime.GOMAXPROCS(0)-1, helpersMax)
		l.work = make(chan job, 2*helpersMax)
		for range l.helpers {
			l.helping.Go(func() {
				for j := range l.work {
					j.b.look(l, j.nth)
				}
			})
		}
	}
	for range l.helpers {
		select {
		case l.work <- job{b, b.nth}:
		default: // the helpers are busy
		}
	}
}

// take takes entries that no other goroutine has taken; none if there are no more.
func (b *batch) take(nth int) []listed {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nth != nth {
		return nil
	}
	from := b.next
	b.next = min(from+chunk, len(b.list))
	return b.list[from:b.next]
}

// set reuses b for another batch.
func (b *batch) set(nth int, list []listed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nth, b.list, b.next = nth, list, 0
	b.left.Store(int32(len(list)))
}

// look looks up entries until other goroutines have taken the rest.
func (b *batch) look(l *looker, nth int) {
	for list := b.take(nth); len(list) > 0; list = b.take(nth) {
		for i := range list {
			e := &list[i]
			e.out = blockstore.DirEntry{Name: unsafe.String(unsafe.SliceData(e.name), len(e.name)), FileID: e.ino, Cookie: e.off}
			e.here = l.f.entry(l.d, l.st, e, l.plus, l.placed)
		}
		if b.left.Add(int32(-len(list))) == 0 {
			select {
			case b.done <- struct{}{}:
			default:
			}
		}
	}
}

// finish looks up the entries that no other goroutine has taken, and waits for the other entries.
func (b *batch) finish(l *looker) {
	b.look(l, b.nth)
	for b.left.Load() != 0 {
		<-b.done // can be left from an earlier batch
	}
}
