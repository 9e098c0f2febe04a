package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.Extents = (*FS)(nil)

// copyMax bounds one Copy in bytes, so that it ends in time. The caller continues.
const copyMax = 256 << 20

// Seek calls lseek with SEEK_DATA or SEEK_HOLE. The store uses the position of a descriptor for
// nothing else.
func (f *FS) Seek(c *blockstore.Cred, h blockstore.Handle, off uint64, hole bool) (uint64, error) {
	o, err := f.acquire(h)
	if err != nil {
		return 0, err
	}
	defer f.release(o)
	fd, _, err := f.source(c, o)
	if err != nil {
		return 0, err
	}
	if off > 1<<63-1 {
		return 0, blockstore.ErrNXIO
	}
	whence := unix.SEEK_DATA
	if hole {
		whence = unix.SEEK_HOLE
	}
	// Concurrent calls with the same descriptor do not disturb each other: the offset is an argument.
	at, err := unix.Seek(fd, int64(off), whence)
	return uint64(at), mapErr(err)
}

// source returns a descriptor to read a file, and the size of the file.
func (f *FS) source(c *blockstore.Cred, o *object) (fd int, size uint64, err error) {
	var st unix.Stat_t
	if err := o.statFile(&st); err != nil {
		return -1, 0, err
	}
	if !f.mayRead(c, o, &st) {
		return -1, 0, blockstore.ErrAccess
	}
	fd, err = o.reader()
	return fd, uint64(st.Size), mapErr(err)
}

// modify runs do, which changes the data of a file. do runs as the client's user if the file has
// set-ID bits or if the space of the user is limited, else as the daemon. o.mu is held.
func (f *FS) modify(c *blockstore.Cred, o *object, do func(fd int) error) error {
	var st unix.Stat_t
	if err := o.statFile(&st); err != nil {
		return err
	}
	if f.readOnly {
		return blockstore.ErrROFS
	}
	if !f.mayWrite(c, o, &st) {
		return blockstore.ErrAccess
	}
	fd, err := o.writer()
	if err != nil {
		return mapErr(err)
	}
	was := f.changes.attrOf(&st).Ctime
	switch {
	case st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		// As the client's user, so that the kernel takes the set-ID bits away.
		err = f.who.as(c, func() error { return do(fd) })
		if err == nil && !f.who.on {
			err = f.dropSetID(c, o, st.Mode)
		}
	case f.limited(c):
		err = f.who.within(c, func() error { return do(fd) })
	default:
		err = do(fd)
	}
	if err == nil {
		f.changes.changedFD(o.path, was)
	}
	return mapErr(err)
}

func (f *FS) fallocate(c *blockstore.Cred, h blockstore.Handle, mode uint32, off, n uint64) error {
	if err := blockstore.CheckRange(off, n); err != nil {
		return err
	}
	o, err := f.acquire(h)
	if err != nil {
		return err
	}
	defer f.release(o)
	since := f.failures(o)
	o.mu.Lock()
	err = f.modify(c, o, func(fd int) error {
		return retry(func() error { return unix.Fallocate(fd, mode, int64(off), int64(n)) })
	})
	o.mu.Unlock()
	if err != nil {
		return err
	}
	return f.syncObject(o, since)
}

// Allocate is fallocate.
func (f *FS) Allocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64) error {
	return f.fallocate(c, h, 0, off, n)
}

