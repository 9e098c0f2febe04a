package rpc

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
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
	journalTag = 0x72736a32 // what the checksums begin with: the record's format

	// Offsets in a record: the intent, up to replyAt, and the outcome. Each begins
	// with a CRC-32 of the tag, the sequence number and what follows.
	recSeq   = 4 // grows with every use of any record
	recAt    = 12
	recXID   = 20
	recSum   = 24
	recAddr  = 56 // of the client
	recPort  = 72
	recBy    = 74 // transport
	recNote  = 75 // length, then bytes
	replyAt  = recNote + 1 + noteMax
	recReply = replyAt + 4 // length, then bytes
	// The client has acknowledged the reply: 1, behind everything and in no checksum, as it is changed alone.
	recDelivered = recordLen - 1
	replyMax     = recDelivered - recReply - 2
)

type journal struct {
	mem  []byte
	seq  uint64
	free []int32 // records nobody uses
}

func recordSum(seq uint64, b []byte) uint32 {
	var h [12]byte
	binary.BigEndian.PutUint32(h[:], journalTag)
	binary.BigEndian.PutUint64(h[4:], seq)
	return crc32.Update(crc32.ChecksumIEEE(h[:]), crc32.IEEETable, b)
}

func (j *journal) record(i int32) []byte { return j.mem[int(i)*recordLen:][:recordLen:recordLen] }

// begin writes an intent into a free record, or reports -1.
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

// deliver writes whether the client has the reply.
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

// release makes a record free again.
func (j *journal) release(i int32) {
	clear(j.record(i)[:4])
	j.free = append(j.free, i)
}

// load takes over the memory. It returns each call that the journal knows, oldest first, with its reply or, while in
// doubt, its note.
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
			addr: netip.AddrPortFrom(addr, be.Uint16(r[recPort:])), transport: Transport(r[recBy]), delivered: r[recDelivered] == 1,
			doubt: bytes.Clone(r[recNote+1:][:r[recNote]]),
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
