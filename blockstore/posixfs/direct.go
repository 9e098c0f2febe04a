package posixfs

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// directMin is the shortest piece in bytes that goes past the page cache. For a shorter one a
// disk needs more time for the request than the copy costs.
const directMin = 256 << 10

// SetDirect says whether long reads and writes go past the page cache (O_DIRECT), as far as
// their offsets and their memory are aligned. The rest, and what the filesystem refuses, goes
// through the cache; the kernel keeps both coherent. When data is stable does not change.
// SetDirect may be called from any goroutine at any time.
func (f *FS) SetDirect(on bool) { f.direct.Store(on && !f.inMemory) }

// goesDirect reports whether a transfer of n bytes is for readDirect or writeDirect.
func (f *FS) goesDirect(n int) bool { return n >= directMin && f.direct.Load() }

// span returns the part p[from:to] that can be transferred past the page cache; p is at off in the
// file. The part consists of whole pages, so that no page is transferred half directly and half
// through the cache. It is empty if it would be shorter than directMin.
func span(p []byte, off uint64, align, memAlign uint32) (from, to int) {
	if align == 0 || memAlign == 0 || align&(align-1) != 0 {
		return 0, 0
	}
	block := max(uint64(align), uint64(unix.Getpagesize()))
	from = int(-off & (block - 1))
	if from >= len(p) || (uintptr(unsafe.Pointer(unsafe.SliceData(p)))+uintptr(from))%uintptr(memAlign) != 0 {
		return 0, 0
	}
	to = from + (len(p)-from)&^int(block-1)
	if to-from < directMin {
		return 0, 0
	}
	return from, to
}

// openDirect opens an object with O_DIRECT, and returns the part of p that can be transferred.
// If there is none, to is 0 and nothing is open. A descriptor for one transfer costs less than a
// hundredth of the transfer. A descriptor that stays open would conflict with leases.
func (o *object) openDirect(flags int, p []byte, off uint64) (fd, from, to int) {
	fd, err := o.reopen(flags | unix.O_DIRECT)
	if err != nil {
		return -1, 0, 0
	}
	// Before Linux 6.1, and on filesystems that do not report it: the size of a page suits all disks.
	align, memAlign := uint32(unix.Getpagesize()), uint32(unix.Getpagesize())
	var st unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st) == nil && st.Mask&unix.STATX_DIOALIGN != 0 {
		align, memAlign = st.Dio_offset_align, st.Dio_mem_align // 0: no O_DIRECT for this file
	}
	if from, to = span(p, off, align, memAlign); to == 0 {
		unix.Close(fd)
		return -1, 0, 0
	}
	return fd, from, to
}

// readDirect is pread. The longest aligned part goes past the page cache.
func (f *FS) readDirect(o *object, cached int, p []byte, off uint64) (int, error) {
	fd, from, to := o.openDirect(unix.O_RDONLY, p, off)
	if to == 0 {
		return pread(cached, p, off)
	}
	defer unix.Close(fd)
	n, err := pread(cached, p[:from], off)
	if err != nil || n < from {
		return n, err
	}
	// A direct read is short at the end of the file. If it fails, the rest is read through the
	// cache, and the error of that read counts.
	if k, err := again(func() (int, error) { return unix.Pread(fd, p[from:to], int64(off)+int64(from)) }); err == nil {
		n += k
		f.count.directReads.Add(1)
	}
	k, err := pread(cached, p[n:], off+uint64(n))
	return n + k, err
}

// writeDirect is pwrite in the same way. It can write less than p.
func (f *FS) writeDirect(o *object, cached int, p []byte, off uint64) (int, error) {
	fd, from, to := o.openDirect(unix.O_WRONLY, p, off)
	if to == 0 {
		return f.pwrite(cached, p, off)
	}
	defer unix.Close(fd)
	n := 0
	if from > 0 {
		var err error
		if n, err = f.pwrite(cached, p[:from], off); err != nil || n < from {
			return n, err
		}
	}
	if k, err := again(func() (int, error) { return unix.Pwrite(fd, p[from:to], int64(off)+int64(from)) }); err == nil {
		n += k
		f.count.directWrites.Add(1)
	}
	if n == len(p) {
		return n, nil
	}
	k, err := f.pwrite(cached, p[n:], off+uint64(n))
	if err != nil && n > 0 {
		return n, nil
	}
	return n + k, err
}
