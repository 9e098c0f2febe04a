package nfs4

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// Delegations in OPEN, WANT_DELEGATION and their results (RFC 8881 section 18.16.1).
const (
	// open_delegation_type4.
	DelegNone    = 0
	delegRead    = 1
	delegWrite   = 2
	DelegNoneExt = 3 // from version 4.1 on: no delegation, with the reason
	// OPEN_DELEGATE_READ_ATTRS_DELEG and OPEN_DELEGATE_WRITE_ATTRS_DELEG: with times. The server
	// grants only the second one.
	delegReadTimes  = 4
	delegWriteTimes = 5

	// OPEN4_SHARE_ACCESS_WANT_*, bits of share_access. Version 4.0 answers INVAL to them.
	wantMask    = 0xff00
	wantRead    = 0x0100
	wantWrite   = 0x0200
	wantAny     = 0x0300
	WantNoDeleg = 0x0400
	wantCancel  = 0x0500
	wantSignals = wantWhenAvail | wantWhenFree
	// These ask the server to grant a delegation later, by callback. The server accepts both bits and
	// ignores them.
	wantWhenAvail = 0x10000
	wantWhenFree  = 0x20000
	// OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION: with a delegation the client needs no open (RFC
	// 9754 section 4). Version 4.2.
	wantXor = 0x200000
	// OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS: a client with a write delegation also keeps the times
	// of the file (RFC 9754 section 5). Version 4.2.
	wantTimes = 0x100000

	// why_no_delegation4; the others are state.WhyNot.
	whyNotWanted     = 0
	whyNotOfType     = 3
	whyNoWriteOfType = 4
	whyWantCancelled = 7
)

// delegate appends the open_delegation4 of an OPEN of the current file (RFC 8881 section 18.16.3).
// The server decides: a client can only ask for a type, or for none. A client that says nothing
// about a delegation is offered one for reading, or one for writing if it opens the file for both.
// Its result must not be OPEN_DELEGATE_NONE_EXT.
//
//	want    share_access   offered
//	-       READ           read
//	-       BOTH           write
//	-       WRITE          none
//	READ    READ           read
//	READ    WRITE, BOTH    none
//	WRITE   any            write; none in a read-only export
//	ANY     READ           read
//	ANY     WRITE, BOTH    write
//
// CLAIM_PREVIOUS gets the type that it reclaims. With CLAIM_DELEGATE_CUR the client has a
// delegation already. Package state refuses an offer if another client's open, lock or delegation
// conflicts, or if the client's backchannel has not answered yet. OPEN succeeds in each case: a
// delegation is only an optimization.
//
// The result is the stateid of the delegation; ok is false if there is none.
func (k *compound) delegate(a *openArgs) (id state.Stateid, ok bool) {
	if k.minor == 0 {
		k.delegate40(a)
		return id, false
	}
	want := a.want & wantMask
	switch want {
	case WantNoDeleg:
		k.encodeNoDelegation(whyNotWanted)
		return id, false
	case wantCancel:
		k.encodeNoDelegation(whyWantCancelled)
		return id, false
	}
	d := state.Delegate{
		File: k.file(), Write: a.access&state.Write != 0, Origin: k.origin(), Times: a.want&wantTimes != 0,
	}
	why := state.WhyResource
	var got state.Delegated
	switch a.claim {
	case ClaimNull, ClaimFH:
		switch {
		case want == wantRead && d.Write:
			// A client that writes cannot use a delegation for reading.
		case want == 0 && a.access == state.Write:
			// Its writer seldom opens a file again that it only writes. Other clients do.
		case want == wantWrite && k.cur.readOnly():
			why = whyNoWriteOfType
		default:
			d.Write = d.Write || want == wantWrite
			got, why = k.give(&d)
		}
	case ClaimPrevious:
		switch a.deleg {
		case delegRead, delegReadTimes, delegWrite, delegWriteTimes:
			d.Write, d.Reclaim = a.deleg == delegWrite || a.deleg == delegWriteTimes, true
			d.Times = a.deleg == delegWriteTimes && k.minor >= 2
			got, why = k.give(&d)
		}
	}
	switch {
	case why == state.Given:
		k.encodeDelegation(&got)
	case want == 0 && a.want&wantSignals == 0:
		k.c.Res.Uint32(DelegNone)
	default:
		k.encodeNoDelegation(uint32(why))
	}
	return got.ID, why == state.Given
}

