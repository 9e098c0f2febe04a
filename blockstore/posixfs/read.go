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
	var err error
	if !nowait {
		o, err = f.acquire(h)
	} else if f.inMemory || !f.noNowait.Load() {
		o = f.objects.get(&h)
	}
	switch {
	case err != nil:
		return 0, false, err
	case o == nil:
		return 0, false, f.wouldBlock()
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
