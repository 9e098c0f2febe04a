package nfs4

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// What to look for by SEEK (data_content4).
const (
	contentData = 0
	contentHole = 1
)

// extents returns the store of the current file, if it has holes, allocation and copies (RFC 7862
// sections 4, 6 and 7). Without them the operation is NOTSUPP, and the client does without.
func (k *compound) extents() (blockstore.Extents, nfs.Status) {
	if k.cur.node != nil {
		return nil, nfs.ErrIsDir
	}
	x, ok := k.cur.x.FS.(blockstore.Extents)
	if !ok {
		return nil, nfs.ErrNotSupp
	}
	return x, nfs.OK
}

// seek is SEEK (RFC 7862 section 15.11). An offset at or behind the end of the file is NXIO; a hole
// that reaches to the end has eof.
func seek(k *compound) nfs.Status {
	d := &k.c.Args
	id := k.stateid(DecodeStateid(d))
	off, what := d.Uint64(), d.Uint32()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if what > contentHole {
		return nfs.ErrUnionNotSupp
	}
	x, st := k.extents()
	if st != nfs.OK {
		return st
	}
	if st := k.ioState(id, false); st != nfs.OK {
		return k.ioFailed(st)
	}
	at, failed := x.Seek(k.who(&k.cur), k.cur.h, off, what == contentHole)
	if failed != nil && !errors.Is(failed, blockstore.ErrNXIO) {
		return k.ioFailed(nfs.StatusOf(failed))
	}
	a, err := k.cur.x.FS.GetAttr(k.who(&k.cur), k.cur.h)
	if err != nil {
		return nfs.StatusOf(err)
	}
	if failed != nil {
		if off >= a.Size {
			return nfs.ErrNXIO
		}
		at = a.Size // no data follows, which is not a failure
	}
	k.c.Res.Bool(at >= a.Size)
	k.c.Res.Uint64(at)
	return nfs.OK
}

// allocate is ALLOCATE (section 15.1), deallocate is DEALLOCATE (section 15.4). Both need a stateid
// that allows to write. The store refuses a range that is too large: it is the client's.
func allocate(k *compound) nfs.Status   { return k.reserve(blockstore.Extents.Allocate) }
func deallocate(k *compound) nfs.Status { return k.reserve(blockstore.Extents.Deallocate) }

func (k *compound) reserve(do func(x blockstore.Extents, c *blockstore.Cred, h blockstore.Handle, off,
	n uint64) error,
) nfs.Status {
	d := &k.c.Args
	id := k.stateid(DecodeStateid(d))
	off, n := d.Uint64(), d.Uint64()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	x, st := k.extents()
	if st == nfs.OK && k.cur.readOnly() {
		st = nfs.ErrROFS
	}
	if st != nfs.OK {
		return st
	}
	if st := k.ioState(id, true); st != nfs.OK {
		return k.ioFailed(st)
	}
	return k.ioFailed(nfs.StatusOf(do(x, k.who(&k.cur), k.cur.h, off, n)))
}

// transfer are the arguments that CLONE and COPY have in common: from the saved file
// to the current one.
type transfer struct {
	source, target    state.Stateid
	sourceOff, dstOff uint64
	count             uint64
}

func (k *compound) decodeTransfer() (t transfer) {
	d := &k.c.Args
	t.source, t.target = DecodeStateid(d), DecodeStateid(d)
	if t.source == state.Current {
		t.source = k.savedID
	}
	t.target = k.stateid(t.target)
	t.sourceOff, t.dstOff, t.count = d.Uint64(), d.Uint64(), d.Uint64()
	return t
}

// admitTransfer checks the files and stateids of a CLONE or COPY, and returns the
// size of the source.
func (k *compound) admitTransfer(t *transfer) (size uint64, st nfs.Status) {
	switch {
	case k.saved.x == nil || k.cur.x == nil:
		return 0, nfs.ErrIsDir
	case k.cur.readOnly():
		return 0, nfs.ErrROFS
	}
	a, err := k.saved.x.FS.GetAttr(k.who(&k.saved), k.saved.h)
	if err != nil {
		return 0, nfs.StatusOf(err)
	}
	if st := typeStatus(a.Type); st != nfs.OK {
		return 0, st
	}
	if st := k.regular(); st != nfs.OK {
		return 0, st
	}
	if st := k.ioStateOf(lock.File{Export: k.saved.x.ID, Handle: k.saved.h}, t.source, false); st != nfs.OK {
		return 0, st
	}
	if st := k.ioState(t.target, true); st != nfs.OK {
		return 0, st
	}
	if t.sourceOff > a.Size || t.count > a.Size-t.sourceOff {
		return 0, nfs.ErrInval
	}
	return a.Size, nfs.OK
}

// clone is CLONE (section 15.13). Unlike COPY it does everything or nothing, and needs a store that
// shares blocks: source and target are in one export.
func clone(k *compound) nfs.Status {
	t := k.decodeTransfer()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	x, st := k.extents()
	if st == nfs.OK && !k.saved.sameFS(&k.cur) {
		st = nfs.ErrXDev
	}
	if st == nfs.OK {
		_, st = k.admitTransfer(&t)
	}
	if st != nfs.OK {
		return st
	}
	return nfs.StatusOf(x.Clone(k.who(&k.cur), k.saved.h, t.sourceOff, k.cur.h, t.dstOff, t.count))
}
