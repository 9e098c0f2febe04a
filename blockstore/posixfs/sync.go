package posixfs

import (
	"sync"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// syncs lets concurrent syncs of one inode stand for one another: one that begins after a
// caller's data was written covers it. One is under way at a time, and all that come meanwhile
// share the next. Its zero value is ready; it may be used from any goroutine.
//
// The kernel reports that it could not write some data back once, to the sync that it happened
// in or to the next, and takes the pages for clean afterwards. A later sync succeeds although
// the data is lost. So failures are counted: a caller reads the count before it changes the
// object, and do fails if a sync has failed since.
type syncs struct {
	mu      sync.Mutex
	more    sync.Cond // a sync has ended
	running bool
	next    *shared // nil while nobody waits
	failed  uint64  // syncs that failed
	lost    error   // of the last of them
}

// shared is one sync that several wait for. syncs.mu guards it.
type shared struct {
	all     bool // somebody wants the attributes as well
	callers int
	ended   bool
	err     error
}

// failures returns how many syncs have failed.
func (s *syncs) failures() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// do returns when a sync that began after do was called has ended, with its error, or with that
// of another sync if one has failed since there were since failures. all asks for attributes
// that are not needed to find the data. alone says that no other caller was covered.
func (s *syncs) do(all bool, since uint64, sync func(all bool) error) (alone bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if err == nil && s.failed != since {
			err = s.lost
		}
	}()
	s.more.L = &s.mu
	if !s.running && s.next == nil {
		return true, s.run(all, sync)
	}
	if s.next == nil {
		s.next = new(shared)
	}
	b := s.next
	b.all = b.all || all
	b.callers++
	for s.running && !b.ended {
		s.more.Wait()
	}
	if b.ended {
		return false, b.err
	}
	s.next = nil // from here on it covers nobody else
	b.err = s.run(b.all, sync)
	b.ended = true
	return b.callers == 1, b.err
}

// run syncs without mu, which is held.
func (s *syncs) run(all bool, sync func(all bool) error) error {
	s.running = true
	s.mu.Unlock()
	err := sync(all)
	s.mu.Lock()
	s.running = false
	if err != nil {
		s.failed++
		s.lost = err
	}
	s.more.Broadcast()
	return err
}

// failures is how many syncs had failed when a change of an object began.
type failures struct {
	object uint64
	whole  uint64 // syncs of the whole filesystem, where they stand for those of the object
}

// failures is to be called before a change that is synced.
func (f *FS) failures(o *object) failures {
	return failures{o.syncs.failures(), f.syncs.failures()}
}

// syncData puts the data of a file on disk, and of its attributes what finds it. It fails if a
// sync of the object has failed since.
func (f *FS) syncData(o *object, since failures) error { return f.sync(o, false, since) }

// syncAll puts the data and the attributes of an object on disk.
func (f *FS) syncAll(o *object, since failures) error { return f.sync(o, true, since) }

func (f *FS) sync(o *object, all bool, since failures) error {
	if f.async.Load() {
		return nil
	}
	fd, err := o.syncer()
	if err == unix.EACCES && !f.who.on {
		// The daemon's user cannot open its own object by its mode: the whole
		// filesystem is the only sync left.
		return f.syncWhole(since)
	}
	if err != nil {
		return mapErr(err)
	}
	alone, err := o.syncs.do(all, since.object, func(all bool) error {
		if err := f.kernelSync(fd, all); err != nil {
			f.distrust(o, fd)
			return f.syncFailed(err)
		}
		return nil
	})
	if !alone {
		f.count.syncsShared.Add(1)
	}
	return err
}

// distrust drops a file's pages from the page cache after the kernel has failed to write some of
// them back. The kernel marks those pages clean, although the disk does not have their data. On
// ext4 it also takes their extents for written, although they are still unwritten on the disk.
// Data written to such a page later reaches the disk, and its sync succeeds. But after a restart
// of the host it reads as zeros.
//
// Nobody writes meanwhile. What was written up to here goes to the disk first, as dirty pages
// cannot be forgotten; the verifier is still that of before, and the failure is not counted yet,
// so whoever wrote it will write it again.
func (f *FS) distrust(o *object, fd int) {
	if o.typ != blockstore.TypeReg {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	f.windows.dropIdle(o) // mapped pages are kept
	_ = kernelSync(fd, false)
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
}

// syncer returns the descriptor to sync an object by. It is the one that data was written by, if
// there is one: the kernel does not report to a descriptor what failed, and was reported to
// another, before it was opened.
func (o *object) syncer() (int, error) {
	if fd := o.rw.Load(); fd >= 0 {
		return int(fd), nil
	}
	fd, err := o.reader()
	if err == unix.EACCES && o.typ == blockstore.TypeReg {
		fd, err = o.writer()
	}
	return fd, err
}

// syncWhole puts everything of the filesystem on disk.
func (f *FS) syncWhole(since failures) error {
	_, err := f.syncs.do(true, since.whole, func(bool) error {
		fd, err := f.root.reader()
		if err == nil {
			err = unix.Syncfs(fd)
		}
		if err != nil {
			return f.syncFailed(err)
		}
		return nil
	})
	return err
}

// kernelSync is fsync, or fdatasync.
func kernelSync(fd int, all bool) error {
	return retry(func() error {
		if all {
			return unix.Fsync(fd)
		}
		return unix.Fdatasync(fd)
	})
}
