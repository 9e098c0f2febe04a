package nfs4

import (
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

// extents is the store of the current file, if it can do more than the others. A
// store that cannot answers NOTSUPP, and the client does without.
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

// seek is SEEK (RFC 7862 section 15.11).
func seek(k *compound) nfs.Status {
	d := &k.c.Args
	id := k.stateid(decodeStateid(d))
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
	at, err := x.Seek(k.who(&k.cur), k.cur.h, off, what == contentHole)
	if err != nil {
		return k.ioFailed(nfs.StatusOf(err))
	}
	a, err := k.cur.x.FS.GetAttr(k.who(&k.cur), k.cur.h)
	if err != nil {
		return nfs.StatusOf(err)
	}
	k.c.Res.Bool(at >= a.Size)
	k.c.Res.Uint64(at)
	return nfs.OK
}

// allocate is ALLOCATE (section 15.1), deallocate is DEALLOCATE (section 15.4).
func allocate(k *compound) nfs.Status   { return k.reserve(blockstore.Extents.Allocate) }
func deallocate(k *compound) nfs.Status { return k.reserve(blockstore.Extents.Deallocate) }

func (k *compound) reserve(do func(x blockstore.Extents, c *blockstore.Cred, h blockstore.Handle, off, n uint64) error) nfs.Status {
	d := &k.c.Args
	id := k.stateid(decodeStateid(d))
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
	t.source, t.target = decodeStateid(d), decodeStateid(d)
	if t.source == state.Current {
		t.source = k.savedID
	}
	t.target = k.stateid(t.target)
	t.sourceOff, t.dstOff, t.count = d.Uint64(), d.Uint64(), d.Uint64()
	return t
}

// admitTransfer checks the files and stateids of a CLONE or COPY.
func (k *compound) admitTransfer(t *transfer) (blockstore.Extents, nfs.Status) {
	x, st := k.extents()
	switch {
	case st != nfs.OK:
		return nil, st
	case !k.saved.sameFS(&k.cur):
		return nil, nfs.ErrXDev
	case k.cur.readOnly():
		return nil, nfs.ErrROFS
	}
	a, err := k.saved.x.FS.GetAttr(k.who(&k.saved), k.saved.h)
	if err != nil {
		return nil, nfs.StatusOf(err)
	}
	if st := typeStatus(a.Type); st != nfs.OK {
		return nil, st
	}
	if st := k.regular(); st != nfs.OK {
		return nil, st
	}
	if st := k.client.IO(k.now, t.source, lock.File{Export: k.saved.x.ID, Handle: k.saved.h}, false); st != nfs.OK {
		return nil, badState(st)
	}
	return x, k.ioState(t.target, true)
}

// clone is CLONE (section 15.13).
func clone(k *compound) nfs.Status {
	t := k.decodeTransfer()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	x, st := k.admitTransfer(&t)
	if st != nfs.OK {
		return st
	}
	return nfs.StatusOf(x.Clone(k.who(&k.cur), k.saved.h, t.sourceOff, k.cur.h, t.dstOff, t.count))
}

// serversMax bounds the source servers of a COPY.
const serversMax = 64

// copyFile is COPY (section 15.2) within this server. It is answered when it is done,
// at least in part: the client goes on from there.
func copyFile(k *compound) nfs.Status {
	d := &k.c.Args
	t := k.decodeTransfer()
	d.Bool() // consecutive
	d.Bool() // synchronous
	servers := d.Uint32()
	switch {
	case k.bad(), servers > serversMax:
		return nfs.ErrBadXDR
	case servers > 0:
		return nfs.ErrNotSupp // from another server
	}
	x, st := k.admitTransfer(&t)
	if st != nfs.OK {
		return st
	}
	v := k.cur.x.FS.Verifier()
	n, err := x.Copy(k.who(&k.cur), k.saved.h, t.sourceOff, k.cur.h, t.dstOff, t.count)
	if err != nil {
		return nfs.StatusOf(err)
	}
	e := &k.c.Res
	e.Uint32(0) // no stateid to ask about it by
	e.Uint64(n)
	e.Uint32(uint32(blockstore.Unstable))
	e.Fixed(v[:])
	e.Bool(true) // consecutive
	e.Bool(true) // synchronous
	return nfs.OK
}
