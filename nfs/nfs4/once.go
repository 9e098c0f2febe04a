package nfs4

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Sessions end with the process. If a client of version 4.1 or later got no answer to a call, it
// then does two things. They distinguish the repeated call from a new one with the same arguments:
//
//  1. it sends the call again as it was, in the slot of the old session, and gets BADSESSION;
//  2. it makes a new session, and sends the operations in a slot of the new session.
//
// The journal has a record for each slot whose last call made, opened, removed, renamed or linked
// something, or set attributes. The record has a hash of the request, and the note by which
// nfs.Once finds out whether the change was made. Step 1 marks the record: its call got no answer.
// Step 2 finds the marked record by the hash, and uses it up. If the client has the answer to a
// call, step 1 does not happen, and the record is never used.
//
//	client                    old process               journal
//	REMOVE slot 3 seq 7  -->  begin             ----->  session, 3, 7, hash, note
//	                          the store removes the name
//	                          killed
//	                          new process
//	REMOVE slot 3 seq 7  -->  load, BADSESSION  ----->  again: asked
//	EXCHANGE_ID, CREATE_SESSION
//	REMOVE slot 0 seq 1  -->  Doubt             <-----  take: the note
//	               OK   <---  the name is gone: nothing to do
//
// The order matters: the record is complete before the store changes anything, and the reply comes
// after both. After a kill before the record, nothing was done. After a kill between record and
// change, the note fits the present names, and the call is executed. The journal is for changes
// whose second execution would fail or destroy something. If more slots are in use than there are
// records, a record is lost. Then the call is executed again, as by any server without a journal.
//
// Another client that knows a session ID can mark records by step 1. For step 2 the owner string,
// the credential, the handles and the arguments must be the same, so only the client itself can use
// the mark.
//
// A repeated OPEN that had created its file opens that file. The createmode and the mode of the
// file do not matter then, and the file is not truncated again. The result is a new stateid,
// because the client has none that it could reclaim.
//
// In version 4.0 the duplicate request cache has the replies of other operations. The cached reply
// of an OPEN would be of no use, because its client ID is stale. So step 1 is the OPEN with the old
// client ID, and step 2 is the OPEN with the new one. The open-owner takes the place of the slot,
// and the seqid of the OPEN that of the sequence number.
//
// The memory is a shared mapping of a file. It outlives a kill of the process, but not a crash of
// the host. So sessions are not persistent in the sense of CREATE_SESSION4_FLAG_PERSIST.

// attempt is the operation of a compound that the journal records: the first one that changes names
// or attributes.
type attempt struct {
	k    *compound
	slot slotKey
	seq  uint32
	head [4]uint32   // arguments in front of from
	from xdr.Decoder // the operation's arguments, and those of all behind it
	sum  callSumOf
}

// Journaled implements nfs.Noter.
func (a *attempt) Journaled() bool { return a.k.journaled() }

func (k *compound) journaled() bool { return len(k.s.journal.mem) > 0 }

// Doubt implements nfs.Noter. A note that it returns is recorded for this execution as well,
// because the server may be killed again. The hash covers the owner string of the client, the
// credential, both file handles, and the arguments up to the end of the compound. (The client
// repeats all operations; the same REMOVE followed by others is another request.) It does not cover
// the client ID and the session, because they are new after a restart.
func (a *attempt) Doubt() []byte {
	k := a.k
	e := xdr.Encoder{B: k.cacheBuf[:0]} // cacheBuf is unused until finish
	e.String(k.client.Owner())
	e.Uint32(uint32(k.c.Cred.Flavor))
	e.Uint32(k.c.Cred.UID)
	e.Uint32(k.c.Cred.GID)
	e.String(k.c.Cred.Principal)
	for _, o := range [...]*object{&k.cur, &k.saved} {
		if o.set() {
			k.encodeHandle(&e, o)
		}
	}
	for _, w := range a.head {
		e.Uint32(w)
	}
	e.B = a.from.AppendRest(e.B)
	a.sum = sha256.Sum256(e.B)
	if cap(e.B) <= cachedMax {
		k.cacheBuf = e.B
	}
	return k.s.journal.take(a.slot, a.seq, a.sum, k.now)
}

// Intend implements nfs.Noter. Doubt must have been called before: it computes the hash. Of two
// notes of one call the second counts.
func (a *attempt) Intend(note []byte) { a.k.s.journal.begin(a.slot, a.seq, a.sum, note) }

// done is the nfs.Noter of operations that the journal does not record.
type done struct{}

func (done) Journaled() bool { return false }
func (done) Intend([]byte)   {}
func (done) Doubt() []byte   { return nil }

// once returns the means to find out whether an earlier execution of an operation, before the
// server was killed, has changed names in the current directory. The arguments of the operation
// begin at from. Only the first changing operation of a compound uses the journal, in the record of
// its slot. In version 4.0, a compound that names no client uses the journal of the duplicate
// request cache instead, by its RPC call.
func (k *compound) once(from xdr.Decoder) nfs.Once {
	o := nfs.Once{Call: done{}, FS: k.cur.x.FS}
	switch {
	case k.noted: // a compound has at most one record
	case k.executing:
		k.attempt = attempt{k: k, slot: slotKey{k.use.Session.ID, k.use.Slot}, seq: k.use.Sequence, from: from}
		o.Call = &k.attempt
	case k.client == nil:
		o.Call = k.c
	}
	k.noted = true
	return o
}

// onceSet is once for a SETATTR. The hash leaves out the stateid, because a client that has
// reclaimed its open sends another stateid. In version 4.0 the duplicate request cache has the
// reply.
func (k *compound) onceSet(from xdr.Decoder) nfs.Once {
	o := nfs.Once{Call: done{}}
	if k.executing {
		o = k.once(from)
		k.attempt.head[0] = OpSetAttr
	}
	return o
}

// onceOpen is once for an OPEN that may make a file. The hash covers share_access, share_deny and
// the arguments from the owner on. It leaves out the client ID, which differs after a restart.
func (k *compound) onceOpen(a *openArgs) nfs.Once {
	first := !k.noted
	o := k.once(a.fromOwner)
	if first && k.minor == 0 {
		k.attempt = attempt{k: k, slot: ownerSlot(a), seq: a.seq, from: a.fromOwner}
		o.Call = &k.attempt
	}
	k.attempt.head = [...]uint32{OpOpen, a.access, a.want, a.deny}
	return o
}

// ownerSlot returns the key that stands for a slot with an open-owner of version 4.0: the owner
// numbers its requests, and has one under way at a time. The client ID and a hash of the owner take
// the place of the session ID. The slot number 2^32-1 distinguishes owners from sessions, which
// have at most slotsMax slots.
func ownerSlot(a *openArgs) (k slotKey) {
	binary.BigEndian.PutUint64(k.session[:], a.client)
	f := fnv.New64a()
	_, _ = f.Write(a.owner)
	binary.BigEndian.PutUint64(k.session[8:], f.Sum64())
	k.slot = ^uint32(0)
	return k
}
