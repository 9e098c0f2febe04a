package nfs4

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// Version 4.0 (RFC 7530) has no sessions. An operation names its client by a client ID or a
// stateid, if at all. Owners number their requests, so that a repeated request is not executed
// again (section 9.1.7). In addition, Once sends compounds through the duplicate request cache.
//
// An operation of an owner takes the owner's turn, and other operations of the same owner wait. The
// turn ends when the result is known, and records the result for a retry.
//
//	                 seqid of the request
//	OPEN             of the open-owner; the first one of an owner may be any number
//	OPEN_CONFIRM     of the open-owner of the stateid
//	OPEN_DOWNGRADE   of the open-owner of the stateid
//	CLOSE            of the open-owner of the stateid
//	LOCK, new owner  of the open-owner, and that of the lock-owner
//	LOCK, LOCKU      of the lock-owner of the stateid
//
// Client and server must agree which errors use up a seqid (section 9.1.7). The server's list is
// advances in package state. If the two disagree once, each later request is BAD_SEQID, and the
// Linux client has to begin with a new owner.
//
// A turn is a mutex of package state. It is taken before every other lock, and its operation may
// wait for a store while it has the turn. run ends the turn after a panic too.

// byClient finds the client of the compound by its client ID, and renews its lease (section 9.5).
// The result is STALE_CLIENTID for an ID of an earlier start of the server, and for a client whose
// identity (state.Identity) is not that of this connection. It is EXPIRED for a client whose lease
// has ended. After STALE_CLIENTID the client sends SETCLIENTID and reclaims; after EXPIRED it sends
// SETCLIENTID and does not reclaim.
func (k *compound) byClient(id uint64) (st nfs.Status) {
	from := state.FromPeer(&k.c.Peer)
	c, st := k.s.state.Client40(k.now, id, &from)
	if st == nfs.OK {
		k.client = c
	}
	return st
}

// byState is byClient with a stateid in place of the client ID. The result is STALE_STATEID for a
// stateid of an earlier start of the server, EXPIRED for one of a client whose lease has ended, and
// BAD_STATEID for a special or forged one.
func (k *compound) byState(id state.Stateid) nfs.Status {
	from := state.FromPeer(&k.c.Peer)
	c, st := k.s.state.ClientOf(k.now, id, &from)
	if st == nfs.OK {
		k.client = c
	}
	return st
}

// io40 is ioStateOf in version 4.0 (section 9.1.4.3 has the special stateids). A special stateid
// names no client, so it renews no lease.
func (k *compound) io40(id state.Stateid, f lock.File, write bool) nfs.Status {
	if id == state.Anonymous || id == state.Bypass {
		return k.s.state.AnonymousIO(k.now, f, write, id == state.Bypass)
	}
	if st := k.byState(id); st != nfs.OK {
		return st
	}
	return k.client.IO(k.now, id, f, write)
}

// request is a hash of the operation: of its number, its arguments and the current file. It tells a
// retry from another operation of the same owner with the same sequence number. The result is never
// 0, which stands for no recorded answer. The arguments must have been decoded to their end: the
// hash covers what lies between the two decoders. A client can make collisions, and then gets an
// answer of its own earlier request.
func (k *compound) request() uint64 {
	const prime = 1099511628211
	sum := uint64(14695981039346656037)
	mix := func(w uint32) { sum = (sum ^ uint64(w)) * prime }
	mix(k.op)
	from := k.args
	n := from.Remaining() - k.c.Args.Remaining()
	mix(uint32(n))
	for range n / 4 {
		mix(from.Uint32())
	}
	var b [nfs.HandleMax]byte
	for _, c := range k.appendHandle(b[:0], &k.cur) {
		mix(uint32(c))
	}
	return max(sum, 1)
}

// answer repeats the recorded result of an operation (section 9.1.8). The current file handle
// becomes what it was after the operation: otherwise the GETFH behind a repeated OPEN would return
// the directory. The client's access is checked again. If the export was removed, or is no longer
// for the client, the result is STALE.
func (k *compound) answer(r *state.Answer) nfs.Status {
	k.c.Res.Fixed(r.Result)
	k.keepResult = true
	k.s.replays.Add(1)
	if r.Status != nfs.OK || r.File == (lock.File{}) {
		return r.Status
	}
	if x := k.s.cfg.Exports.ByID(r.File.Export); x != nil {
		if rule, st := k.enter(x); st == nfs.OK {
			k.setCurrent(object{x: x, rule: rule, h: r.File.Handle})
			return r.Status
		}
	}
	k.c.Res.Truncate(k.c.Res.Len() - len(r.Result))
	return nfs.ErrStale
}

// endTurn ends the turn of an operation with its result, if it has one. Package state copies the
// result: result lies in the reply's buffer, which the transport owns after the compound.
func (k *compound) endTurn(st nfs.Status, result []byte) {
	if k.turn == nil {
		return
	}
	a := state.Answer{Status: st, Result: result}
	if k.cur.x != nil {
		a.File = k.file()
	}
	k.turn.End(&a)
	k.turn = nil
}

// ofFile checks that the arguments did decode, and that the current file handle is of an export.
func (k *compound) ofFile() nfs.Status {
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case k.cur.x == nil:
		return nfs.ErrBadStateID
	}
	return nfs.OK
}

