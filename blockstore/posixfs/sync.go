package posixfs

import (
	"sync"

	"golang.org/x/sys/unix"
)

// syncs lets concurrent syncs of one inode stand for one another: one that begins after a
// caller's data was written covers it. One is under way at a time, and all that come meanwhile
// share the next. Its zero value is ready; it may be used from any goroutine.
type syncs struct {
	mu      sync.Mutex
	more    sync.Cond // a sync has ended
	running bool
	next    *shared // nil while nobody waits
}

// shared is one sync that several wait for. syncs.mu guards it.
type shared struct {
	all     bool // somebody wants the attributes as well
	callers int
	ended   bool
	err     error
}

// do returns when a sync that began after do was called has ended, with its error, which is that of
// every caller that it covers: the kernel tells of data that it could not write once for a
// descriptor, so that a sync of one's own might not hear of it. all asks for attributes that are not
// needed to find the data. alone says that no other caller was covered.
func (s *syncs) do(all bool, sync func(all bool) error) (alone bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
	s.more.Broadcast()
	return err
}

// syncData puts the data of a file on disk, and of its attributes what finds it; fd is a descriptor of it.
func (f *FS) syncData(o *object, fd int) error { return f.sync(o, fd, false) }

// syncAll puts the data and the attributes of an object on disk.
func (f *FS) syncAll(o *object, fd int) error { return f.sync(o, fd, true) }

func (f *FS) sync(o *object, fd int, all bool) error {
	if f.async.Load() {
		return nil
	}
	alone, err := o.syncs.do(all, func(all bool) error {
		if err := f.kernelSync(fd, all); err != nil {
			return f.syncFailed(err)
		}
		return nil
	})
	if !alone {
		f.count.syncsShared.Add(1)
	}
	return err
}

// kernelSync is fsync, or fdatasync.
func kernelSync(fd int, all bool) error {
	_, err := again(func() (int, error) {
		if all {
			return 0, unix.Fsync(fd)
		}
		return 0, unix.Fdatasync(fd)
	})
	return err
}
