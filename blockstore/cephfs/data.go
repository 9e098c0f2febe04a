//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
import "C"

import (
	"math"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
)

// file acquires a regular file that c may use as may says, and opens it. done gives it back.
func (f *FS) file(h blockstore.Handle, write bool, may func(a *blockstore.Attr) bool) (o *object, fh *C.Fh,
	a blockstore.Attr, err error,
) {
	if o, a, err = f.use(h); err != nil {
		return nil, nil, a, err
	}
	switch {
	case a.Type == blockstore.TypeDir:
		err = blockstore.ErrIsDir
	case a.Type != blockstore.TypeReg:
		err = blockstore.ErrInval
	case !may(&a):
		err = blockstore.ErrAccess
	default:
		fh, err = f.open(o, write)
	}
	if err != nil {
		f.objs.release(o)
		return nil, nil, a, err
	}
	return o, fh, a, nil
}

func (f *FS) done(o *object) {
	o.mu.RUnlock()
	f.objs.release(o)
}

// ReadAt reads from the OSDs, or from the cache of libcephfs, straight into p. Both can wait.
func (f *FS) ReadAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, nowait bool) (int, bool, error) {
	if nowait {
		return 0, false, blockstore.ErrWouldBlock
	}
	o, fh, a, err := f.file(h, false, c.MayReadData)
	if err != nil {
		return 0, false, err
	}
	defer f.done(o)
	if off >= a.Size || len(p) == 0 {
		return 0, off >= a.Size, nil
	}
	n := C.rc_read(f.m, fh, C.int64_t(off), unsafe.Pointer(unsafe.SliceData(p)), C.uint64_t(min(len(p), math.MaxInt32)))
	if err := failed(n); err != nil {
		return 0, false, err
	}
	return int(n), off+uint64(n) >= a.Size, nil
}

// WriteAt writes straight from p.
func (f *FS) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (
	n int, committed blockstore.Stability, w blockstore.Wcc, err error,
) {
	o, fh, a, err := f.file(h, true, c.MayWriteData)
	if err != nil {
		if a.Type != 0 {
			w = unchanged(&a)
		}
		return 0, how, w, err
	}
	defer f.done(o)
	w = unchanged(&a)
	if len(p) == 0 {
		return 0, how, w, nil
	}
	if off >= math.MaxInt64 {
		return 0, how, w, blockstore.ErrFBig
	}
	k := min(uint64(len(p)), math.MaxInt64-off, math.MaxInt32)
	if !c.Privileged() && blockstore.DropSetID(a.Mode) != a.Mode {
		mode := blockstore.DropSetID(a.Mode)
		if err := f.setAttr(nil, o, &a, &blockstore.SetAttr{Mode: &mode}); err != nil {
			return 0, how, w, err
		}
	}
	r := C.rc_write(f.m, fh, C.int64_t(off), unsafe.Pointer(unsafe.SliceData(p)), C.uint64_t(k))
	if err = failed(r); err == nil && how != blockstore.Unstable {
		err = f.synced(o)
		how = blockstore.FileSync
	}
	f.after(&w, o)
	if err != nil {
		return 0, how, w, err
	}
	return int(r), how, w, nil
}

// Commit writes what libcephfs has of the file, all of it, to the OSDs, and its size to the MDS.
func (f *FS) Commit(c *blockstore.Cred, h blockstore.Handle, _ uint64, _ uint32) (w blockstore.Wcc, err error) {
	o, _, a, err := f.file(h, false, c.MayWriteData)
	if err != nil {
		if a.Type != 0 {
			w = unchanged(&a)
		}
		return w, err
	}
	defer f.done(o)
	w.Pre = blockstore.Known(&a)
	err = f.synced(o)
	f.after(&w, o)
	return w, err
}

// Seek implements blockstore.Extents. CephFS knows no holes: the end of the file is the only one.
func (f *FS) Seek(c *blockstore.Cred, h blockstore.Handle, off uint64, hole bool) (uint64, error) {
	o, _, a, err := f.file(h, false, c.MayReadData)
	if err != nil {
		return 0, err
	}
	f.done(o)
	switch {
	case off >= a.Size:
		return 0, blockstore.ErrNXIO
	case hole:
		return a.Size, nil
	}
	return off, nil
}

// Allocate makes the file as large as the range needs. CephFS reserves no space.
func (f *FS) Allocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64) error {
	return f.fallocate(c, h, off, n, 0)
}

// Deallocate frees the objects of a range, and writes zeros to the parts of others.
func (f *FS) Deallocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64) error {
	return f.fallocate(c, h, off, n, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE)
}

func (f *FS) fallocate(c *blockstore.Cred, h blockstore.Handle, off, n uint64, mode int) error {
	o, fh, a, err := f.file(h, true, c.MayWriteData)
	if err != nil {
		return err
	}
	defer f.done(o)
	if err := blockstore.CheckRange(off, n); err != nil {
		return err
	}
	if mode != 0 { // up to the end of the file
		if off >= a.Size {
			return nil
		}
		n = min(n, a.Size-off)
	}
	if mode == 0 {
		if off+n <= a.Size {
			return nil
		}
	}
	if err := failed(C.rc_fallocate(f.m, fh, C.int(mode), C.int64_t(off), C.int64_t(n))); err != nil {
		return err
	}
	return f.synced(o)
}

// Clone is not possible: files of CephFS share no objects.
func (f *FS) Clone(*blockstore.Cred, blockstore.Handle, uint64, blockstore.Handle, uint64, uint64) error {
	return blockstore.ErrNotSupp
}

// copyPiece is the most that Copy copies in one call, in bytes.
const copyPiece = 4 << 20

// Copy reads and writes within the gateway.
func (f *FS) Copy(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff,
	n uint64,
) (uint64, error) {
	if n == 0 {
		n = math.MaxInt64 - max(fromOff, toOff)
	}
	if from == to && blockstore.Overlap(fromOff, toOff, n) {
		return 0, blockstore.ErrInval
	}
	buf := make([]byte, min(n, copyPiece))
	k, _, err := f.ReadAt(c, from, buf, fromOff, false)
	if err != nil {
		return 0, err
	}
	if k == 0 {
		o, _, _, err := f.file(to, false, c.MayWriteData)
		if err == nil {
			f.done(o)
		}
		return 0, err
	}
	k, _, _, err = f.WriteAt(c, to, buf[:k], toOff, blockstore.Unstable)
	return uint64(k), err
}