// wants returns the bits of share_access above access that a minor version has.
func (k *compound) wants() uint32 {
	if k.minor < 2 {
		return wantMask | wantSignals
	}
	return wantMask | wantSignals | wantTimes | wantXor
}

// encodeNoDelegation appends an open_delegation4 with the reason for which there is none. Two
// reasons have a bool behind them: whether the server will push a delegation later (CONTENTION),
// and whether it will signal that it has resources again (RESOURCE).
func (k *compound) encodeNoDelegation(why uint32) {
	e := &k.c.Res
	e.Uint32(DelegNoneExt)
	e.Uint32(why)
	if w := state.WhyNot(why); w == state.WhyContention || w == state.WhyResource {
		e.Bool(false) // no callback follows
	}
}

// encodeDelegation appends an open_delegation4 with a delegation:
//
//	READ    stateid, recall, nfsace4
//	WRITE   stateid, recall, nfs_space_limit4, nfsace4; also with times (RFC 9754)
//
// recall is false: the server does not grant a delegation that it would recall at once.
func (k *compound) encodeDelegation(got *state.Delegated) {
	e := &k.c.Res
	kind := uint32(delegRead)
	switch {
	case got.Write && got.Times:
		kind = delegWriteTimes
	case got.Write:
		kind = delegWrite
	}
	e.Uint32(kind)
	EncodeStateid(e, got.ID)
	e.Bool(false)
	if got.Write {
		// nfs_space_limit4 of 0 bytes: the server reserves no space. The client has to write back
		// all modified data when it closes the file, so close(2) can report a full disk (RFC 8881
		// section 10.4.1).
		e.Uint32(1) // NFS_LIMIT_SIZE
		e.Uint64(0)
	}
	k.encodeEmptyACE()
}

// give asks package state for a delegation of the current file. First package state reserves the
// delegation, then lease takes the host's lease. If a program of the host has the file open, lease
// returns the delegation. The client never learns of it, because its stateid was not sent yet.
//
// Another worker may recall the delegation before the client has the reply. CB_RECALL names this
// request in its referring call list, so the client waits for the reply first (RFC 8881 section
// 2.10.6.3).
func (k *compound) give(d *state.Delegate) (state.Delegated, state.WhyNot) {
	if d.Write {
		// A client that has not changed the file answers CB_GETATTR with this change attribute (RFC
		// 8881 section 10.4.3).
		a, err := k.cur.x.FS.GetAttr(k.who(&k.cur), k.cur.h)
		if err != nil {
			return state.Delegated{}, state.WhyResource
		}
		d.Change, d.Accessed, d.Modified = changeOf(&a), a.Atime.UnixNano(), a.Mtime.UnixNano()
	}
	got, why := k.client.Delegate(k.now, d)
	if why == state.Given && !k.lease(d, got.ID) {
		why = state.WhyContention
	}
	k.recallAnyIfCrowded(&got)
	return got, why
}

// delegResult is the longest open_delegation4 in bytes, that of a write delegation: type, stateid,
// recall, nfs_space_limit4, nfsace4 with an empty who.
const delegResult = 4 + resStateid + 4 + 12 + 4*4

// encodeEmptyACE appends an nfsace4 that allows nothing: the client has to ask by ACCESS whether a
// user may open the file.
func (k *compound) encodeEmptyACE() {
	e := &k.c.Res
	e.Uint32(0) // ACCESS_ALLOWED
	e.Uint32(0)
	e.Uint32(0)
	e.String("")
}

// origin is the request being served: session, slot and sequence number. A callback about the state
// that the request makes refers to it.
func (k *compound) origin() state.Origin {
	return state.Origin{Session: k.use.Session.ID, Slot: k.use.Slot, Sequence: k.use.Sequence}
}

// delegReturn is DELEGRETURN (RFC 8881 section 18.6, RFC 7530 section 16.6). It ends the
// delegation, the host's lease and the pin of the file, and wakes the workers in await. It is
// served for an export that was withdrawn too. A revoked delegation is DELEG_REVOKED in a session,
// and the client frees it by FREE_STATEID; in version 4.0 it is BAD_STATEID. DELEGRETURN has no
// seqid, so it takes no turn in version 4.0.
func delegReturn(k *compound) nfs.Status {
	id := k.stateid(DecodeStateid(&k.c.Args))
	st := k.ofFile()
	if st == nfs.OK && k.minor == 0 {
		st = k.byState(id)
	}
	if st != nfs.OK {
		return st
	}
	return k.badState(k.client.ReturnDelegation(id, k.file()))
}

