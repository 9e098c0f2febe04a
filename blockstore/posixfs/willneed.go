package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.Advises = (*FS)(nil)

// willNeedMax is the most that one WillNeed reads, in bytes: a client may name a range of any
// length.
const willNeedMax = 64 << 20

// WillNeed implements blockstore.Advises. It counts among the files that are read ahead, and does
// nothing if there are aheadMax of them, or if READs go past the page cache.
func (f *FS) WillNeed(c *blockstore.Cred, h blockstore.Handle, off, n uint64) (bool, error) {
	o, err := f.acquire(h)
	if err != nil {
		return false, err
	}
	defer f.release(o)
	fd, size, err := f.source(c, o)
	if err != nil || f.inMemory {
		return err == nil, err
	}
	if n == 0 || n > willNeedMax {
		n = willNeedMax
	}
	if off >= size || f.goesDirect(int(n)) || f.aheads.Load() >= aheadMax {
		return false, nil
	}
	f.readAhead(o, fd, off, off+min(n, size-off), func() {})
	return true, nil
}

// DontNeed implements blockstore.Advises. The kernel drops whole pages, without those that are
// dirty.
func (f *FS) DontNeed(c *blockstore.Cred, h blockstore.Handle, off, n uint64) (bool, error) {
	o, err := f.acquire(h)
	if err != nil {
		return false, err
	}
	defer f.release(o)
	fd, size, err := f.source(c, o)
	if err != nil || f.inMemory || off >= size {
		return false, err
	}
	if left := size - off; n == 0 || n > left {
		n = left
	}
	err = unix.Fadvise(fd, int64(off), int64(n), unix.FADV_DONTNEED)
	return err == nil, mapErr(err)
}
