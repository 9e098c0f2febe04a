package nfs4

import (
	"errors"
	"slices"
	"time"

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

// clone is CLONE (section 15.13).
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

// serversMax bounds the source servers of a COPY.
const serversMax = 64

// A COPY ends after copyTime or copyMax bytes, so that it holds neither a worker nor
// its session's slot for long; it goes in steps of copyStep bytes.
const (
	copyTime = 250 * time.Millisecond
	copyMax  = 1 << 30
	copyStep = 16 << 20
)

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
	size, st := k.admitTransfer(&t)
	if st != nfs.OK {
		return st
	}
	if t.count == 0 {
		t.count = size - t.sourceOff
	}
	if err := blockstore.CheckRange(t.dstOff, max(t.count, 1)); err != nil {
		return nfs.StatusOf(err)
	}
	if k.saved.sameFS(&k.cur) && k.saved.h == k.cur.h && blockstore.Overlap(t.sourceOff, t.dstOff, t.count) {
		return nfs.ErrInval
	}
	v := k.cur.x.FS.Verifier()
	n, err := k.copySteps(&t, min(t.count, copyMax))
	if err != nil && n == 0 {
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

// copySteps copies up to n bytes, by the store if it can.
func (k *compound) copySteps(t *transfer, n uint64) (done uint64, err error) {
	x, ok := k.cur.x.FS.(blockstore.Extents)
	ok = ok && k.saved.sameFS(&k.cur)
	// Two exports may have two rules, and two identities.
	reads := *k.who(&k.saved)
	reads.Groups = slices.Clone(reads.Groups)
	writes := *k.who(&k.cur)
	var buf []byte
	for begin := k.s.now(); done < n && k.s.now().Sub(begin) < copyTime; {
		var m uint64
		if ok {
			m, err = x.Copy(&writes, k.saved.h, t.sourceOff+done, k.cur.h, t.dstOff+done, min(n-done, copyStep))
			if errors.Is(err, blockstore.ErrNotSupp) || errors.Is(err, blockstore.ErrXDev) {
				ok = false
				continue
			}
		} else {
			if buf == nil {
				buf = make([]byte, min(n-done, nfs.MaxIO))
			}
			m, err = k.copyPiece(t, &reads, &writes, buf[:min(n-done, uint64(len(buf)))], done)
		}
		done += m
		if err != nil || m == 0 {
			break
		}
	}
	return done, err
}

// copyPiece copies as much as p holds through it.
func (k *compound) copyPiece(t *transfer, reads, writes *blockstore.Cred, p []byte, done uint64) (uint64, error) {
	n, _, err := k.saved.x.FS.ReadAt(reads, k.saved.h, p, t.sourceOff+done, false)
	if err != nil || n == 0 {
		return 0, err
	}
	n, _, _, err = k.cur.x.FS.WriteAt(writes, k.cur.h, p[:n], t.dstOff+done, blockstore.Unstable)
	return uint64(n), err
}
