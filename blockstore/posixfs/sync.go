package posixfs

import (
	"sync"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// syncs combines concurrent syncs of one inode. A sync that begins after a caller's data was
// written covers that data. One sync runs at a time; all callers that come meanwhile share the
// next one. The zero value is ready. It may be used from any goroutine.
//
// The kernel reports a failure to write data back once, to the sync in which it occurs or to the
// next one, and then marks the pages as clean. A later sync succeeds although the data is lost.
// So syncs counts failures: a caller reads the count before it changes the object, and do fails
// if a sync has failed since.
type syncs struct {
	mu      sync.Mutex
	more    sync.Cond // a sync has ended
	running bool
	next    *shared // nil while no caller waits
	failed  uint64  // syncs that failed
	lost    error   // of the last of them
}

// shared is one sync for which several callers wait. syncs.mu guards it.
type shared struct {
	all     bool // a caller wants the attributes as well
	callers int
	ended   bool
	err     error
}

// failures returns how many syncs have failed so far.
func (s *syncs) failures() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// do returns when a sync has ended that began after do was called. since is the count of failures
// before the caller changed the object. If any sync has failed since, do returns an error. all asks
// for all attributes (fsync), not only for those that are needed to find the data (fdatasync).
// alone says that the sync covered no other caller.
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
	s.next = nil // callers from here on are not covered by b
	b.err = s.run(b.all, sync)
	b.ended = true
	return b.callers == 1, b.err
}

// run calls sync and releases mu meanwhile. mu is held.
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

// failures are the counts of failed syncs when a change of an object began.
type failures struct {
	object uint64
	whole  uint64 // syncs of the whole filesystem, where they replace those of the object
}

// failures returns the counts. It is called before a change that will be synced.
func (f *FS) failures(o *object) failures {
	return failures{o.syncs.failures(), f.syncs.failures()}
}

// syncData puts the data of a file on disk, with the attributes that are needed to find it. It
// fails if a sync of the object has failed since.
func (f *FS) syncData(o *object, since failures) error { return f.sync(o, false, since) }

// syncAll puts the data and the attributes of an object on disk.
func (f *FS) syncAll(o *object, since failures) error { return f.sync(o, true, since) }

func (f *FS) sync(o *object, all bool, since failures) error {
	if f.async.Load() {
		return nil
	}
	fd, err := o.syncer()
	if err == unix.EACCES && !f.who.on {
		// The mode forbids the daemon's user to open its own object, so that only the whole filesystem
		// can be synced.
		return f.syncWhole(since)
	}
	if err != nil {
		return mapErr(err)
	}
	alone, err := o.syncs.do(all, since.object, func(all bool) error {
		err := f.kernelSync(fd, all)
		if err == nil && f.aborts {
			err = aborted(fd)
		}
		if err != nil {
			f.dropPages(o, fd)
			return f.syncFailed(err)
		}
		return nil
	})
	if !alone {
		f.count.syncsShared.Add(1)
	}
	return err
}

// dropPages drops a file's pages from the page cache after the kernel has failed to write some
// of them back.
//
// The kernel marks those pages as clean, although the disk does not have their data. On ext4 it
// also takes their extents for written, although they are still unwritten on the disk. Data that
// is written to such a page later reaches the disk, and its sync succeeds. But after a restart
// of the host it reads as zeros.
//
// o.mu keeps writes away meanwhile. The data that was written up to now is synced first, because
// dirty pages cannot be dropped. Its writers still get the old verifier, and the failure is not
// counted yet, so that they will write the data again.
func (f *FS) dropPages(o *object, fd int) {
	if o.typ != blockstore.TypeReg {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	f.windows.dropIdle(o) // the kernel does not drop mapped pages
	_ = kernelSync(fd, false)
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
}

// syncer returns the descriptor to sync an object with. It is the one that wrote the data, if
// there is one: the kernel does not report to a descriptor a failure that it has reported before
// that was opened.
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
		if err == nil && f.aborts {
			err = aborted(fd)
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

// absentXattr is the name of an extended attribute that no object has.
const absentXattr = "user.rstored.absent"

// aborted returns an error if the journal of the filesystem of fd was aborted, or the filesystem
// was shut down. A sync on ext4 and XFS (seen with Linux 6.18) can return 0 although the commit of
// its transaction has failed: the transaction is gone when the sync looks for it. That happens when
// a flush of the disk fails. Operations that begin afterwards fail. So aborted removes an extended
// attribute that no object has: this changes nothing, and takes a microsecond. If the filesystem
// refuses it for another reason, aborted returns nil.
func aborted(fd int) error {
	if err := unix.Fremovexattr(fd, absentXattr); err == unix.EIO || err == unix.EROFS {
		return err
	}
	return nil
}
