package memfs

import "github.com/rstored/rstored/blockstore"

// readDirBatch is how many entries are taken under the lock at a time; emit is
// called without it, so that it may use the store.
const readDirBatch = 256

// ReadDir lists in the order in which names were made. Cookies stay good over
// every change of the directory, so the verifier is always zero.
func (f *FS) ReadDir(c *blockstore.Cred, dir blockstore.Handle, cookie uint64, verf [8]byte, plus bool,
	emit func(*blockstore.DirEntry) bool,
) ([8]byte, bool, error) {
	batch := make([]blockstore.DirEntry, 0, readDirBatch)
	for {
		var eof bool
		var err error
		batch, eof, err = f.readBatch(c, dir, cookie, plus, batch[:0])
		if err != nil {
			return [8]byte{}, false, err
		}
		for i := range batch {
			if !emit(&batch[i]) {
				return [8]byte{}, false, nil
			}
			cookie = batch[i].Cookie
		}
		if eof {
			return [8]byte{}, true, nil
		}
	}
}

func (f *FS) readBatch(c *blockstore.Cred, dir blockstore.Handle, cookie uint64, plus bool,
	batch []blockstore.DirEntry,
) ([]blockstore.DirEntry, bool, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	d, err := f.lookupDir(dir)
	if err != nil {
		return batch, false, err
	}
	if !c.May(&d.attr, blockstore.MayRead) {
		return batch, false, blockstore.ErrAccess
	}
	if cookie >= d.dir.next {
		return batch, false, blockstore.ErrBadCookie
	}
	// Attributes of entries are lookups and need search permission.
	plus = plus && c.May(&d.attr, blockstore.MayExec)
	put := func(name string, id, cookie uint64) {
		e := blockstore.DirEntry{Name: name, FileID: id, Cookie: cookie}
		if plus {
			a := f.inodes[id].attr
			h := f.handle(id)
			e.Attr, e.Handle = &a, &h
		}
		batch = append(batch, e)
	}
	if cookie < cookieDot {
		put(".", d.attr.FileID, cookieDot)
	}
	if cookie < cookieDotDot {
		put("..", d.parent, cookieDotDot)
	}
	for _, e := range d.dir.order[d.dir.after(cookie):] {
		if len(batch) == readDirBatch {
			return batch, false, nil
		}
		if !e.dead {
			put(e.name, e.id, e.cookie)
		}
	}
	return batch, true, nil
}
