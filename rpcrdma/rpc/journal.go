package rpc

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"
)

// The journal is the part of the duplicate request cache that outlives the process. A call that
// changes something is written to it twice:
//
//  1. before it is executed, with the note from which its procedure can see later whether the
//     change was made (the intent),
//  2. after it was executed, with its reply (the outcome).
//
// A server that starts with the same memory answers what was answered before. A call with an intent
// and no outcome is in doubt: when the client sends it again, its procedure gets the note
// (Call.Doubt).
//
// The memory belongs to the caller. Usually it is a shared mapping of a file: its content survives
// a SIGKILL. A record that was half written then has a wrong checksum. After a crash of the machine
// the journal is of no use: the file need not have its content.
//
// A record (big-endian; seq grows with every use of any record):
//
//	  0        4     12     20       24             56       72     74       75           140
//	+--------+-----+------+-----+----------------+---------+------+--------+-----------+--------
//	| CRC-32 | seq | time | XID | SHA-256 of key | address | port | transp.| len, note | outcome
//	+--------+-----+------+-----+----------------+---------+------+--------+-----------+--------
//	  140      144                     511
//	+--------+-----------------------+-----------+
//	| CRC-32 | length, reply         | delivered |
//	+--------+-----------------------+-----------+

const (
	recordLen  = 512
	noteMax    = 64
	journalTag = 0x72736a32 // version of the format, covered by the checksums

	// Offsets in a record. Each checksum covers the tag, the sequence number and what follows it.
	recSeq   = 4
	recAt    = 12
	recXID   = 20
	recSum   = 24
	recAddr  = 56 // of the client
	recPort  = 72
	recBy    = 74 // transport
	recNote  = 75 // length, then bytes
	replyAt  = recNote + 1 + noteMax
	recReply = replyAt + 4 // length, then bytes
	// 1 if the client has acknowledged the reply. No checksum covers it, because it changes alone.
	recDelivered = recordLen - 1
	replyMax     = recDelivered - recReply - 2
)

type journal struct {
	mem  []byte
	seq  uint64
	free []int32 // unused records
}

func recordSum(seq uint64, b []byte) uint32 {
	var h [12]byte
	binary.BigEndian.PutUint32(h[:], journalTag)
	binary.BigEndian.PutUint64(h[4:], seq)
	return crc32.Update(crc32.ChecksumIEEE(h[:]), crc32.IEEETable, b)
}

func (j *journal) record(i int32) []byte { return j.mem[int(i)*recordLen:][:recordLen:recordLen] }

// begin writes an intent into a free record and returns its number, or -1 if there is none.
//
//	crash                          the next process finds
//	while begin writes             a wrong checksum: the call was not executed, and is new
//	before finish                  an intent: the call is in doubt
//	while finish writes            an intent and a wrong outcome: in doubt
//	after finish                   the reply
//
// The record belongs to the entry until release. A call without a record is executed all the same:
// after a crash its retransmission is executed twice.
func (j *journal) begin(e *drcEntry, at int64, note []byte) int32 {
	if len(j.free) == 0 || len(note) > noteMax {
		return -1
	}
	i := j.free[len(j.free)-1]
	j.free = j.free[:len(j.free)-1]
	j.seq++
	r := j.record(i)
	be := binary.BigEndian
	r[recDelivered] = 0
	be.PutUint64(r[recSeq:], j.seq)
	be.PutUint64(r[recAt:], uint64(at))
	be.PutUint32(r[recXID:], e.key.xid)
	copy(r[recSum:], e.key.sum[:])
	clear(r[recAddr:recPort])
	if e.addr.IsValid() {
		a := e.addr.Addr().As16()
		copy(r[recAddr:], a[:])
	}
	be.PutUint16(r[recPort:], e.addr.Port())
	r[recBy] = byte(e.transport)
	r[recNote] = byte(len(note))
	copy(r[recNote+1:], note)
	be.PutUint32(r, recordSum(j.seq, r[recSeq:replyAt]))
	return i
}

// finish writes the outcome. If the reply is too long the call stays in doubt.
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

// deliver writes whether the client has acknowledged the reply.
func (j *journal) deliver(i int32, yes bool) {
	if i < 0 {
		return
	}
	b := &j.record(i)[recDelivered]
	*b = 0
	if yes {
		*b = 1
	}
}

// date writes when the call of a record arrived last. A process that is killed between the two
// writes loses the record.
func (j *journal) date(i int32, at int64) {
	r := j.record(i)
	be := binary.BigEndian
	be.PutUint64(r[recAt:], uint64(at))
	be.PutUint32(r, recordSum(be.Uint64(r[recSeq:]), r[recSeq:replyAt]))
}

// release frees a record.
func (j *journal) release(i int32) {
	clear(j.record(i)[:4])
	j.free = append(j.free, i)
}

// load reads the memory. It returns the calls of the journal, oldest first: each with its reply, or
// with its note if it is in doubt.
func (j *journal) load(mem []byte) []*drcEntry {
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
	list := make([]*drcEntry, len(have))
	for n, f := range have {
		j.seq = max(j.seq, f.seq)
		r := j.record(f.i)
		addr := netip.AddrFrom16([16]byte(r[recAddr:])).Unmap()
		e := &drcEntry{
			key: drcKey{xid: be.Uint32(r[recXID:]), sum: [32]byte(r[recSum:])}, record: f.i, at: int64(be.Uint64(r[recAt:])),
			addr: netip.AddrPortFrom(addr, be.Uint16(r[recPort:])), transport: Transport(r[recBy]),
			delivered: r[recDelivered] == 1,
			doubt:     bytes.Clone(r[recNote+1:][:r[recNote]]),
		}
		if l := int(be.Uint16(r[recReply:])); l > 0 && l <= replyMax &&
			be.Uint32(r[replyAt:]) == recordSum(f.seq, r[recReply:recReply+2+l]) {
			e.reply, e.doubt = bytes.Clone(r[recReply+2:][:l]), nil
			e.size = l
		}
		list[n] = e
	}
	return list
}
