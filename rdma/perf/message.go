package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Version is that of the messages below. An end refuses all others.
const Version = 1

// magic begins every message, so that a client of another program is not taken for one
// of ours.
const magic = 0x72705246 // "rpRF"

// Lengths of the messages in bytes. What follows in the private data is zero.
const (
	headLen    = 8  // be32 magic, u8 version, two bytes that differ, and 0
	requestLen = 44 // head; be64 run, be32 size, be16 depth, be16 QPs, be64 address, be32 R_Key, be64 0
	replyLen   = 36 // head; be32 size, be64 address, be32 R_Key, be32 idle ms, be32 duration ms, be32 0
	messageLen = 40 // head; be32 sequence, be32 size, be64 count, be64 elapsed ns, be64 peak

	// rejectMax is the private data of a REJ, wordsMax what the words have of it.
	rejectMax = 148
	wordsMax  = rejectMax - headLen
)

// Flags of a request.
const (
	flagLatency       = 1
	flagBidirectional = 2
)

var errMalformed = errors.New("no request for a measurement")

// versionError is a peer of another version.
type versionError uint8

func (e versionError) Error() string {
	return fmt.Sprintf("version %d of the measurement's messages, not %d", uint8(e), Version)
}

// head writes the first bytes of a message.
func head(b []byte, a, c uint8) {
	binary.BigEndian.PutUint32(b, magic)
	b[4], b[5], b[6], b[7] = Version, a, c, 0
}

// checkHead looks for the first bytes of a message.
func checkHead(b []byte, length int) error {
	if len(b) < headLen || binary.BigEndian.Uint32(b) != magic {
		return errMalformed
	}
	if b[4] != Version {
		return versionError(b[4])
	}
	if len(b) < length {
		return errMalformed
	}
	for _, c := range b[length:] {
		if c != 0 {
			return errMalformed
		}
	}
	return nil
}

// remote is memory of the peer.
type remote struct {
	addr uint64
	rkey uint32
}

// request is the private data of a REQ: what the client wants of this queue pair.
type request struct {
	run  uint64 // the same for all queue pairs of a run
	op   Op
	test uint8 // flags
	size uint32
	qps  uint16
	mem  remote // of the client, for what the server posts

	depth uint16
}

func (r *request) plan() plan {
	return plan{
		op: r.op, latency: r.test&flagLatency != 0, bidirectional: r.test&flagBidirectional != 0,
		size: int(r.size), depth: int(r.depth), qps: int(r.qps),
	}
}

func (r *request) encode() []byte {
	b := make([]byte, requestLen)
	head(b, uint8(r.op), r.test)
	binary.BigEndian.PutUint64(b[8:], r.run)
	binary.BigEndian.PutUint32(b[16:], r.size)
	binary.BigEndian.PutUint16(b[20:], r.depth)
	binary.BigEndian.PutUint16(b[22:], r.qps)
	binary.BigEndian.PutUint64(b[24:], r.mem.addr)
	binary.BigEndian.PutUint32(b[32:], r.mem.rkey)
	return b
}

// decode reads a request. Sizes and numbers are what the peer says; whether they are
// granted is for the server's limits.
func (r *request) decode(b []byte) error {
	if err := checkHead(b, requestLen); err != nil {
		return err
	}
	*r = request{
		op: Op(b[5]), test: b[6], run: binary.BigEndian.Uint64(b[8:]), size: binary.BigEndian.Uint32(b[16:]),
		depth: binary.BigEndian.Uint16(b[20:]), qps: binary.BigEndian.Uint16(b[22:]),
		mem: remote{binary.BigEndian.Uint64(b[24:]), binary.BigEndian.Uint32(b[32:])},
	}
	both := r.test&flagLatency != 0 && r.test&flagBidirectional != 0
	switch {
	case !r.op.known(), r.test&^(flagLatency|flagBidirectional) != 0, both, b[7] != 0, binary.BigEndian.Uint64(b[36:]) != 0:
		return errMalformed
	case r.size == 0, r.depth == 0, r.qps == 0, r.op.Atomic() && r.size != AtomicSize:
		return errMalformed
	}
	return nil
}

