package nfs4

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/nfs/state"
)

// This file is the journal that once.go explains.

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
