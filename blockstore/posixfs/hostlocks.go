package posixfs

import (
	"math"
	"sync"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.HostLocker = (*FS)(nil)

// Locks of the host are open file description locks (fcntl(2), F_OFD_SETLK). Locks of one
// description do not conflict with each other, but with all others, those of fcntl and lockf
// included. A file has one description for its locks while there are any. It is that of the
// object's descriptor for writing: a description that is opened only for locks would conflict
// with a lease of the file. The duplicate descriptor stays when the cache evicts the object.

// hostLocks are the descriptors, by file.
type hostLocks struct {
	files *Files

	mu  sync.Mutex
	fds map[blockstore.Handle]int
	// remote filesystems have their locks at a server, for which a call would have to wait.
	remote bool
}

func (l *hostLocks) init(files *Files, remote bool) {
	l.files, l.remote, l.fds = files, remote, make(map[blockstore.Handle]int)
}

// hostMax is the last byte that the host can lock: off_t is signed.
const hostMax = math.MaxInt64 - 1

// flock returns a range for fcntl. ok is false if the host cannot lock such bytes.
func flock(start, end uint64, typ int16) (l unix.Flock_t, ok bool) {
	if start > hostMax {
		return l, false
	}
	l = unix.Flock_t{Type: typ, Whence: unix.SEEK_SET, Start: int64(start)}
	if end < hostMax {
		l.Len = int64(end - start + 1)
	}
	return l, true
}

func lockType(exclusive bool) int16 {
	if exclusive {
		return unix.F_WRLCK
	}
	return unix.F_RDLCK
}

func (l *hostLocks) get(h blockstore.Handle) (fd int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fd, ok = l.fds[h]
	return fd, ok
}

// descriptor returns the descriptor for a file's locks. made says that there was none before.
func (l *hostLocks) descriptor(f *FS, h blockstore.Handle) (fd int, made bool, err error) {
	fd, ok := l.get(h)
	switch {
	case ok:
		return fd, false, nil
	case !l.files.lock(1):
		return -1, false, blockstore.ErrJukebox
	}
	if fd, err = f.dupForLocks(h); err != nil {
		l.files.lock(-1)
		return -1, false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if have, ok := l.fds[h]; ok { // made by another call meanwhile
		unix.Close(fd)
		l.files.lock(-1)
		return have, false, nil
	}
	l.fds[h] = fd
	return fd, true, nil
}

// dupForLocks duplicates a descriptor of a regular file. It is opened as the daemon: the
// protocol layer checks whether a client may lock the file. A descriptor for reading is enough
// for shared locks.
func (f *FS) dupForLocks(h blockstore.Handle) (int, error) {
	o, err := f.acquire(h)
	if err != nil {
		return -1, err
	}
	defer f.release(o)
	if err := o.dataType(); err != nil {
		return -1, err
	}
	fd, err := o.writer()
	if err != nil {
		fd, err = o.reader()
	}
	if err == nil {
		fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return -1, mapErr(err)
	}
	return fd, nil
}

// LockHost implements blockstore.HostLocker.
func (f *FS) LockHost(h blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	want, ok := flock(start, end, lockType(exclusive))
	if !ok {
		return nil, nil
	}
	if f.hostLocks.remote {
		return nil, blockstore.ErrNotSupp
	}
	fd, made, err := f.hostLocks.descriptor(f, h)
	if err != nil {
		return nil, err
	}
	for {
		err = ofd(fd, unix.F_OFD_SETLK, &want)
		if err != unix.EAGAIN && err != unix.EACCES {
			break
		}
		got := want
		in := &blockstore.HostLock{Start: start, End: end, Exclusive: true}
		if ofd(fd, unix.F_OFD_GETLK, &got) == nil {
			if got.Type == unix.F_UNLCK {
				continue // it was released meanwhile
			}
			in = hostLock(&got)
		}
		if made {
			f.ReleaseHost(h)
		}
		return in, nil
	}
	if err != nil {
		if made {
			f.ReleaseHost(h)
		}
		// A filesystem without locks, a file that cannot be opened for writing, or a kernel without
		// such locks: programs of the host see no locks.
		return nil, blockstore.ErrNotSupp
	}
	return nil, nil
}

// UnlockHost implements blockstore.HostLocker.
func (f *FS) UnlockHost(h blockstore.Handle, start, end uint64) {
	l, ok := flock(start, end, unix.F_UNLCK)
	fd, have := f.hostLocks.get(h)
	if !ok || !have {
		return
	}
	if err := ofd(fd, unix.F_OFD_SETLK, &l); err != nil {
		f.log.Warn("a lock of a client could not be released on the host; it stays until the file is closed", "error", err)
	}
}

// ReleaseHost implements blockstore.HostLocker.
func (f *FS) ReleaseHost(h blockstore.Handle) {
	f.hostLocks.mu.Lock()
	fd, ok := f.hostLocks.fds[h]
	delete(f.hostLocks.fds, h)
	f.hostLocks.mu.Unlock()
	if ok {
		unlockAll(fd)
		f.hostLocks.files.lock(-1)
	}
}

// unlockAll unlocks everything, and closes the descriptor. To close it alone would not unlock:
// the description has other descriptors.
func unlockAll(fd int) {
	_ = ofd(fd, unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK, Whence: unix.SEEK_SET})
	unix.Close(fd)
}

// TestHost implements blockstore.HostLocker.
func (f *FS) TestHost(h blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	l, ok := flock(start, end, lockType(exclusive))
	if !ok {
		return nil, nil
	}
	if f.hostLocks.remote {
		return nil, blockstore.ErrNotSupp
	}
	fd, have := f.hostLocks.get(h)
	if !have {
		o, err := f.acquire(h)
		if err != nil {
			return nil, err
		}
		defer f.release(o)
		if err = o.dataType(); err == nil {
			fd, err = o.reader()
		}
		if err != nil {
			return nil, mapErr(err)
		}
	}
	switch err := ofd(fd, unix.F_OFD_GETLK, &l); {
	case err != nil:
		return nil, blockstore.ErrNotSupp
	case l.Type == unix.F_UNLCK:
		return nil, nil
	}
	return hostLock(&l), nil
}

// ofd calls fcntl for an open file description lock. It never waits for a lock.
func ofd(fd, cmd int, l *unix.Flock_t) error {
	return retry(func() error { return unix.FcntlFlock(uintptr(fd), cmd, l) })
}

// hostLock converts the lock that F_OFD_GETLK returns.
func hostLock(l *unix.Flock_t) *blockstore.HostLock {
	x := &blockstore.HostLock{
		Start: uint64(l.Start), End: math.MaxUint64, Exclusive: l.Type == unix.F_WRLCK, PID: int(max(l.Pid, 0)),
	}
	if l.Len > 0 {
		x.End = uint64(l.Start + l.Len - 1)
	}
	return x
}

// close releases all locks.
func (l *hostLocks) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h, fd := range l.fds {
		unlockAll(fd)
		l.files.lock(-1)
		delete(l.fds, h)
	}
}

const openFilesMin = 16
