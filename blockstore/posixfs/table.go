package posixfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/boltfile"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// Sizes and times of the table of locations.
const (
	// flushEvery and flushAt say when new places go to the disk: one transaction, with one sync,
	// for many of them. A crash that loses the last ones costs a search, and no handle.
	flushEvery = 250 * time.Millisecond
	flushAt    = 8192
	// recentMax bounds each of the two generations of locations in memory.
	recentMax = 1 << 16
	// missFor is how long an object that a search has not found is not searched for again. missMax
	// bounds how many such objects are remembered.
	missFor = 5 * time.Second
	missMax = 4096
	// searchShare: after a search that took t the next one waits searchShare*t, so that a client
	// with stale handles cannot keep the disk busy.
	searchShare = 4
	lockWait    = 2 * time.Second
)

var bucketPlaces = []byte("places")

// place is where an object was last seen.
type place struct {
	parent ident
	name   string
}

// byTable resolves identities without privileges. It walks from the root along the places where
// the object and its parents were seen last. At each step it checks that the object there has
// the identity; if not, it searches the export.
//
// A place is a hint: a wrong one costs a search, and never leads to another object. That is why
// places need no sync, and a damaged table starts empty.
type byTable struct {
	fs   *FS
	root ident
	path string // of db; empty without a state directory

	// dbMu is held for writing from FS.Release to FS.Resume, while another process uses the file.
	dbMu sync.RWMutex
	db   *bolt.DB

	mu      sync.Mutex
	changes atomic.Uint64 // see epoch
	recent  map[ident]place
	before  map[ident]place // the generation before recent
	pending map[ident]place // not on disk; an empty name is a removal
	missed  map[ident]time.Time
	err     error // of the last flush

	searchMu   sync.Mutex
	nextSearch time.Time

	kick chan struct{}
	quit chan struct{}
	done chan struct{}
}

func openTable(f *FS, root ident) (*byTable, error) {
	t := &byTable{
		fs: f, root: root,
		recent: make(map[ident]place), pending: make(map[ident]place), missed: make(map[ident]time.Time),
		kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	if f.opts.StateDir != "" {
		if err := os.MkdirAll(f.opts.StateDir, 0o700); err != nil {
			return nil, fmt.Errorf("making the state directory: %w", err)
		}
		path := filepath.Join(f.opts.StateDir, fmt.Sprintf("places-%016x.db", f.fsid))
		db, damage, err := openPlaces(path)
		if damage != nil {
			// Only hints are lost; the searches will find them again.
			f.log.Warn("the table of locations was damaged and starts empty", "error", damage)
		}
		if errors.Is(err, bolterrors.ErrTimeout) {
			return nil, fmt.Errorf("%s is in use by another process: two servers cannot export the same directory with one "+
				"state directory", path)
		}
		if err != nil {
			return nil, fmt.Errorf("opening the table of locations: %w", err)
		}
		t.db, t.path = db, path
	}
	go t.flusher()
	return t, nil
}

func openPlaces(path string) (db *bolt.DB, damage, err error) {
	db, damage, err = boltfile.Open(path,
		&bolt.Options{Timeout: lockWait, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return nil, nil, err
	}
	there := false
	err = db.View(func(tx *bolt.Tx) error {
		there = tx.Bucket(bucketPlaces) != nil
		return nil
	})
	if err == nil && !there { // an Update costs a sync, also if it changes nothing
		err = db.Update(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucketIfNotExists(bucketPlaces)
			return err
		})
	}
	if err != nil {
		_ = db.Close()
		return nil, nil, err
	}
	return db, damage, nil
}

// lookup returns the place where id was seen last.
func (t *byTable) lookup(id *ident) (place, bool) {
	t.mu.Lock()
	p, ok := t.known(id)
	t.mu.Unlock()
	if ok || t.path == "" {
		return p, ok && p.name != ""
	}
	t.dbMu.RLock()
	defer t.dbMu.RUnlock()
	_ = t.db.View(func(tx *bolt.Tx) error {
		p, ok = decodePlace(tx.Bucket(bucketPlaces).Get(id.bytes()))
		return nil
	})
	return p, ok
}

// known is lookup in memory. t.mu is held.
func (t *byTable) known(id *ident) (place, bool) {
	for _, m := range [...]map[ident]place{t.recent, t.before, t.pending} {
		if p, ok := m[*id]; ok {
			return p, true
		}
	}
	return place{}, false
}

// encodePlace returns a place as the table stores it, with the object's identity as its key:
//
//	 0     1      2
//	+-----+------+-------------+------+
//	| len | kind | identity of | name |   len counts kind and identity
//	|     |      | the parent  |      |
//	+-----+------+-------------+------+
func encodePlace(p *place) []byte {
	b := append([]byte{1 + p.parent.n}, p.parent.bytes()...)
	return append(b, p.name...)
}

func decodePlace(b []byte) (p place, ok bool) {
	if len(b) < 2 || len(b) < 1+int(b[0]) {
		return p, false
	}
	p.parent, ok = identFromBytes(b[1 : 1+int(b[0])])
	p.name = string(b[1+int(b[0]):])
	return p, ok && blockstore.CheckName(p.name) == nil
}

func (t *byTable) seen(id, parent *ident, name string) {
	if *id == t.root || name == "." || name == ".." {
		return
	}
	p := place{*parent, name}
	t.mu.Lock()
	have, ok := t.known(id)
	if ok && have == p {
		t.mu.Unlock()
		return
	}
	if ok {
		t.changes.Add(1)
	}
	p.name = strings.Clone(name) // name can be a part of a large buffer
	t.set(id, p)
	n := len(t.pending)
	t.mu.Unlock()
	t.pressure(n)
}

func (t *byTable) knows(id, parent *ident, name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, ok := t.known(id)
	return ok && have == place{*parent, name}
}

// epoch returns a number that changes when a place changes or is forgotten. While it stays the
// same, all places that were recorded stay known.
func (t *byTable) epoch() uint64 { return t.changes.Load() }

func (t *byTable) gone(id *ident) {
	t.mu.Lock()
	t.changes.Add(1)
	t.set(id, place{})
	n := len(t.pending)
	t.mu.Unlock()
	t.pressure(n)
}

// set records a place in memory; t.mu is held.
func (t *byTable) set(id *ident, p place) {
	if len(t.recent) >= recentMax {
		if len(t.before) > 0 {
			t.changes.Add(1)
		}
		t.before, t.recent = t.recent, make(map[ident]place)
	}
	t.recent[*id] = p
	delete(t.missed, *id)
	if t.path != "" {
		t.pending[*id] = p
	}
}

// pressure wakes the flusher when n places are pending. If the flusher does not keep up the
// caller flushes, so that memory stays bounded.
func (t *byTable) pressure(n int) {
	switch {
	case n >= 4*flushAt:
		_ = t.flush() // a failure loses hints, which searches find again
	case n >= flushAt:
		select {
		case t.kick <- struct{}{}:
		default:
		}
	}
}

func (t *byTable) flusher() {
	defer close(t.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-t.kick:
		case <-t.quit:
			return
		}
		_ = t.flush() // a failure loses hints, which searches find again
	}
}

