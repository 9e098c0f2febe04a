package nfs4

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
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

// A record has 128 bytes, with numbers in big-endian order:
//
//	0    CRC-32 of what follows up to 85
//	4    number, which grows with every use of any record
//	12   session
//	28   slot
//	32   sequence
//	36   hash
//	68   first note: length, and 16 bytes
//	85   CRC-32 of the number and the second note
//	89   second note: length, and 16 bytes; length 0: there is none
//	127  1: the client has no answer
//
// Number 0 is a free record. The checksums detect what a kill left half written. A call writes its
// second note after the change, when the first one must not be lost any more. Byte 127 is outside
// of the checksums, because again sets it long after begin; a single byte is never half written. If
// several records are of one slot, the one with the greatest number is valid.
const (
	callRecord  = 128
	callNumber  = 4
	callSession = 12
	callSlot    = 28
	callSeq     = 32
	callSum     = 36
	callNote    = 68
	callNoteMax = 16
	callEnd     = callNote + 1 + callNoteMax
	callSecond  = callEnd + 4
	callAsked   = callRecord - 1

	// callsAge is how long a client has to send a call again in its new session. Without a bound, a
	// new REMOVE of the same name days later could be taken for the old one, and would not be
	// executed.
	callsAge = 5 * time.Minute
)

type slotKey struct {
	session state.SessionID
	slot    uint32
}

type callSumOf [sha256.Size]byte

// begun is a call of an earlier process. record is the index of its record. note is a copy.
type begun struct {
	record int
	seq    uint32
	sum    callSumOf
	note   []byte
}

// askedCall is a call that the client has sent again in its old slot (step 1), at the time at.
type askedCall struct {
	begun
	at time.Time
}

// journal is the journal. The zero value records nothing. mem belongs to the caller (Config.Calls),
// and must stay mapped until the server has ended. mu guards everything but the extent of mem. It
// is taken last: nothing that waits, and no store, is called while it is held.
type journal struct {
	mu     sync.Mutex
	mem    []byte
	number uint64
	order  []int // of records, the oldest first: a new slot takes order[next]
	next   int
	used   []slotKey       // by record; of this process. Zero: the record is of an earlier one, or free
	slots  map[slotKey]int // the record of a slot
	before map[slotKey]begun
	asked  map[callSumOf][]askedCall
}

func (j *journal) record(i int) []byte { return j.mem[i*callRecord:][:callRecord:callRecord] }

// load reads the records of earlier processes. It takes no lock: no other method may run meanwhile.
// New calls it. Restore calls it again, because the old process has written records until it was
// paused. The content may be anything, as from another version of the program. Records without a
// valid checksum are skipped, and overwritten in their turn.
func (j *journal) load(mem []byte, now time.Time) {
	n := len(mem) / callRecord
	numbers := make([]uint64, n)
	j.mem, j.used, j.slots = mem[:n*callRecord], make([]slotKey, n), make(map[slotKey]int)
	j.before, j.asked = make(map[slotKey]begun), make(map[callSumOf][]askedCall)
	newest := make(map[slotKey]uint64)
	be := binary.BigEndian
	for i := range n {
		r := j.record(i)
		number := be.Uint64(r[callNumber:])
		if number == 0 || be.Uint32(r) != crc32.ChecksumIEEE(r[callNumber:callEnd]) || r[callNote] > callNoteMax {
			continue
		}
		numbers[i] = number
		j.number = max(j.number, number)
		k := slotKey{state.SessionID(r[callSession:]), be.Uint32(r[callSlot:])}
		if number < newest[k] {
			continue
		}
		newest[k] = number
		note := r[callNote:]
		if l := r[callSecond]; 0 < l && l <= callNoteMax && be.Uint32(r[callEnd:]) == secondSum(r) {
			note = r[callSecond:]
		}
		b := begun{i, be.Uint32(r[callSeq:]), callSumOf(r[callSum:]), bytes.Clone(note[1:][:note[0]])}
		if r[callAsked] == 1 {
			j.ask(b, now)
		} else {
			j.before[k] = b
		}
	}
	// This process may be killed before a client has sent a call of the process before again. So the
	// free records are used first, then those that were written longest ago.
	j.order, j.next = make([]int, n), 0
	for i := range j.order {
		j.order[i] = i
	}
	slices.SortStableFunc(j.order, func(a, b int) int { return cmp.Compare(numbers[a], numbers[b]) })
}

