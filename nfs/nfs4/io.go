package nfs4

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// ioState checks the stateid of something like a READ or a WRITE of the current file (RFC 8881
// section 8.2.5): of an open with the mode, of a lock of such an open, of a delegation, or a
// special one.
func (k *compound) ioState(id state.Stateid, write bool) nfs.Status {
	return k.ioStateOf(k.file(), id, write)
}

// ioStateOf is ioState of another file.
func (k *compound) ioStateOf(f lock.File, id state.Stateid, write bool) nfs.Status {
	// The special stateids belong to no client and no open: all zeros is anonymous access, all ones a
	// READ that passes by mandatory locks (section 8.2.3). They are still subject to share
	// reservations and delegations of others.
	if id == state.Anonymous || id == state.Bypass {
		if !k.mayBlock && k.s.state.Denying() {
			k.again = true // to end what a silent client denies may mean to write that down
			return nfs.ErrJukebox
		}
		// An open would have asked for the delegations of others.
		if write {
			if st := k.beginChange(f); st != nfs.OK {
				return st
			}
		} else if !k.s.free(k.now, f, k.client, false, k.mayBlock) {
			return nfs.ErrJukebox
		}
	}
	if k.minor == 0 {
		return k.io40(id, f, write)
	}
	return k.badState(k.client.IO(k.now, id, f, write))
}

// dataOp begins an operation on the data of the current file, whose arguments have been read.
func (k *compound) dataOp(id state.Stateid, write bool) nfs.Status {
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case k.cur.node != nil:
		return nfs.ErrIsDir
	case write && k.cur.readOnly():
		return nfs.ErrROFS
	case !k.mayBlock && k.s.state.GracePending():
		k.again = true // to find out whether it is over may mean to write that down
		return nfs.ErrJukebox
	}
	if st := k.ioState(id, write); st != nfs.OK {
		return k.ioFailed(st)
	}
	return nfs.OK
}

// readOverhead is what a READ4resok holds beside its data, with padding.
const readOverhead = 4 + 4 + 3

// payloads is how many blocks of registered memory every transport has for a call. Further READs of
// a compound use memory that is registered when the reply is sent.
const payloads = 8

// read is READ (RFC 8881 section 18.22, RFC 7530 section 16.23). Its data is never encoded: the
// store reads into memory of the transport, or the transport sends pages of the page cache. The
// transport owns that memory from then on, and frees it when the reply has been sent. The READs of
// a compound are matched with the Write chunks of a call by RDMA in their order (RFC 8267 section
// 6.4).
//
// It returns less than it was asked for where the export's rule, the session's reply size, or the
// Write chunk allow no more: a short READ without eof is legal, and the client asks for the rest. A
// client can name any count: n is bounded by all of them before memory is taken.
func read(k *compound) nfs.Status {
	d := &k.c.Args
	id := k.stateid(DecodeStateid(d))
	off, count := d.Uint64(), d.Uint32()
	if st := k.dataOp(id, false); st != nfs.OK {
		return st
	}
	n := min(int(count), int(k.cur.rule.ReadMax()), max(k.room()-readOverhead, 0))
	if m := k.c.NextBulk(); m >= 0 {
		n = min(n, m)
	}
	if m, ok := k.cur.x.FS.(blockstore.Mapper); ok && !k.cacheThis && k.c.Borrows(n) {
		if w, eof := m.Map(k.who(&k.cur), k.cur.h, off, n); w != nil {
			k.c.Res.Bool(eof)
			k.c.Borrow(w)
			return nfs.OK
		}
	}
	var p []byte
	if n > 0 {
		if len(k.c.Res.Refs) < payloads {
			p = k.c.Payload(n)
		} else {
			p = make([]byte, n) // all of them together are bounded by the session
		}
		if len(p) != n {
			k.s.cfg.Counters.NoMemory.Add(1)
			return nfs.ErrJukebox
		}
	}
	n, eof, err := k.cur.x.FS.ReadAt(k.who(&k.cur), k.cur.h, p, off, !k.mayBlock)
	if err == nil && !k.mayBlock && n < len(p) && !eof {
		err = blockstore.ErrWouldBlock // a short reply, though legal, costs the client a second call
	}
	if err != nil {
		if !k.mayBlock {
			// What there is to say of the failure may be on disk as well.
			k.again = true
			if errors.Is(err, blockstore.ErrWouldBlock) {
				k.s.cfg.Counters.ReadsMoved.Add(1)
			}
			return nfs.ErrJukebox
		}
		return k.ioFailed(nfs.StatusOf(err))
	}
	e := &k.c.Res
	e.Bool(eof)
	e.Bulk(p[:n])
	return nfs.OK
}

// ioFailed returns the status of an operation on data that failed. An object of the wrong type has
// its own statuses (ISDIR, SYMLINK, WRONG_TYPE), which count before all others. To find the type
// out costs a call of the store, so only a failure does. On a loop the compound begins again on a
// worker, which finds the failure once more and may wait for the type.
func (k *compound) ioFailed(st nfs.Status) nfs.Status {
	if !k.mayBlock {
		k.again = true
		return st
	}
	switch st {
	case nfs.ErrInval, nfs.ErrBadStateID, nfs.ErrIsDir, nfs.ErrBadType:
		if t := k.regular(); t != nfs.OK && t != nfs.ErrStale {
			return t
		}
	}
	return st
}

// write is WRITE (RFC 8881 section 18.32, RFC 7530 section 16.36). The data lies where the
// transport has received it, in order with the call's other arguments, and is the store's only
// until WriteAt returns. The reply says what the store reports: committed may be more than was
// asked for, and never less. A client that gets another verifier at COMMIT than here writes the
// data again.
func write(k *compound) nfs.Status {
	d := &k.c.Args
	id := k.stateid(DecodeStateid(d))
	off := d.Uint64()
	how := blockstore.Stability(d.Uint32())
	data := d.Bulk(nfs.MaxIO)
	if how > blockstore.FileSync {
		return nfs.ErrBadXDR
	}
	if st := k.dataOp(id, true); st != nfs.OK {
		return st
	}
	fs := k.cur.x.FS
	data = data[:min(len(data), int(k.cur.rule.WriteMax()))] // the client sends the rest again
	// The verifier of before: if the data is lost before the reply, the client has to see at COMMIT
	// that its own does not match.
	v := fs.Verifier()
	n, committed, _, err := fs.WriteAt(k.who(&k.cur), k.cur.h, data, off, how)
	if err != nil {
		return k.ioFailed(nfs.StatusOf(err))
	}
	e := &k.c.Res
	e.Uint32(uint32(n))
	e.Uint32(uint32(committed))
	e.Fixed(v[:])
	return nfs.OK
}

// commit is COMMIT (RFC 8881 section 18.3, RFC 7530 section 16.3). It needs no stateid: whoever may
// write has written already.
func commit(k *compound) nfs.Status {
	off, count := k.c.Args.Uint64(), k.c.Args.Uint32()
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case k.cur.node != nil:
		return nfs.ErrIsDir
	}
	// What was written before the export became read-only may be committed still.
	if _, err := k.cur.x.FS.Commit(k.who(&k.cur), k.cur.h, off, count); err != nil {
		return k.ioFailed(nfs.StatusOf(err))
	}
	// The verifier of after: if unstable writes are lost during the sync, the client has to
	// see that its own does not match.
	v := k.cur.x.FS.Verifier()
	k.c.Res.Fixed(v[:])
	return nfs.OK
}
