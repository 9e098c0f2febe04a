package rpc

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// The journal is the part of the duplicate request cache that outlives the
// process. A call that changes something is noted in it twice: before it is
// executed, with what its procedure needs in order to see afterwards whether it
// was executed, and when it has been, with its reply. A server that is started
// over the same memory answers what was answered before, and tells the procedure
// of a call that it finds begun (Call.Doubt).
//
// The memory is the caller's, usually a shared mapping of a file: what was
// stored there before a SIGKILL is there after it, and what was being stored is
// told by its checksum. It says nothing after a crash of the machine.

const (
	recordLen  = 512
	noteMax    = 64
	journalTag = 0x72736a31 // what the checksums begin with: the record's format

	// Offsets in a record: the intent, up to replyAt, and the outcome. Each begins
	// with a CRC-32 of the tag, the sequence number and what follows.
	recSeq   = 4 // grows with every use of any record
	recAt    = 12
	recPeer  = 20
	recCall  = 36 // xid, prog, vers, proc
	recSize  = 52
	recSum   = 60
	recNote  = 68 // length, then bytes
	replyAt  = recNote + 1 + noteMax + 3
	recReply = replyAt + 4 // length, then bytes
	replyMax = recordLen - recReply - 2
)

type journal struct {
	mem  []byte
	seq  uint64
	free []int32 // records nobody uses
}

// doubt is a call that was begun and whose outcome is not known.
type doubt struct {
	note   []byte
	at     int64
	record int32
}

func recordSum(seq uint64, b []byte) uint32 {
	var h [12]byte
	binary.BigEndian.PutUint32(h[:], journalTag)
	binary.BigEndian.PutUint64(h[4:], seq)
	return crc32.Update(crc32.ChecksumIEEE(h[:]), crc32.IEEETable, b)
}

func (j *journal) record(i int32) []byte { return j.mem[int(i)*recordLen:][:recordLen:recordLen] }

// begin writes an intent into a free record, or reports -1.
func (j *journal) begin(k *drcKey, at int64, note []byte) int32 {
	if len(j.free) == 0 || len(note) > noteMax {
		return -1
	}
	i := j.free[len(j.free)-1]
	j.free = j.free[:len(j.free)-1]
	j.seq++
	r := j.record(i)
	be := binary.BigEndian
	be.PutUint64(r[recSeq:], j.seq)
	be.PutUint64(r[recAt:], uint64(at))
	copy(r[recPeer:], k.peer[:])
	be.PutUint32(r[recCall:], k.xid)
	be.PutUint32(r[recCall+4:], k.prog)
	be.PutUint32(r[recCall+8:], k.vers)
	be.PutUint32(r[recCall+12:], k.proc)
	be.PutUint64(r[recSize:], uint64(k.size))
	be.PutUint64(r[recSum:], k.sum)
	r[recNote] = byte(len(note))
	copy(r[recNote+1:], note)
	be.PutUint32(r, recordSum(j.seq, r[recSeq:replyAt]))
	return i
}

// finish writes the outcome. A reply that is too long is left out: the call
// stays in doubt, and its procedure finds out again.
func (j *journal) finish(i int32, reply []byte) {
	if len(reply) > replyMax {
		return
	}
	r := j.record(i)
	binary.BigEndian.PutUint16(r[recReply:], uint16(len(reply)))
	copy(r[recReply+2:], reply)
	seq := binary.BigEndian.Uint64(r[recSeq:])
	binary.BigEndian.PutUint32(r[replyAt:], recordSum(seq, r[recReply:recReply+2+len(reply)]))
}

// release makes a record free again.
func (j *journal) release(i int32) {
	clear(j.record(i)[:4])
	j.free = append(j.free, i)
}

// load takes over the memory: it reports each call that it knows, oldest first,
// with its reply or, while in doubt, its note.
func (j *journal) load(mem []byte, each func(k drcKey, i int32, at int64, note, reply []byte)) {
	j.mem = mem
	type found struct {
		i   int32
		seq uint64
	}
	var have []found
	n := len(mem) / recordLen
	for i := int32(n - 1); i >= 0; i-- {
		r := j.record(i)
		seq := binary.BigEndian.Uint64(r[recSeq:])
		if binary.BigEndian.Uint32(r) != recordSum(seq, r[recSeq:replyAt]) || int(r[recNote]) > noteMax {
			j.release(i)
			continue
		}
		have = append(have, found{i, seq})
	}
	slices.SortFunc(have, func(a, b found) int { return cmp.Compare(a.seq, b.seq) })
	be := binary.BigEndian
	for _, f := range have {
		j.seq = max(j.seq, f.seq)
		r := j.record(f.i)
		k := drcKey{
			xid: be.Uint32(r[recCall:]), prog: be.Uint32(r[recCall+4:]), vers: be.Uint32(r[recCall+8:]), proc: be.Uint32(r[recCall+12:]),
			size: int(be.Uint64(r[recSize:])), sum: be.Uint64(r[recSum:]),
		}
		copy(k.peer[:], r[recPeer:])
		note := bytes.Clone(r[recNote+1:][:r[recNote]])
		var reply []byte
		if l := int(be.Uint16(r[recReply:])); l > 0 && l <= replyMax &&
			be.Uint32(r[replyAt:]) == recordSum(f.seq, r[recReply:recReply+2+l]) {
			reply = bytes.Clone(r[recReply+2:][:l])
		}
		each(k, f.i, int64(be.Uint64(r[recAt:])), note, reply)
	}
}
