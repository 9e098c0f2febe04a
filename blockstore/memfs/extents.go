package memfs

import "github.com/rstored/rstored/blockstore"

var _ blockstore.Extents = (*FS)(nil)

// copyMax bounds one Copy in bytes, because Copy holds the lock of the store.
const copyMax = 4 << 20

// Seek finds data and holes by the pages that are there.
func (f *FS) Seek(c *blockstore.Cred, h blockstore.Handle, off uint64, hole bool) (uint64, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.readable(c, h)
	if err != nil {
		return 0, err
	}
	size := n.attr.Size
	if off >= size {
		return 0, blockstore.ErrNXIO
	}
	if hole {
		return min(n.hole(off), size), nil
	}
	at, ok := n.data(off)
	if !ok || at >= size {
		return 0, blockstore.ErrNXIO
	}
	return at, nil
}

// hole is the first offset from off on without a page.
func (n *inode) hole(off uint64) uint64 {
	for {
		page := n.pages[off/pageSize]
		if at := off % pageSize; at >= uint64(len(page)) {
			return off
		}
		off = off/pageSize*pageSize + uint64(len(page))
	}
}

// data is the first offset from off on that is in a page.
func (n *inode) data(off uint64) (at uint64, ok bool) {
	for i, page := range n.pages {
		start := i * pageSize
		end := start + uint64(len(page))
		if end <= off {
			continue
		}
		if start = max(start, off); !ok || start < at {
			at, ok = start, true
		}
	}
	return at, ok
}

// readable returns a regular file that c may read.
func (f *FS) readable(c *blockstore.Cred, h blockstore.Handle) (*inode, error) {
	n, err := f.lookup(h)
	if err != nil {
		return nil, err
	}
	if err := notReg(n); err != nil {
		return nil, err
	}
	if !c.MayReadData(&n.attr) {
		return nil, blockstore.ErrAccess
	}
	return n, nil
}

// writable returns a regular file that c may write.
func (f *FS) writable(c *blockstore.Cred, h blockstore.Handle) (*inode, error) {
	n, err := f.lookup(h)
	if err == nil {
		err = f.checkWrite(c, n)
	}
	return n, err
}

// checkWrite checks that c may write the data of n.
func (f *FS) checkWrite(c *blockstore.Cred, n *inode) error {
	if err := notReg(n); err != nil {
		return err
	}
	if f.opts.ReadOnly {
		return blockstore.ErrROFS
	}
	if !c.MayWriteData(&n.attr) {
		return blockstore.ErrAccess
	}
	return nil
}

// changed sets the times of a file whose data has changed, and removes its set-ID bits.
func (f *FS) changed(c *blockstore.Cred, n *inode) {
	if !c.Privileged() {
		n.attr.Mode = blockstore.DropSetID(n.attr.Mode)
	}
	now := f.now()
	n.attr.Mtime, n.attr.Ctime = now, now
	n.hasVerf = false
}

// allocStep is the number of bytes that Allocate allocates before it releases the lock of the store
// for other calls.
const allocStep = 4 << 20

// allocMax bounds one Allocate in bytes: Allocate occupies memory at once, where a disk only
// reserves blocks.
const allocMax = 1 << 30

// Allocate makes the pages of a range.
func (f *FS) Allocate(c *blockstore.Cred, h blockstore.Handle, off, count uint64) error {
	if err := blockstore.CheckRange(off, count); err != nil {
		return err
	}
	if count > allocMax {
		return blockstore.ErrNoSpace
	}
	for end := off + count; off < end; {
		next := min(off+allocStep, end)
		if err := f.allocate(c, h, off, next, end); err != nil {
			return err
		}
		off = next
	}
	return nil
}

// allocate makes the pages from off to next, if there may be room up to end.
func (f *FS) allocate(c *blockstore.Cred, h blockstore.Handle, off, next, end uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.writable(c, h)
	if err != nil {
		return err
	}
	if end-off > f.opts.MaxBytes-min(f.used, f.opts.MaxBytes)+n.attr.Used {
		return blockstore.ErrNoSpace
	}
	for off < next {
		stop := min((off/pageSize+1)*pageSize, next)
		if _, err := n.page(off/pageSize, (stop-1)%pageSize+1, f.charge); err != nil {
			return err
		}
		off = stop
	}
	n.attr.Size = max(n.attr.Size, next)
	f.changed(c, n)
	return nil
}

// shrink cuts page i to its first keep bytes, and returns how many bytes that freed.
func (n *inode) shrink(i, keep uint64) (freed uint64) {
	page := n.pages[i]
	size := uint64(pageMin)
	for size < keep {
		size *= 2
	}
	clear(page[keep:])
	if size >= uint64(len(page)) {
		return 0
	}
	small := make([]byte, size)
	copy(small, page)
	n.pages[i] = small
	freed = uint64(len(page)) - size
	n.attr.Used -= freed
	return freed
}

// Deallocate takes the pages of a range away.
func (f *FS) Deallocate(c *blockstore.Cred, h blockstore.Handle, off, count uint64) error {
	if err := blockstore.CheckRange(off, count); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.writable(c, h)
	if err != nil {
		return err
	}
	f.punch(n, off, off+count)
	f.changed(c, n)
	return nil
}

// punch takes the pages of a range away.
func (f *FS) punch(n *inode, off, end uint64) {
	for i, page := range n.pages {
		start := i * pageSize
		last := start + uint64(len(page))
		switch {
		case last <= off || start >= end:
		case off <= start && last <= end:
			n.attr.Used -= uint64(len(page))
			f.used -= uint64(len(page))
			delete(n.pages, i)
		case last <= end:
			f.used -= n.shrink(i, off-start)
		default:
			clear(page[max(off, start)-start : min(end, last)-start])
		}
	}
}

// Clone is not supported: files cannot share pages.
func (f *FS) Clone(*blockstore.Cred, blockstore.Handle, uint64, blockstore.Handle, uint64, uint64) error {
	return blockstore.ErrNotSupp
}

// Copy copies at most 4 MiB at a time.
func (f *FS) Copy(c *blockstore.Cred, from blockstore.Handle, fromOff uint64, to blockstore.Handle, toOff,
	count uint64,
) (done uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	src, err := f.readable(c, from)
	if err != nil {
		return 0, err
	}
	dst, err := f.writable(c, to)
	if err != nil {
		return 0, err
	}
	if fromOff >= src.attr.Size {
		return 0, nil
	}
	if rest := src.attr.Size - fromOff; count == 0 || count > rest {
		count = rest
	}
	if src == dst && blockstore.Overlap(fromOff, toOff, count) {
		return 0, blockstore.ErrInval
	}
	if err := blockstore.CheckRange(toOff, count); err != nil {
		return 0, err
	}
	count = min(count, copyMax)
	buf := make([]byte, pageSize)
	for done < count {
		at := fromOff + done
		data := src.hole(at) - at
		if data == 0 {
			hole := count - done
			if next, ok := src.data(at); ok {
				hole = min(hole, next-at)
			}
			f.punch(dst, toOff+done, toOff+done+hole)
			done += hole
			continue
		}
		p := buf[:min(count-done, pageSize, data)]
		src.read(p, at)
		k, err := dst.write(p, toOff+done, f.charge)
		done += uint64(k)
		if err != nil && done == 0 {
			return 0, err
		}
		if err != nil {
			break
		}
	}
	dst.attr.Size = max(dst.attr.Size, toOff+done)
	f.changed(c, dst)
	return done, nil
}
