package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.Advises = (*FS)(nil)

// willNeedMax is the most that one WillNeed reads, in bytes: a client may name a range of any length.
const willNeedMax = 64 << 20

// WillNeed implements blockstore.Advises. It counts among the files that are read ahead, and does
// nothing if there are aheadMax of them, or if READs go past the page cache.
func (f *FS) WillNeed(c *blockstore.Cred, h blockstore.Handle, off, n uint64) (bool, error) {
	o, err := f.acquire(h)
	if err != nil {
		return false, err
	}
	defer f.release(o)
	if err := o.dataType(); err != nil {
		return false, err
	}
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		return false, err
	}
	if !f.mayRead(c, o, &st) {
		return false, blockstore.ErrAccess
	}
	if f.inMemory {
		return true, nil
	}
	size := uint64(max(st.Size, 0))
	if n == 0 || n > willNeedMax {
		n = willNeedMax
	}
	if off >= size || f.goesDirect(int(n)) || f.aheads.Load() >= aheadMax {
		return false, nil
	}
	fd, err := o.reader()
	if err != nil {
		return false, mapErr(err)
	}
	f.readAhead(o, fd, off, off+min(n, size-off), func() {})
	return true, nil
}