// Deallocate punches a hole.
func (f *FS) Deallocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64) error {
	return f.fallocate(c, h, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// across runs do, which moves data from a file of the export other, where the caller is reader, to
// a file of this one. to is locked; from is not, and may be the same file.
func (f *FS) across(other *FS, reader *blockstore.Cred, from blockstore.Handle, c *blockstore.Cred,
	to blockstore.Handle, do func(in, out int, size uint64) error,
) error {
	src, err := other.acquire(from)
	if err != nil {
		return err
	}
	defer other.release(src)
	dst, err := f.acquire(to)
	if err != nil {
		return err
	}
	defer f.release(dst)
	in, size, err := other.source(reader, src)
	if err != nil {
		return err
	}
	// Only the target is locked. Writes to the source meanwhile can be in the copy or not.
	dst.mu.Lock()
	defer dst.mu.Unlock()
	err = f.modify(c, dst, func(out int) error { return do(in, out, size) })
	if err == nil {
		dst.dirty.Store(true)
	}
	return err
}

// Clone is ioctl FICLONERANGE, where the filesystem has it.
func (f *FS) Clone(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff,
	n uint64,
) error {
	if err := checkOffsets(fromOff, toOff, n); err != nil {
		return err
	}
	o, err := f.acquire(to)
	if err != nil {
		return err
	}
	defer f.release(o)
	since := f.failures(o)
	err = f.across(f, c, from, c, to, func(in, out int, _ uint64) error {
		r := unix.FileCloneRange{Src_fd: int64(in), Src_offset: fromOff, Src_length: n, Dest_offset: toOff}
		err := retry(func() error { return unix.IoctlFileCloneRange(out, &r) })
		if err == unix.ENOTTY { // the filesystem does not know the ioctl
			err = unix.EOPNOTSUPP
		}
		return err
	})
	if err != nil {
		return err
	}
	return f.syncObject(o, since) // no COMMIT follows a CLONE
}

// Copy is copy_file_range, which shares blocks if the filesystem can. If it cannot, the kernel
// fills holes with zeros, so that Copy makes the holes itself.
func (f *FS) Copy(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff,
	n uint64,
) (uint64, error) {
	return f.copyAcross(f, c, from, fromOff, c, to, toOff, n)
}

// CopyFrom implements blockstore.Siblings: two exports of one file system can share blocks, as a
// snapshot of btrfs and its original.
func (f *FS) CopyFrom(c *blockstore.Cred, other blockstore.FS, reader *blockstore.Cred, from blockstore.Handle,
	fromOff uint64, to blockstore.Handle, toOff, n uint64,
) (uint64, error) {
	o, ok := other.(*FS)
	if !ok {
		return 0, blockstore.ErrXDev
	}
	return f.copyAcross(o, reader, from, fromOff, c, to, toOff, n)
}

func (f *FS) copyAcross(other *FS, reader *blockstore.Cred, from blockstore.Handle, fromOff uint64, c *blockstore.Cred,
	to blockstore.Handle, toOff, n uint64,
) (done uint64, err error) {
	if err := checkOffsets(fromOff, toOff, n); err != nil {
		return 0, err
	}
	err = f.across(other, reader, from, c, to, func(in, out int, size uint64) error {
		if fromOff >= size {
			return nil
		}
		if n == 0 || n > size-fromOff {
			n = size - fromOff
		}
		if f == other && from == to && blockstore.Overlap(fromOff, toOff, n) {
			return blockstore.ErrInval
		}
		n = min(n, copyMax)
		for done < n {
			hole, data := extentOf(in, fromOff+done, n-done)
			if hole > 0 {
				err := makeHole(out, int64(toOff+done), int64(hole))
				if err == nil {
					done += hole
					continue
				}
				if err != unix.EOPNOTSUPP && err != unix.ENOSYS {
					return unlessSome(done, err)
				}
				data = hole
			}
			r, w := int64(fromOff+done), int64(toOff+done)
			k, err := again(func() (int, error) { return unix.CopyFileRange(in, &r, out, &w, int(data), 0) })
			if err != nil || k == 0 {
				return unlessSome(done, err)
			}
			done += uint64(k)
		}
		return nil
	})
	return done, err
}

// unlessSome returns the error of a copy that ends early, or nil if a part was copied: the
// caller copies the rest by another call, which returns the error.
func unlessSome(done uint64, err error) error {
	if done > 0 {
		return nil
	}
	return err
}

// extentOf returns the length of the hole or of the data at off, n at most. On a filesystem
// without holes all is data.
func extentOf(fd int, off, n uint64) (hole, data uint64) {
	at, err := unix.Seek(fd, int64(off), unix.SEEK_DATA)
	switch {
	case err == unix.ENXIO: // no data up to the end of the file
		return n, 0
	case err != nil:
		return 0, n
	case uint64(at) > off:
		return min(uint64(at)-off, n), 0
	}
	if at, err = unix.Seek(fd, int64(off), unix.SEEK_HOLE); err != nil || uint64(at) <= off {
		return 0, n
	}
	return 0, min(uint64(at)-off, n)
}

// makeHole makes a range a hole. The file grows if the range ends behind it.
func makeHole(fd int, off, n int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if off < st.Size {
		const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		if err := retry(func() error { return unix.Fallocate(fd, mode, off, min(n, st.Size-off)) }); err != nil {
			return err
		}
	}
	if off+n <= st.Size {
		return nil
	}
	return retry(func() error { return unix.Ftruncate(fd, off+n) })
}

// checkOffsets refuses ranges beyond the largest offset. n 0 means to the end.
func checkOffsets(from, to, n uint64) error {
	if err := blockstore.CheckRange(from, max(n, 1)); err != nil {
		return err
	}
	return blockstore.CheckRange(to, max(n, 1))
}