// beginChange recalls the delegations that other clients have of a file. Until the operation is
// over, no client gets a new one. It is for changes without an open: those with a special stateid,
// of attributes, of names. endOp ends them after the handler, also after a failure or a panic.
// Package state counts each element of inChange, so each must end exactly once.
//
// DELAY means that a client has not returned its delegation yet. The caller must not have changed
// anything before: the client repeats the whole operation.
func (k *compound) beginChange(f lock.File) nfs.Status {
	return k.begin(f, 0)
}

// begin is beginChange. kinds are those of a change of a directory, see state.BeginDirChange.
func (k *compound) begin(f lock.File, kinds uint32) nfs.Status {
	held, ok := k.s.beginChange(k.now, f, k.client, kinds)
	if held {
		k.inChange = append(k.inChange, f)
	}
	if !ok {
		return nfs.ErrJukebox
	}
	return nfs.OK
}

// beginChangeName is beginChange for the regular file or directory that has a name. The zero handle
// says that the name does not exist. The operation looks the name up again later. If the name has
// another file by then, that file has no reservation, as if the change had come a moment earlier.
// If the server has never had a backchannel there are no delegations, and beginChangeName does
// nothing.
func (k *compound) beginChangeName(dir *object, name string) (blockstore.Handle, nfs.Status) {
	if !k.s.state.Delegating() {
		return blockstore.Handle{}, nfs.OK
	}
	h, a, err := dir.x.FS.Lookup(k.who(dir), dir.h, name)
	switch {
	case err != nil:
		return blockstore.Handle{}, nfs.OK // the operation itself reports the error
	case a.Type != blockstore.TypeReg && a.Type != blockstore.TypeDir:
		return h, nfs.OK
	}
	return h, k.beginChange(lock.File{Export: dir.x.ID, Handle: h})
}

// endChanges ends the reservations of inChange: package state may grant delegations of the files
// again. It locks their shards one after another.
func (k *compound) endChanges() {
	for _, f := range k.inChange {
		k.s.state.EndChange(f)
	}
	k.inChange = k.inChange[:0]
}

const (
	// returnWait is how long an operation waits for the return of a delegation before it is answered
	// DELAY. A client with nothing to write back returns a delegation sooner. The Linux client repeats
	// a delayed call after 100 ms at first, and later after up to 15 s.
	returnWait = 30 * time.Millisecond
	// waitersMax bounds the workers that wait for clients, so that clients that do not answer cannot
	// occupy all workers. Above it, an operation is answered DELAY at once.
	waitersMax = 4
)

// await waits up to returnWait for the return of a delegation. ended says that a delegation of the
// file ended, so that another attempt is useful. If no delegation of the file is being recalled,
// await returns false at once. Call it without any lock, and on a worker: a transport's loop must
// not wait.
func (s *Server) await(f lock.File) (ended bool) {
	s.waiting(func() {
		if watch := s.state.Watch(f); watch != nil {
			_, ended = receive(watch, returnWait)
		}
	})
	return ended
}

// waiting calls wait, which waits for a client. If waitersMax workers wait already, it does not.
func (s *Server) waiting(wait func()) {
	defer s.waiters.Add(-1)
	if s.waiters.Add(1) <= waitersMax {
		wait()
	}
}

// receive receives from c for at most within. After that ok is false. A closed channel counts as
// received, with the zero value.
func receive[T any](c <-chan T, within time.Duration) (v T, ok bool) {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case v = <-c:
		return v, true
	case <-t.C:
		return v, false
	}
}

// free is state.Free. It also waits up to returnWait for each delegation that is being recalled. If
// mayWait is false it is state.Undelegated, and if that is false the caller moves the call to a
// worker.
func (s *Server) free(now time.Time, f lock.File, by *state.Client, change, mayWait bool) bool {
	for {
		switch {
		case !mayWait:
			return s.state.Undelegated(f, by, change)
		case s.state.Free(now, f, by, change):
			return true
		case !s.await(f):
			return false
		}
	}
}

// beginChange is state.BeginDirChange. It also waits up to returnWait for each delegation that is
// being recalled. by is the client that makes the change, whose own delegation does not conflict;
// nil for version 3. If held is true the caller must call state.EndChange.
func (s *Server) beginChange(now time.Time, f lock.File, by *state.Client, kinds uint32) (held, ok bool) {
	for {
		if held, ok = s.state.BeginDirChange(now, f, by, kinds); ok || !s.await(f) {
			return held, ok
		}
	}
}
