package posixfs

import (
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// ReadAt reads from the page cache or the disk straight into p: one fstat and
// one preadv2, no allocation. With nowait the kernel is asked for what is in
// memory only, and an object that is not open yet counts as not there.
func (f *FS) ReadAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, nowait bool) (int, bool, error) {
	var o *object
	if nowait {
		if f.noNowait.Load() && !f.inMemory {
			return 0, false, f.wouldBlock()
		}
		if o = f.objects.get(&h); o == nil {
			return 0, false, f.wouldBlock()
		}
	} else {
		var err error
		if o, err = f.acquire(h); err != nil {
			return 0, false, err
		}
	}
	n, eof, err := f.readObject(c, o, p, off, nowait)
	f.release(o)
	return n, eof, err
}

func (f *FS) wouldBlock() error {
	f.count.wouldBlock.Add(1)
	return blockstore.ErrWouldBlock
}

func (f *FS) readObject(c *blockstore.Cred, o *object, p []byte, off uint64, nowait bool) (int, bool, error) {
	if err := o.dataType(); err != nil {
		return 0, false, err
	}
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		if err == blockstore.ErrStale {
			f.forget(o)
		}
		return 0, false, err
	}
	if !f.mayRead(c, o, &st) {
		return 0, false, blockstore.ErrAccess
	}
	size := uint64(st.Size)
	if off >= size {
		return 0, true, nil
	}
	if len(p) == 0 {
		return 0, false, nil
	}
	fd, err := o.reader()
	if err != nil {
		return 0, false, mapErr(err)
	}
	direct := f.goesDirect(len(p))
	if nowait && direct {
		return 0, false, f.wouldBlock()
	}
	if !nowait {
		var n int
		if direct {
			n, err = f.readDirect(o, fd, p, off)
		} else {
			n, err = f.readWait(o, fd, p, off, size)
		}
		if n == 0 && err != nil {
			return 0, false, mapErr(err)
		}
		// At the size seen, or at a smaller one that a truncation left; not at what the disk cannot read.
		return n, off+uint64(n) == size || n < len(p) && err == nil, nil
	}
	flags := uintptr(unix.RWF_NOWAIT)
	if f.inMemory {
		flags = 0 // which such file systems need not know
	}
	n, e := preadNowait(fd, p, off, flags)
	switch e {
	case 0:
	case unix.EAGAIN:
		return 0, false, f.wouldBlock()
	case unix.EOPNOTSUPP, unix.ENOSYS:
		f.noNowait.Store(true)
		return 0, false, f.wouldBlock()
	default:
		return 0, false, mapErr(e)
	}
	if n == 0 {
		return 0, true, nil
	}
	// A short count may mean that the rest is on disk, for which the call comes again and may wait.
	if n == len(p) {
		f.hasRead(o, fd, off, uint64(n), size, false)
	}
	return n, off+uint64(n) == size, nil
}

// readWait is pread of a file of size bytes that has the kernel read ahead where reads form a stream.
func (f *FS) readWait(o *object, fd int, p []byte, off, size uint64) (int, error) {
	want := int(min(uint64(len(p)), size-off))
	if want < aheadMin || f.inMemory || f.noNowait.Load() {
		return pread(fd, p, off)
	}
	n, e := preadNowait(fd, p[:want], off, unix.RWF_NOWAIT)
	if e == unix.EOPNOTSUPP || e == unix.ENOSYS {
		f.noNowait.Store(true)
		return pread(fd, p, off)
	}
	if e != 0 {
		n = 0 // what is wrong with it the read that waits finds out
	}
	f.hasRead(o, fd, off, uint64(want), size, n < want)
	if n == want {
		return n, nil
	}
	k, err := pread(fd, p[n:], off+uint64(n))
	return n + k, err
}

// pread fills p unless the file ends, or what follows n bytes cannot be read: then there is an error. The kernel
// may stop early at a signal.
func pread(fd int, p []byte, off uint64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(fd, p[done:], int64(off)+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		if n == 0 {
			break
		}
		done += n
	}
	return done, nil
}

