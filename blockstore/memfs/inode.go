package memfs

import (
	"time"

	"github.com/rstored/rstored/blockstore"
)

const (
	pageSize = 64 << 10
	pageMin  = 512
)

// inode is one object. FS.mu guards all of it.
type inode struct {
	attr   blockstore.Attr
	pages  map[uint64][]byte // page number to its bytes; short or absent means zeros
	target string            // of a symlink
	dir    *directory        // of a directory
	parent uint64            // of a directory: the inode of ".."
	born   time.Time
	pins   int // see Pin

	// xattrs are the extended attributes, and xattrBytes the size of their names and
	// values.
	xattrs     map[string][]byte
	xattrBytes uint64

	// inherit is the default ACL of a directory, or nil. Like attr.ACL it is replaced
	// as a whole.
	inherit *blockstore.ACL

	// verf is the verifier of the exclusive create that made the file, until
	// the file is changed.
	verf    [8]byte
	hasVerf bool
}

// read copies from the file. p does not reach beyond its size.
func (n *inode) read(p []byte, off uint64) {
	for len(p) > 0 {
		at := off % pageSize
		span := min(uint64(len(p)), pageSize-at)
		page := n.pages[off/pageSize]
		k := 0
		if at < uint64(len(page)) {
			k = copy(p[:span], page[at:])
		}
		clear(p[k:span])
		p, off = p[span:], off+span
	}
}

// write copies into the file and returns how many bytes it has copied, which are fewer if charge
// fails.
func (n *inode) write(p []byte, off uint64, charge func(uint64) error) (int, error) {
	done := 0
	for done < len(p) {
		at := off % pageSize
		span := min(uint64(len(p)-done), pageSize-at)
		page, err := n.page(off/pageSize, at+span, charge)
		if err != nil {
			return done, err
		}
		copy(page[at:], p[done:done+int(span)])
		done += int(span)
		off += span
	}
	return done, nil
}

// page returns page i with at least need bytes.
func (n *inode) page(i, need uint64, charge func(uint64) error) ([]byte, error) {
	page := n.pages[i]
	if uint64(len(page)) >= need {
		return page, nil
	}
	size := uint64(pageMin)
	for size < need {
		size *= 2
	}
	more := size - uint64(len(page))
	if err := charge(more); err != nil {
		return nil, err
	}
	grown := make([]byte, size)
	copy(grown, page)
	if n.pages == nil {
		n.pages = make(map[uint64][]byte)
	}
	n.pages[i] = grown
	n.attr.Used += more
	return grown, nil
}

// truncate sets the size and returns how many bytes of pages it freed.
func (n *inode) truncate(size uint64) (freed uint64) {
	if size < n.attr.Size {
		last := size / pageSize
		for i, page := range n.pages {
			switch {
			case i > last || (i == last && size%pageSize == 0):
				freed += uint64(len(page))
				delete(n.pages, i)
			case i == last && size%pageSize < uint64(len(page)):
				clear(page[size%pageSize:])
			}
		}
		n.attr.Used -= freed
	}
	n.attr.Size = size
	return freed
}