// reply is the private data of a REP: where the server's memory is, and for how long.
type reply struct {
	size     uint32
	mem      remote
	idle     uint32 // ms without a message after which the server leaves
	duration uint32 // ms after which it leaves in any case
}

func (r *reply) encode() []byte {
	b := make([]byte, replyLen)
	head(b, 0, 0)
	binary.BigEndian.PutUint32(b[8:], r.size)
	binary.BigEndian.PutUint64(b[12:], r.mem.addr)
	binary.BigEndian.PutUint32(b[20:], r.mem.rkey)
	binary.BigEndian.PutUint32(b[24:], r.idle)
	binary.BigEndian.PutUint32(b[28:], r.duration)
	return b
}

func (r *reply) decode(b []byte) error {
	if err := checkHead(b, replyLen); err != nil {
		return err
	}
	*r = reply{
		size: binary.BigEndian.Uint32(b[8:]), mem: remote{binary.BigEndian.Uint64(b[12:]), binary.BigEndian.Uint32(b[20:])},
		idle: binary.BigEndian.Uint32(b[24:]), duration: binary.BigEndian.Uint32(b[28:]),
	}
	if b[5]|b[6]|b[7] != 0 || r.size == 0 || r.idle == 0 || r.duration == 0 || binary.BigEndian.Uint32(b[32:]) != 0 {
		return errMalformed
	}
	return nil
}

// encodeReject is the private data of a REJ: why, in words.
func encodeReject(why string) []byte {
	for len(why) > wordsMax {
		_, n := utf8.DecodeLastRuneInString(why)
		why = why[:len(why)-n]
	}
	b := make([]byte, headLen, rejectMax)
	head(b, uint8(len(why)), 0)
	return append(b, why...)
}

// decodeReject reads the words of a REJ, or returns "" if it has none that can be
// shown. A server of another version says why in the same place.
func decodeReject(b []byte) string {
	if len(b) < headLen || binary.BigEndian.Uint32(b) != magic {
		return ""
	}
	n := int(b[5])
	if n > len(b)-headLen {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == utf8.RuneError || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, string(b[headLen:headLen+n]))
}

// kind is the kind of a message on a queue pair.
type kind uint8

// The messages. They are SENDs with an immediate; SENDs of a test have none.
const (
	msgGo     kind = 1 // to the server: post count messages of size, 0 for as many as it can until msgStop
	msgStop   kind = 2 // to the server: post no more
	msgAlive  kind = 3 // to the server: the client is there
	msgReport kind = 4 // to the client: the last was completed; count, elapsed and peak are what it measured
)

// message is what the ends tell each other while connected.
type message struct {
	kind    kind
	seq     uint32 // of the size that is measured: a report has that of its msgGo
	size    uint32 // bytes
	count   uint64
	elapsed uint64 // ns
	peak    uint64 // bytes per second
}

// encode writes messageLen bytes to b.
func (m *message) encode(b []byte) {
	head(b, uint8(m.kind), 0)
	binary.BigEndian.PutUint32(b[8:], m.seq)
	binary.BigEndian.PutUint32(b[12:], m.size)
	binary.BigEndian.PutUint64(b[16:], m.count)
	binary.BigEndian.PutUint64(b[24:], m.elapsed)
	binary.BigEndian.PutUint64(b[32:], m.peak)
}

func (m *message) decode(b []byte) error {
	if err := checkHead(b, messageLen); err != nil {
		return err
	}
	*m = message{
		kind: kind(b[5]), seq: binary.BigEndian.Uint32(b[8:]), size: binary.BigEndian.Uint32(b[12:]),
		count: binary.BigEndian.Uint64(b[16:]), elapsed: binary.BigEndian.Uint64(b[24:]), peak: binary.BigEndian.Uint64(b[32:]),
	}
	if m.kind < msgGo || m.kind > msgReport || b[6]|b[7] != 0 {
		return errMalformed
	}
	return nil
}
