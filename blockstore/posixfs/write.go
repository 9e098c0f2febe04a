package posixfs

import (
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// WriteAt writes p, and makes it stable as how says:
//
//	FileSync   fsync has returned: data, and all attributes
//	DataSync   fdatasync has returned: data, and the attributes that are needed to find it
//	Unstable   the data is in the page cache
//
// With Options.Async no level syncs. No other operation of this server comes between the attributes
// before and after; a program of the host may write the file in between.
//
// The count of failed syncs is read before the write, so that a failure meanwhile fails this
// call too; see syncs.
func (f *FS) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (
	int, blockstore.Stability, blockstore.Wcc, error,
) {
	o, err := f.acquire(h)
	if err != nil {
		return 0, how, blockstore.Wcc{}, err
	}
	defer f.release(o)
	var w blockstore.Wcc
	since := f.failures(o)
	n, err := f.write(c, o, p, off, &w)
	if err != nil {
		return 0, how, w, err
	}
	switch {
	case how == blockstore.FileSync:
		err = f.syncAll(o, since)
	case how == blockstore.DataSync:
		err = f.syncData(o, since)
	case n > 0:
		o.dirty.Store(true)
	}
	if err != nil {
		return 0, how, w, err
	}
	return n, how, w, nil
}

// WriteNowait implements blockstore.NowaitWriter. It writes only to a file that is open for
// writing, that no other call is changing, and with RWF_NOWAIT. Stable writes wait for a disk,
// except on filesystems in memory, so they get ErrWouldBlock.
func (f *FS) WriteNowait(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (
	int, blockstore.Stability, blockstore.Wcc, error,
) {
	var w blockstore.Wcc
	if n, ok := f.writeNowait(c, h, p, off, how, &w); ok {
		return n, how, w, nil
	}
	f.count.writesBlock.Add(1)
	return 0, how, blockstore.Wcc{}, blockstore.ErrWouldBlock
}

func (f *FS) writeNowait(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability,
	w *blockstore.Wcc,
) (int, bool) {
	if !f.inMemory && (how != blockstore.Unstable || f.noNowaitWrite.Load()) || len(p) == 0 ||
		!writable(off, len(p)) || f.readOnly || f.goesDirect(len(p)) {
		return 0, false
	}
	o := f.objects.get(&h)
	if o == nil {
		return 0, false
	}
	defer f.release(o)
	fd := int(o.rw.Load())
	// TryLock: another call of this server is writing, and may be waiting for a disk.
	if o.typ != blockstore.TypeReg || fd < 0 || !o.mu.TryLock() {
		return 0, false
	}
	defer o.mu.Unlock()
	var st unix.Stat_t
	if o.stat(&st) != nil || st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 || !f.mayWrite(c, o, &st) {
		return 0, false
	}
	f.before(w, &st)
	n, ok := 0, false
	if !f.limited(c) {
		n, ok = f.pwriteNowait(fd, p, off)
	} else if !f.who.ownThreads { // an identity thread would have to be waited for
		n, ok = f.pwriteNowaitWithin(c, fd, p, off)
	}
	if ok {
		o.dirty.Store(true)
		o.changed(w)
	}
	return n, ok
}

// pwriteNowaitWithin is pwriteNowait within the limits of the client's user. It is a function of
// its own for the same reason as pwriteAs.
func (f *FS) pwriteNowaitWithin(c *blockstore.Cred, fd int, p []byte, off uint64) (n int, ok bool) {
	err := f.who.within(c, func() error {
		n, ok = f.pwriteNowait(fd, p, off)
		return nil
	})
	return n, ok && err == nil
}

// pwriteNowait writes all of p, or reports false if that would have to wait. Like preadNowait it
// goes past the Go runtime.
func (f *FS) pwriteNowait(fd int, p []byte, off uint64) (int, bool) {
	if f.inMemory {
		n, e := rawPwrite(fd, p, off)
		return n, e == 0
	}
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	n, _, e := unix.RawSyscall6(unix.SYS_PWRITEV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1,
		uintptr(off), uintptr(off>>32), unix.RWF_NOWAIT)
	if e == unix.EOPNOTSUPP || e == unix.ENOSYS {
		f.noNowaitWrite.Store(true)
	}
	return int(n), e == 0 && int(n) == len(p) // the rest of a short write would have to wait
}

// writable reports whether a file can have n bytes at off.
func writable(off uint64, n int) bool {
	return off <= 1<<63-1 && (n == 0 || off+uint64(n) <= 1<<63-1)
}

func (f *FS) write(c *blockstore.Cred, o *object, p []byte, off uint64, w *blockstore.Wcc) (n int, err error) {
	if err := o.dataType(); err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		if err == blockstore.ErrStale {
			f.forget(o)
		}
		return 0, err
	}
	f.before(w, &st)
	if f.readOnly {
		return 0, blockstore.ErrROFS
	}
	if !f.mayWrite(c, o, &st) {
		return 0, blockstore.ErrAccess
	}
	if !writable(off, len(p)) {
		return 0, blockstore.ErrFBig
	}
	fd, err := o.writer()
	if err != nil {
		return 0, mapErr(err)
	}
	if len(p) == 0 {
		return 0, nil
	}
	switch {
	case st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		// One write as the client's user removes the bits; the next one takes the fast path.
		n, err = f.pwriteAs(c, fd, p, off)
		if err == nil && !f.who.on {
			err = f.dropSetID(c, o, st.Mode)
		}
	case f.limited(c):
		n, err = f.pwriteWithin(c, o, fd, p, off)
	default:
		n, err = f.pwriteAny(o, fd, p, off)
	}
	if n > 0 {
		o.changed(w)
	} else {
		o.after(w)
	}
	return n, mapErr(err) // ENOSPC, EDQUOT: with delayed allocation the sync returns them
}

// pwriteAs is pwrite as the client's user, so that the kernel removes the set-ID bits. It is a
// function of its own because its closure moves variables to the heap, for which other writes
// must not pay.
func (f *FS) pwriteAs(c *blockstore.Cred, fd int, p []byte, off uint64) (n int, err error) {
	err = f.who.as(c, func() (err error) {
		n, err = f.pwrite(fd, p, off)
		return err
	})
	return n, err
}

// limited reports whether c has limits of space in the filesystem that the daemon does not have,
// so that the write must be made as c's user.
func (f *FS) limited(c *blockstore.Cred) bool { return f.limitsUsers && !c.Privileged() }

// pwriteWithin is pwriteAny within the limits of the client's user.
func (f *FS) pwriteWithin(c *blockstore.Cred, o *object, fd int, p []byte, off uint64) (n int, err error) {
	err = f.who.within(c, func() (err error) {
		n, err = f.pwriteAny(o, fd, p, off)
		return err
	})
	return n, err
}

// pwriteAny is pwrite or writeDirect.
func (f *FS) pwriteAny(o *object, fd int, p []byte, off uint64) (int, error) {
	if f.goesDirect(len(p)) {
		return f.writeDirect(o, fd, p, off)
	}
	return f.pwrite(fd, p, off)
}

func (f *FS) pwrite(fd int, p []byte, off uint64) (int, error) {
	if f.inMemory {
		n, e := rawPwrite(fd, p, off)
		if e != 0 {
			return 0, e
		}
		return n, nil
	}
	for {
		n, err := unix.Pwrite(fd, p, int64(off))
		if err != unix.EINTR {
			return n, err
		}
	}
}

// rawPwrite is pwrite to a filesystem in memory, past the Go runtime: it copies and never waits.
func rawPwrite(fd int, p []byte, off uint64) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
			uintptr(len(p)), uintptr(off), uintptr(off>>32), 0)
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// dropSetID removes the set-ID bits after a write or truncation. The kernel does that only if
// the thread has no CAP_FSETID, and here the daemon's user wrote.
func (f *FS) dropSetID(c *blockstore.Cred, o *object, mode uint32) error {
	mode &= 0o7777
	if c.Privileged() || blockstore.DropSetID(mode) == mode {
		return nil
	}
	return unix.Chmod(procPath(o.path), blockstore.DropSetID(mode))
}

// Commit syncs the data of the file (fdatasync), whatever the range: sync_file_range(2) neither
// flushes the cache of the disk nor writes the metadata that finds the data.
func (f *FS) Commit(c *blockstore.Cred, h blockstore.Handle, off uint64, count uint32) (blockstore.Wcc, error) {
	var w blockstore.Wcc
	o, err := f.acquire(h)
	if err != nil {
		return w, err
	}
	defer f.release(o)
	since := f.failures(o)
	var st unix.Stat_t
	if err := o.statFile(&st); err != nil {
		return w, err
	}
	f.before(&w, &st)
	if !f.mayWrite(c, o, &st) {
		return w, blockstore.ErrAccess
	}
	// Before the sync: a write that comes meanwhile makes the object dirty again.
	o.dirty.Store(false)
	if err := f.syncData(o, since); err != nil {
		return w, err
	}
	o.after(&w)
	return w, nil
}
