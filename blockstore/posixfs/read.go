package posixfs

import (
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// ReadAt reads from the page cache or the disk into p, with one fstat and one pread, and without
// an allocation. With nowait it reads only what is in memory (RWF_NOWAIT), of an object that is
// open already.
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
	// The fstat is for the permission, the size and the link count: a program of the host may have
	// changed each of them since the last call.
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
		// eof at the size that fstat returned, or at a smaller one after a truncation. A short read
		// with an error is not the end of the file: the disk cannot read the rest.
		return n, off+uint64(n) == size || n < len(p) && err == nil, nil
	}
	flags := uintptr(unix.RWF_NOWAIT)
	if f.inMemory {
		flags = 0 // these filesystems may refuse RWF_NOWAIT, and never wait
	}
	n, e := preadNowait(fd, p, off, flags)
	switch e {
	case 0:
	case unix.EAGAIN:
		return 0, false, f.wouldBlock()
	case unix.EOPNOTSUPP, unix.ENOSYS: // this filesystem, or a kernel before 4.14
		f.noNowait.Store(true)
		return 0, false, f.wouldBlock()
	default:
		return 0, false, mapErr(e)
	}
	if n == 0 {
		return 0, true, nil
	}
	// After a short read the rest may be on disk. The caller then calls again and may wait.
	if n == len(p) {
		f.hasRead(o, fd, off, uint64(n), size, false)
	}
	return n, off+uint64(n) == size, nil
}

// readWait is pread that may wait. It finds out whether all data was in memory, so that the
// kernel reads ahead of streams; see ahead.go. size is the size of the file.
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
		n = 0 // pread reports the error, if it has one too
	}
	f.hasRead(o, fd, off, uint64(want), size, n < want)
	if n == want {
		return n, nil
	}
	k, err := pread(fd, p[n:], off+uint64(n))
	return n + k, err
}

// pread fills p, up to the end of the file. If it fails in the middle it returns the error and
// the number of bytes before. The kernel may return fewer bytes when a signal arrives, so it
// calls again.
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

// preadNowait is preadv2 with one buffer. It avoids the slice of slices that the wrapper would
// allocate, and goes past the Go runtime (RawSyscall), which would else give the processor to
// another thread.
func preadNowait(fd int, p []byte, off uint64, flags uintptr) (int, unix.Errno) {
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1,
			uintptr(off), uintptr(off>>32), flags)
		if e != unix.EINTR {
			return int(n), e
		}
	}
}