// flush writes the pending places in one transaction.
func (t *byTable) flush() error {
	t.dbMu.RLock()
	defer t.dbMu.RUnlock()
	return t.write()
}

// write is flush with dbMu held.
func (t *byTable) write() error {
	t.mu.Lock()
	batch := t.pending
	if t.path == "" || len(batch) == 0 {
		err := t.err
		t.mu.Unlock()
		return err
	}
	t.pending = make(map[ident]place)
	// Lookups must find the batch while it is being written.
	for id, p := range batch {
		if _, ok := t.recent[id]; !ok {
			t.recent[id] = p
		}
	}
	t.mu.Unlock()
	err := t.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketPlaces)
		for id, p := range batch {
			var err error
			if p.name == "" {
				err = b.Delete(id.bytes())
			} else {
				err = b.Put(id.bytes(), encodePlace(&p))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	t.mu.Lock()
	if err != nil && t.err == nil {
		t.fs.log.Warn("the table of locations cannot be written; after a restart, files will be searched for", "error", err)
	}
	t.err = err
	t.mu.Unlock()
	return err
}

func (t *byTable) close() error {
	close(t.quit)
	<-t.done
	err := t.flush()
	if t.path != "" {
		err = errors.Join(err, t.db.Close())
	}
	return err
}

// Release closes the table, so that another process can open the store with the same state
// directory. This store serves nothing until Resume, after that process has ended; calls may
// wait until then.
func (f *FS) Release() error {
	t, ok := f.find.(*byTable)
	if !ok || t.path == "" {
		return nil
	}
	t.dbMu.Lock()
	_ = t.write() // a failure loses hints, which searches find again
	if err := t.db.Close(); err != nil {
		t.dbMu.Unlock()
		return err
	}
	return nil
}

// Resume continues after Release.
func (f *FS) Resume() error {
	t, ok := f.find.(*byTable)
	if !ok || t.path == "" {
		return nil
	}
	defer t.dbMu.Unlock()
	db, _, err := openPlaces(t.path)
	if err != nil {
		return err
	}
	t.db = db
	return nil
}

// open returns a descriptor of the object, wherever in the export it is now.
func (t *byTable) open(id *ident) (int, error) {
	fd, err := t.follow(id, 0)
	if err == nil || !errors.Is(err, blockstore.ErrStale) {
		return fd, err
	}
	return t.search(id)
}

// follow opens id at its known place, and its parents at theirs.
func (t *byTable) follow(id *ident, depth int) (int, error) {
	if *id == t.root {
		return unix.FcntlInt(uintptr(t.fs.root.path), unix.F_DUPFD_CLOEXEC, 0)
	}
	if depth > maxDepth {
		return -1, blockstore.ErrStale // places that form a circle
	}
	p, ok := t.lookup(id)
	if !ok {
		return -1, blockstore.ErrStale
	}
	dir, err := t.openParent(&p.parent, depth)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return t.openIf(dir, p.name, id)
}

// openParent is follow for a directory, which is often in the cache.
func (t *byTable) openParent(id *ident, depth int) (int, error) {
	h := t.fs.tag.handle(id)
	if o := t.fs.objects.get(&h); o != nil {
		defer t.fs.release(o)
		var st unix.Stat_t
		if o.stat(&st) == nil {
			return unix.FcntlInt(uintptr(o.path), unix.F_DUPFD_CLOEXEC, 0)
		}
	}
	return t.follow(id, depth+1)
}

// openIf opens name in dir if that is id. Otherwise it returns ErrStale.
func (t *byTable) openIf(dir int, name string, id *ident) (int, error) {
	fd, err := t.fs.openName(dir, name)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.EXDEV, unix.ELOOP, unix.ENAMETOOLONG:
		return -1, blockstore.ErrStale
	default:
		return -1, mapErr(err)
	}
	if got, err := identify(t.fs.kind, fd, ""); err != nil || got != *id {
		unix.Close(fd)
		return -1, blockstore.ErrStale
	}
	return fd, nil
}
