package posixfs

import (
	"math"
	"sync"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.HostLocker = (*FS)(nil)

// Locks of the host are open file description locks (fcntl(2)): those of a description do
// not conflict with each other, they do with those of everybody else, fcntl's own and
// lockf's included. A file has one description for them as long as there are any. It is
// that of the object's descriptor for writing, so that nothing is opened for them alone,
// which a lease of the file would mind; a duplicate outlives the object's place in the cache.

// hostLocks are the descriptors, by file.
type hostLocks struct {
	files *Files

	mu  sync.Mutex
	fds map[blockstore.Handle]int
	// remote filesystems ask somebody else, for as long as that takes.
	remote bool
}

func (l *hostLocks) init(files *Files, remote bool) {
	l.files, l.remote, l.fds = files, remote, make(map[blockstore.Handle]int)
}

// remoteFS reports whether a filesystem has its locks elsewhere.
func remoteFS(magic int64) bool {
	switch uint32(magic) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC,
		unix.V9FS_MAGIC, unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC, unix.CODA_SUPER_MAGIC, unix.NCP_SUPER_MAGIC,
		unix.FUSE_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC:
		return true
	}
	return false
}

// hostMax is the last byte that the host can lock: a length counts up to there.
const hostMax = math.MaxInt64 - 1

// flock is a range for fcntl; ok is false if the host has no such bytes.
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

// descriptor is that of a file's locks, which it opens. made says that it did.
func (l *hostLocks) descriptor(f *FS, h blockstore.Handle) (fd int, made bool, err error) {
	l.mu.Lock()
	fd, ok := l.fds[h]
	l.mu.Unlock()
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
	if have, ok := l.fds[h]; ok { // somebody was faster
		unix.Close(fd)
		l.files.lock(-1)
		return have, false, nil
	}
	l.fds[h] = fd
	return fd, true, nil
}

// dupForLocks is a duplicate of a regular file's descriptor, opened as the daemon: whether
// a client may lock it is decided elsewhere. One for reading is enough to share it.
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
				continue // it was given up meanwhile
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
		// A filesystem without locks, a file that cannot be opened for writing, or a
		// kernel without such locks: there is nothing to be seen on the host.
		return nil, blockstore.ErrNotSupp
	}
	return nil, nil
}

// UnlockHost implements blockstore.HostLocker.
func (f *FS) UnlockHost(h blockstore.Handle, start, end uint64) {
	l, ok := flock(start, end, unix.F_UNLCK)
	f.hostLocks.mu.Lock()
	fd, have := f.hostLocks.fds[h]
	f.hostLocks.mu.Unlock()
	if !ok || !have {
		return
	}
	if err := ofd(fd, unix.F_OFD_SETLK, &l); err != nil {
		f.log.Warn("a lock that no client has any more stays with the host until the last of the file goes", "error", err)
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

// unlockAll gives up the locks of a descriptor, which is not the only one of its
// description, and closes it.
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
	f.hostLocks.mu.Lock()
	fd, have := f.hostLocks.fds[h]
	f.hostLocks.mu.Unlock()
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

// ofd makes a call on an open file description lock that does not wait.
func ofd(fd, cmd int, l *unix.Flock_t) error {
	return retry(func() error { return unix.FcntlFlock(uintptr(fd), cmd, l) })
}

// hostLock is what F_OFD_GETLK says.
func hostLock(l *unix.Flock_t) *blockstore.HostLock {
	x := &blockstore.HostLock{Start: uint64(l.Start), End: math.MaxUint64, Exclusive: l.Type == unix.F_WRLCK, PID: int(max(l.Pid, 0))}
	if l.Len > 0 {
		x.End = uint64(l.Start + l.Len - 1)
	}
	return x
}

// close ends all of them.
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