// again notes that a client has sent a call of a session of an earlier process (step 1). A slot or
// sequence number that is not in the journal is ignored: any client can send these.
func (j *journal) again(k slotKey, seq uint32, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b, ok := j.before[k]
	if !ok || b.seq != seq {
		return
	}
	delete(j.before, k)
	if j.kept(b) {
		j.record(b.record)[callAsked] = 1
	}
	j.ask(b, now)
}

// kept reports whether the record of a call of an earlier process is still its own. This process
// uses the oldest records again for its own calls.
func (j *journal) kept(b begun) bool { return j.used[b.record] == slotKey{} }

func (j *journal) free(b begun) {
	if j.kept(b) {
		clear(j.record(b.record))
	}
}

// ask enters a call that the client has sent again. Two identical calls with the same note are one:
// the process was killed in take. The second mark would otherwise wait for a later call, which
// would then not be executed.
func (j *journal) ask(b begun, now time.Time) {
	for _, a := range j.asked[b.sum] {
		if bytes.Equal(a.note, b.note) {
			j.free(b)
			return
		}
	}
	j.asked[b.sum] = append(j.asked[b.sum], askedCall{b, now})
}

// take finds a call without an answer by its hash (step 2), and moves its record to the slot in
// which it is executed now. A client may have sent several identical calls, in several slots: take
// returns them in the order of step 1. The old record is freed when the new one is complete,
// because the process may be killed in between.
func (j *journal) take(k slotKey, seq uint32, sum callSumOf, now time.Time) (note []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := j.asked[sum]
	for len(list) > 0 && note == nil {
		a := list[0]
		list = list[1:]
		if now.Sub(a.at) < callsAge {
			note = a.note
			if j.order[j.next] == a.record {
				j.next = (j.next + 1) % len(j.order)
			}
			j.write(k, seq, sum, note)
		}
		j.free(a.begun)
	}
	if j.asked[sum] = list; len(list) == 0 {
		delete(j.asked, sum)
	}
	return note
}

// begin records what a call is about to do, or, if it has a record already, what it has done. note
// must not be longer than callNoteMax, or it is cut off; nfs.Objects writes 16 bytes.
func (j *journal) begin(k slotKey, seq uint32, sum callSumOf, note []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.write(k, seq, sum, note)
}

// write is begin with mu held. The record replaces that of the call that used the slot before: the
// client has the answer to that call, or it would not use the slot again. A slot without a record
// takes the next record in order, which may belong to another slot.
func (j *journal) write(k slotKey, seq uint32, sum callSumOf, note []byte) {
	be := binary.BigEndian
	i, ok := j.slots[k]
	if ok {
		if r := j.record(i); be.Uint32(r[callSeq:]) == seq && callSumOf(r[callSum:]) == sum {
			r[callSecond] = byte(copy(r[callSecond+1:][:callNoteMax], note))
			be.PutUint32(r[callEnd:], secondSum(r))
			return
		}
	}
	if !ok {
		i = j.order[j.next]
		j.next = (j.next + 1) % len(j.order)
		delete(j.slots, j.used[i])
		j.slots[k], j.used[i] = i, k
	}
	j.number++
	r := j.record(i)
	clear(r)
	be.PutUint64(r[callNumber:], j.number)
	copy(r[callSession:], k.session[:])
	be.PutUint32(r[callSlot:], k.slot)
	be.PutUint32(r[callSeq:], seq)
	copy(r[callSum:], sum[:])
	r[callNote] = byte(copy(r[callNote+1:callEnd], note))
	be.PutUint32(r, crc32.ChecksumIEEE(r[callNumber:callEnd]))
}

// secondSum is the checksum of the second note. It covers the number too, so that it does not fit
// another call of the record.
func secondSum(r []byte) uint32 {
	sum := crc32.ChecksumIEEE(r[callNumber:callSession])
	return crc32.Update(sum, crc32.IEEETable, r[callSecond:][:1+callNoteMax])
}

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
