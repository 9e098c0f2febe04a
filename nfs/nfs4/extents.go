package nfs4

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// data_content4: the argument of SEEK, and the discriminator of READ_PLUS (RFC 7862 sections 15.11
// and 15.10).
const (
	contentData = 0
	contentHole = 1
)

// extents returns the store of the current file if it has holes, allocation and copies (RFC 7862
// sections 4, 6 and 7); else NOTSUPP. After NOTSUPP the Linux client does not try again in that
// file system.
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

// seek is SEEK (RFC 7862 section 15.11): stateid, offset, what; the result is eof and offset.
//
//	offset at or behind the end           NXIO
//	DATA, and no data follows             OK, eof, offset is the size
//	HOLE, and only data follows           OK, eof, offset is the size: the end of a file is a hole
//	otherwise                             OK, the first offset that matches
//
// In the second case lseek(2) of the host fails with ENXIO, as for an offset behind the end. seek
// compares the offset with the size to tell the two apart. The Linux client turns eof of a
// SEEK_DATA into ENXIO again.
//
// Others may write or truncate the file between Seek and GetAttr. The result then mixes two
// moments; the client can rely on it only as far as its locks reach.
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
		at = a.Size // no data follows: eof, not an error
	}
	k.c.Res.Bool(at >= a.Size)
	k.c.Res.Uint64(at)
	return nfs.OK
}

// allocate is ALLOCATE (RFC 7862 section 15.1), deallocate is DEALLOCATE (section 15.4): stateid,
// offset, length. The result is the status alone. Both need a stateid that allows to write. The
// client chooses the range; the store refuses a length of 0 and a range beyond the largest offset.
//
// The store makes both stable before it returns, so before the reply. The result has no verifier by
// which the client could see that a crash has undone the change.
func allocate(k *compound) nfs.Status   { return k.reserve(blockstore.Extents.Allocate) }
func deallocate(k *compound) nfs.Status { return k.reserve(blockstore.Extents.Deallocate) }

// reserve is what ALLOCATE and DEALLOCATE have in common. A special stateid recalls the delegations
// of others in ioState; the stateid of an open has done so at OPEN.
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

// transfer has the arguments that CLONE and COPY have in common: from the saved file to the current
// one. Offsets and count are in bytes, as the client has sent them.
type transfer struct {
	source, target    state.Stateid
	sourceOff, dstOff uint64
	count             uint64
}

// decodeTransfer reads the arguments. The current stateid means two things here: for the source the
// one that SAVEFH has saved, for the target the current one (RFC 8881 section 16.2.3.1.2).
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

// admitTransfer checks the files and stateids of a CLONE or COPY, and returns the size of the
// source. Both files have to be regular, the source stateid has to allow reading, and the target
// stateid writing. The export rule of the source was applied when its handle was put, and need not
// allow writing. The comparison with the size does not overflow for any offset and count of a
// client.
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

// clone is CLONE (RFC 7862 section 15.13). Unlike COPY it does everything or nothing, and needs a
// store that shares blocks: source and target are in one export, otherwise XDEV. A count of 0 means
// up to the end of the source. The store refuses offsets that are no multiples of clone_blksize,
// with INVAL. The clone is stable before the reply.
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
