package nfs4

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// ioState checks the stateid of an operation that reads or writes data of the current file (RFC
// 8881 section 8.2.5). It accepts
//
//	stateid          to read                       to write
//	open, its locks  any access                    if the open has access WRITE; else OPENMODE
//	delegation       of any type                   a write delegation; else OPENMODE
//	anonymous        if no open denies READ        if no open denies WRITE; else LOCKED
//	bypass           no open can deny it           as anonymous
//	copy stateid     the destination of a COPY     BAD_STATEID; see noticed
//
// A file that is open for writing only may be read, because a client reads the rest of a page of
// which it changes a part. In the grace period special stateids are GRACE: a client that has not
// reclaimed its open yet may deny the mode.
//
// The stateid comes from the client. One of another client, file or kind is BAD_STATEID. One of an
// earlier start of the server is BAD_STATEID, in version 4.0 STALE_STATEID. One with an old seqid
// is OLD_STATEID.
func (k *compound) ioState(id state.Stateid, write bool) nfs.Status {
	return k.ioStateOf(k.file(), id, write)
}

// ioStateOf is ioState of another file.
func (k *compound) ioStateOf(f lock.File, id state.Stateid, write bool) nfs.Status {
	// Special stateids belong to no client and no open (section 8.2.3). Delegations of others conflict
	// with both of them. Share reservations of others apply to Anonymous, and to a WRITE with Bypass,
	// but not to a READ with Bypass.
	if id == state.Anonymous || id == state.Bypass {
		if !k.mayBlock && k.s.state.Denying() {
			// Package state may have to end a client whose lease has run out, which writes to the journal.
			k.again = true
			return nfs.ErrJukebox
		}
		// An open would have recalled the delegations of others.
		if write {
			if st := k.beginChange(f); st != nfs.OK {
				return st
			}
		} else if !k.s.free(k.now, f, k.client, false, k.mayBlock) {
			k.again = !k.mayBlock
			return nfs.ErrJukebox
		}
	}
	if k.minor == 0 {
		return k.io40(id, f, write)
	}
	st := k.client.IO(k.now, id, f, write)
	if st == nfs.ErrBadStateID && !write && k.minor >= 2 {
		return k.noticed(id)
	}
	return k.badState(st)
}

// dataOp begins an operation on the data of the current file. The handler has read the arguments.
// The checks go from cheap to expensive. None of them calls the store; ioFailed does, after a
// failure. Byte-range locks are advisory, so they are not checked (RFC 8881 section 9.1.2).
func (k *compound) dataOp(id state.Stateid, write bool) nfs.Status {
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case k.cur.node != nil:
		return nfs.ErrIsDir
	case write && k.cur.readOnly():
		return nfs.ErrROFS
	case !k.mayBlock && k.s.state.GracePending():
		k.again = true // the end of the grace period is written to disk
		return nfs.ErrJukebox
	}
	if st := k.ioState(id, write); st != nfs.OK {
		return k.ioFailed(st)
	}
	return nfs.OK
}

// readOverhead is the size of a READ4resok without its data, in bytes: eof, length, padding.
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
// READ returns less than count where the export's rule, the session's reply size, or the Write
// chunk allow no more: a short READ without eof is legal, and the client asks for the rest. A
// client can name any count: n is bounded by all of them before memory is taken.
//
// Three ways of the data into the reply, in the order of preference:
//
//	Map, Borrow   pages of the page cache, sent without a copy; the transport releases the
//	              window after the reply. Not for a reply that the slot caches: that is a copy.
//	Payload       registered memory of the transport
//	make          from the 9th READ of a compound on; registered when the reply is sent
//
// If there is no registered memory the client is answered DELAY and comes again. READ is
// idempotent, so nothing is to be undone then.
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
			p = make([]byte, n) // the session's reply size bounds all of them together
		}
		if len(p) != n {
			k.s.cfg.Counters.NoMemory.Add(1)
			return nfs.ErrJukebox
		}
	}
	n, eof, err := k.cur.x.FS.ReadAt(k.who(&k.cur), k.cur.h, p, off, !k.mayBlock)
	if err == nil && !k.mayBlock && n < len(p) && !eof {
		err = blockstore.ErrWouldBlock // a short reply is legal, but costs the client a second call
	}
	if err != nil {
		if !k.mayBlock {
			// The worker finds the error again; its exact status may need a call that waits for a
			// disk.
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

// ioFailed returns the status of an operation on data that failed. If the object has the wrong
// type, the status of the type takes precedence (ISDIR, SYMLINK, WRONG_TYPE). To find out the type
// costs a call of the store, so this is done only after a failure. On a loop, the compound begins
// again on a worker, which finds the failure again and may wait for the type.
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

// write is WRITE (RFC 8881 section 18.32, RFC 7530 section 16.36): stateid, offset, stable, data<>;
// the result is count, committed, verifier. The data lies where the transport has received it:
// inline, or in registered memory by an RDMA READ of a Read chunk. The store may use the data only
// until WriteAt returns.
//
// The reply repeats what the store reports. committed is at least as stable as the client asked for
// (stable_how4):
//
//	UNSTABLE   a crash of the host can lose the data, so the client retains a copy
//	DATA_SYNC  the data, and what is needed to read it, is on disk before the reply
//	FILE_SYNC  the data and all attributes are on disk before the reply
//
// A client that gets another verifier at COMMIT than here writes the data again. A short WRITE is
// legal, and the client sends the rest.
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
	// A client can ignore maxwrite. The rest of its data is not written, and count says so.
	data = data[:min(len(data), int(k.cur.rule.WriteMax()))]
	// The verifier is read before the write. If the data is lost before the reply, the client sees at
	// COMMIT that its verifier differs.
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

// commit is COMMIT (RFC 8881 section 18.3, RFC 7530 section 16.3): offset, count; a count of 0
// means to the end of the file. COMMIT has no stateid, and needs none: it writes nothing that an
// earlier WRITE was not allowed to write. The reply leaves only after the data is stable. The
// client may then free its copy of all data that was written under the same verifier.
func commit(k *compound) nfs.Status {
	off, count := k.c.Args.Uint64(), k.c.Args.Uint32()
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case k.cur.node != nil:
		return nfs.ErrIsDir
	}
	// An export may become read-only between WRITE and COMMIT: the earlier data may still be
	// committed.
	if _, err := k.cur.x.FS.Commit(k.who(&k.cur), k.cur.h, off, count); err != nil {
		return k.ioFailed(nfs.StatusOf(err))
	}
	// The verifier is read after the sync. If unstable data is lost during the sync, the client sees
	// that its verifier differs.
	v := k.cur.x.FS.Verifier()
	k.c.Res.Fixed(v[:])
	return nfs.OK
}