// preadNowait is preadv2 with RWF_NOWAIT on one buffer, without the slice of
// slices that the wrapper would allocate, and without telling the runtime, which
// would give the processor to another thread as if this one waited.
func preadNowait(fd int, p []byte, off uint64, flags uintptr) (int, unix.Errno) {
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), uintptr(off>>32), flags)
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// WriteAt writes p and syncs it as asked. The attributes before and after are
// adjacent to the write among operations of this server; a process of the host
// that writes the same file in between goes unnoticed.
func (f *FS) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (int, blockstore.Stability, blockstore.Wcc, error) {
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

// WriteNowait implements blockstore.NowaitWriter, of files that are open and that nobody else
// is writing. Where data is on disk the kernel is asked not to wait (RWF_NOWAIT), and what is
// to be stable at once is not for here.
func (f *FS) WriteNowait(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (int, blockstore.Stability, blockstore.Wcc, error) {
	var w blockstore.Wcc
	if n, ok := f.writeNowait(c, h, p, off, how, &w); ok {
		return n, how, w, nil
	}
	f.count.writesBlock.Add(1)
	return 0, how, blockstore.Wcc{}, blockstore.ErrWouldBlock
}

func (f *FS) writeNowait(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability, w *blockstore.Wcc) (int, bool) {
	if !f.inMemory && (how != blockstore.Unstable || f.noNowaitWrite.Load()) || len(p) == 0 || !writable(off, len(p)) || f.readOnly || f.goesDirect(len(p)) {
		return 0, false
	}
	o := f.objects.get(&h)
	if o == nil {
		return 0, false
	}
	defer f.release(o)
	fd := int(o.rw.Load())
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
	} else if !f.who.apart { // another thread would have to be waited for
		n, ok = f.pwriteNowaitWithin(c, fd, p, off)
	}
	if ok {
		o.dirty.Store(true)
		o.changed(w)
	}
	return n, ok
}

// pwriteNowaitWithin is pwriteNowait within the limits of the client's user. It is apart as pwriteAs is.
func (f *FS) pwriteNowaitWithin(c *blockstore.Cred, fd int, p []byte, off uint64) (n int, ok bool) {
	err := f.who.within(c, func() error {
		n, ok = f.pwriteNowait(fd, p, off)
		return nil
	})
	return n, ok && err == nil
}

// pwriteNowait writes p if nothing is to be waited for, without telling the runtime, which
// would give the processor to another thread as if this one waited.
func (f *FS) pwriteNowait(fd int, p []byte, off uint64) (int, bool) {
	if f.inMemory {
		n, e := rawPwrite(fd, p, off)
		return n, e == 0
	}
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	n, _, e := unix.RawSyscall6(unix.SYS_PWRITEV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), uintptr(off>>32), unix.RWF_NOWAIT)
	if e == unix.EOPNOTSUPP || e == unix.ENOSYS {
		f.noNowaitWrite.Store(true)
	}
	return int(n), e == 0 && int(n) == len(p) // the rest of a short one would have to wait
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
		n, err = f.pwriteAs(c, fd, p, off)
		if err == nil && !f.who.on {
			err = f.dropSetID(c, o, &st)
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
	return n, mapErr(err)
}

// pwriteAs is pwrite as the client's user, so that the kernel takes the set-ID bits away. It is apart from its
// caller because that would pay for what it shares with the thread that does it.
func (f *FS) pwriteAs(c *blockstore.Cred, fd int, p []byte, off uint64) (n int, err error) {
	err = f.who.as(c, func() (err error) {
		n, err = f.pwrite(fd, p, off)
		return err
	})
	return n, err
}

// limited reports whether the filesystem asks who writes for limits of space that c has and the daemon has not.
func (f *FS) limited(c *blockstore.Cred) bool { return f.limitsUsers && !c.Privileged() }

// pwriteWithin is pwriteAny within the limits of the client's user. It is apart for the same reason.
func (f *FS) pwriteWithin(c *blockstore.Cred, o *object, fd int, p []byte, off uint64) (n int, err error) {
	err = f.who.within(c, func() (err error) {
		n, err = f.pwriteAny(o, fd, p, off)
		return err
	})
	return n, err
}

// pwriteAny is pwrite, or writeDirect where that is wanted.
func (f *FS) pwriteAny(o *object, fd int, p []byte, off uint64) (int, error) {
	if f.goesDirect(len(p)) {
		return f.writeDirect(o, fd, p, off)
	}
	return f.pwrite(fd, p, off)
}

func (f *FS) pwrite(fd int, p []byte, off uint64) (int, error) {
	if f.inMemory {
		if n, e := rawPwrite(fd, p, off); e != 0 {
			return 0, e
		} else {
			return n, nil
		}
	}
	for {
		n, err := unix.Pwrite(fd, p, int64(off))
		if err != unix.EINTR {
			return n, err
		}
	}
}

// rawPwrite is pwrite to memory: a copy, of which the runtime is not told.
func rawPwrite(fd int, p []byte, off uint64) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(off), uintptr(off>>32), 0)
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// dropSetID does for a client what the kernel does only for its own callers:
// here the daemon's user wrote, who may be above it.
func (f *FS) dropSetID(c *blockstore.Cred, o *object, st *unix.Stat_t) error {
	mode := st.Mode & 0o7777
	if c.Privileged() || blockstore.DropSetID(mode) == mode {
		return nil
	}
	return unix.Chmod(procPath(o.path), blockstore.DropSetID(mode))
}

// Commit syncs the data of the file. The range is not used: Linux has no sync
// of a range that is also a barrier of the disk's cache.
func (f *FS) Commit(c *blockstore.Cred, h blockstore.Handle, off uint64, count uint32) (blockstore.Wcc, error) {
	var w blockstore.Wcc
	o, err := f.acquire(h)
	if err != nil {
		return w, err
	}
	defer f.release(o)
	since := f.failures(o)
	if err := o.dataType(); err != nil {
		return w, err
	}
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		return w, err
	}
	f.before(&w, &st)
	if !f.mayWrite(c, o, &st) {
		return w, blockstore.ErrAccess
	}
	o.dirty.Store(false)
	if err := f.syncData(o, since); err != nil {
		return w, err
	}
	o.after(&w)
	return w, nil
}

// before, after and changed fill consistency data; all start at what was found, so that
// a failure reports an unchanged object.
func (f *FS) before(w *blockstore.Wcc, st *unix.Stat_t) {
	a := f.changes.attrOf(st)
	w.Pre, w.Post = blockstore.Known(&a), blockstore.Known(&a)
}

func (o *object) after(w *blockstore.Wcc) {
	var st unix.Stat_t
	w.Post.Known = false
	if o.fstat(&st) == nil {
		a := o.changes.attrOf(&st)
		w.Post = blockstore.Known(&a)
	}
}

// changed is after for an object that was changed.
func (o *object) changed(w *blockstore.Wcc) {
	var st unix.Stat_t
	w.Post.Known = false
	if o.fstat(&st) == nil {
		a := o.changes.changed(&st, w.Pre.Ctime)
		w.Post = blockstore.Known(&a)
	}
}

// forget drops an object without names from the cache, which frees its space,
// and from the table, unless it is pinned.
func (f *FS) forget(o *object) {
	if f.pins.has(&o.h) {
		return
	}
	o.dirty.Store(false)
	f.objects.drop(&o.h)
	f.find.gone(&o.id)
}