// takeTurn begins an operation on a stateid of the current file. In version 4.0 it takes the turn
// of the stateid's owner. If done, the operation is over with st: it failed, or it is a retry and
// has got its earlier result.
//
//	seqid is the next one                 the turn; the operation is executed
//	the last one, same operation          the recorded result
//	any other seqid                       BAD_SEQID
//	no such stateid, or of another kind   BAD_STATEID
//	the open is not confirmed yet         BAD_STATEID, except for OPEN_CONFIRM
//
// A stateid that CLOSE has ended is known until the owner's next request, for a repeated CLOSE.
func (k *compound) takeTurn(id state.Stateid, kind state.Kind, seq uint32) (done bool, st nfs.Status) {
	if st = k.ofFile(); st != nfs.OK || k.minor > 0 {
		return st != nfs.OK, st
	}
	if st = k.byState(id); st != nfs.OK {
		return true, st
	}
	return k.began(k.client.BeginState(k.now, id, kind, seq, k.request()))
}

// began takes the results of a Begin function of package state. If there is a turn, the compound
// owns it until endTurn. If t is nil, the operation is over.
func (k *compound) began(t *state.Turn, r *state.Answer, st nfs.Status) (done bool, _ nfs.Status) {
	switch {
	case r != nil:
		return true, k.answer(r)
	case st != nfs.OK:
		return true, st
	}
	k.turn = t
	return false, nfs.OK
}

// stated appends the stateid that is the result of an operation, and makes it the current stateid.
func (k *compound) stated(id state.Stateid, st nfs.Status) nfs.Status {
	if st == nfs.OK {
		k.curID = id
		EncodeStateid(&k.c.Res, id)
	}
	return k.badState(st)
}

// resultConfirm is OPEN4_RESULT_CONFIRM, a flag in the result of the first OPEN of an owner. The
// client must send OPEN_CONFIRM before it uses the stateid (section 9.1.11).
const resultConfirm = 2

// openTurn takes the turn of an open-owner for its OPEN. Discriminators of later versions are not
// in the XDR of version 4.0: BADXDR, which uses up no seqid. Bits of share_access other than READ
// and WRITE are INVAL, which uses one up. So they are checked after the turn has begun.
//
// A STALE_CLIENTID means that the client got no answer from the old process: the journal then
// expects this OPEN again, with the next client ID.
func (k *compound) openTurn(a *openArgs) (done bool, st nfs.Status) {
	if a.create && a.mode == CreateExclusive41 || a.claim > claimDelegPrev {
		return true, nfs.ErrBadXDR // of later versions
	}
	if st := k.byClient(a.client); st != nfs.OK {
		if st == nfs.ErrStaleClientID && a.create && k.journaled() {
			k.s.journal.again(ownerSlot(a), a.seq, k.now)
		}
		return true, st
	}
	done, st = k.began(k.client.BeginOpen(k.now, a.owner, a.seq, k.request(), a.claim == ClaimPrevious))
	if !done && a.want != 0 {
		return true, nfs.ErrInval
	}
	return done, st
}

// lockTurn takes the turn of the open-owner of a LOCK by a new lock-owner, or that of its
// lock-owner. The arguments are a union (section 16.10):
//
//	new_lock_owner
//	TRUE   open_seqid, open_stateid, lock_seqid, clientid, owner<1024>
//	FALSE  lock_stateid, lock_seqid
//
// The client ID in the first arm comes from the client. It must be that of the client that has the
// open: otherwise a client could make locks for owners of another one. The turn of an open-owner is
// always taken before that of a lock-owner.
func (k *compound) lockTurn(a *state.Lock, client uint64, seq, lockSeq uint32) (done bool, st nfs.Status) {
	if st := k.ofFile(); st != nfs.OK {
		return true, st
	}
	if !a.ByOpen {
		return k.takeTurn(a.ID, state.OfLock, seq)
	}
	if st := k.byClient(client); st != nfs.OK {
		return true, st
	}
	if done, st := k.takeTurn(a.ID, state.OfOpen, seq); done {
		return true, st
	}
	if client != k.client.ID {
		return true, nfs.ErrBadStateID // of another client than the lock-owner
	}
	st = k.turn.Locker(a.Owner, lockSeq)
	return st != nfs.OK, st
}

// openConfirm is OPEN_CONFIRM (RFC 7530 section 16.18). Arguments: stateid, seqid. The result is
// the stateid with its next seqid. A confirmed open is BAD_STATEID.
func openConfirm(k *compound) nfs.Status {
	d := &k.c.Args
	id := DecodeStateid(d)
	seq := d.Uint32()
	if done, st := k.takeTurn(id, state.OfUnconfirmed, seq); done {
		return st
	}
	return k.stated(k.client.ConfirmOpen(id, k.file()))
}

// delegate40 appends the open_delegation4 (section 16.16):
//
//	OPEN_DELEGATE_NONE 0    void
//	OPEN_DELEGATE_READ 1    stateid, recall, nfsace4
//	OPEN_DELEGATE_WRITE 2   stateid, recall, space_limit, nfsace4
//
// recall is FALSE: a delegation that would be recalled at once is not granted. A client that
// reclaims its open in the grace period gets back a read delegation that it had.
// In version 4.0 files are delegated for reading alone. The server cannot know which client sends a
// GETATTR. So it could not tell the holder of a write delegation from other clients, and would
// recall the delegation for the holder's own GETATTR.
func (k *compound) delegate40(a *openArgs) {
	e := &k.c.Res
	d := state.Delegate{File: k.file(), By: k.turn}
	switch {
	case a.claim == ClaimNull && a.access == state.Read:
	case a.claim == ClaimPrevious && a.deleg == delegRead:
		d.Reclaim = true
	default:
		e.Uint32(DelegNone)
		return
	}
	got, why := k.give(&d)
	if why != state.Given {
		e.Uint32(DelegNone)
		return
	}
	e.Uint32(delegRead)
	EncodeStateid(e, got.ID)
	e.Bool(false)
	k.encodeEmptyACE()
}
