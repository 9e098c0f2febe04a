package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Version is the version of the messages below. Both sides refuse all others.
const Version = 1

// magic begins every message, so that a client of another program is recognized.
const magic = 0x72705246 // "rpRF"

// A message begins with a head of 8 bytes. Numbers are big-endian.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            Magic                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Version     |       a       |       b       |       0       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// What follows it:
//
//	request  a = operation, b = flags; run 8, size 4, depth 2, QPs 2, address 8, R_Key 4, 0 8
//	reply    size 4, address 8, R_Key 4, idle time in ms 4, duration in ms 4, 0 4
//	message  a = kind; sequence 4, size 4, count 8, elapsed time in ns 8, peak 8
//	reject   a = length of the text; the text
const (
	headLen    = 8
	requestLen = 44
	replyLen   = 36
	messageLen = 40

	// rejectMax is the length of the private data of a REJ, wordsMax that of the text in it.
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

// head writes the head of a message.
func head(b []byte, a, c uint8) {
	binary.BigEndian.PutUint32(b, magic)
	b[4], b[5], b[6], b[7] = Version, a, c, 0
}

// checkHead checks the head of a message, and that zeros follow its length bytes.
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

// coder moves the numbers of a message between a struct and bytes, in the order of the calls of
// num.
type coder struct {
	b   []byte
	put bool // into b; otherwise out of it
}

// num moves a number of n bytes.
func num[T ~uint8 | ~uint16 | ~uint32 | ~uint64](c *coder, n int, v *T) {
	w := uint64(*v)
	if !c.put {
		w = 0
	}
	for i := range n {
		if c.put {
			c.b[i] = byte(w >> (8 * (n - 1 - i)))
		} else {
			w = w<<8 | uint64(c.b[i])
		}
	}
	*v, c.b = T(w), c.b[n:]
}

// remote is memory of the peer.
type remote struct {
	addr uint64
	rkey uint32
}

func (r *remote) fields(c *coder) {
	num(c, 8, &r.addr)
	num(c, 4, &r.rkey)
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

func (r *request) fields(c *coder) {
	num(c, 8, &r.run)
	num(c, 4, &r.size)
	num(c, 2, &r.depth)
	num(c, 2, &r.qps)
	r.mem.fields(c)
}

func (r *request) encode() []byte {
	b := make([]byte, requestLen)
	head(b, uint8(r.op), r.test)
	r.fields(&coder{b[headLen:], true})
	return b
}

// decode reads a request. Whether sizes and numbers are granted is decided by the server's limits.
func (r *request) decode(b []byte) error {
	if err := checkHead(b, requestLen); err != nil {
		return err
	}
	*r = request{op: Op(b[5]), test: b[6]}
	r.fields(&coder{b: b[headLen:]})
	both := r.test&flagLatency != 0 && r.test&flagBidirectional != 0
	switch {
	case !r.op.known(), r.test&^(flagLatency|flagBidirectional) != 0, both:
		return errMalformed
	case b[7] != 0, binary.BigEndian.Uint64(b[36:]) != 0:
		return errMalformed
	case r.size == 0, r.depth == 0, r.qps == 0, r.op.Atomic() && r.size != AtomicSize:
		return errMalformed
	}
	return nil
}

// reply is the private data of a REP: the memory of the server, and how long a measurement may
// take.
type reply struct {
	size     uint32
	mem      remote
	idle     uint32 // ms without a message after which the server ends the connection
	duration uint32 // ms after which it ends the connection in any case
}

func (r *reply) fields(c *coder) {
	num(c, 4, &r.size)
	r.mem.fields(c)
	num(c, 4, &r.idle)
	num(c, 4, &r.duration)
}

func (r *reply) encode() []byte {
	b := make([]byte, replyLen)
	head(b, 0, 0)
	r.fields(&coder{b[headLen:], true})
	return b
}

func (r *reply) decode(b []byte) error {
	if err := checkHead(b, replyLen); err != nil {
		return err
	}
	r.fields(&coder{b: b[headLen:]})
	if b[5]|b[6]|b[7] != 0 || r.size == 0 || r.idle == 0 || r.duration == 0 || binary.BigEndian.Uint32(b[32:]) != 0 {
		return errMalformed
	}
	return nil
}

// encodeReject makes the private data of a REJ: the reason as text.
func encodeReject(why string) []byte {
	for len(why) > wordsMax {
		_, n := utf8.DecodeLastRuneInString(why)
		why = why[:len(why)-n]
	}
	b := make([]byte, headLen, rejectMax)
	head(b, uint8(len(why)), 0)
	return append(b, why...)
}

// decodeReject returns the text of a REJ, or "" if it has none. Control characters are replaced,
// because the text is shown in a terminal. In other versions the text is in the same place.
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
	msgGo     kind = 1 // to the server: post count messages of size, or with 0 until msgStop
	msgStop   kind = 2 // to the server: post no more messages
	msgAlive  kind = 3 // to the server: resets its idle timeout
	msgReport kind = 4 // to the client: all messages have completed, with the server's measurement
)

// message is a control message of an established connection.
type message struct {
	kind    kind
	seq     uint32 // of the test of a size; a report has that of its msgGo
	size    uint32 // bytes
	count   uint64
	elapsed uint64 // ns
	peak    uint64 // bytes per second
}

func (m *message) fields(c *coder) {
	num(c, 4, &m.seq)
	num(c, 4, &m.size)
	num(c, 8, &m.count)
	num(c, 8, &m.elapsed)
	num(c, 8, &m.peak)
}

// encode writes messageLen bytes to b.
func (m *message) encode(b []byte) {
	head(b, uint8(m.kind), 0)
	m.fields(&coder{b[headLen:], true})
}

func (m *message) decode(b []byte) error {
	if err := checkHead(b, messageLen); err != nil {
		return err
	}
	m.kind = kind(b[5])
	m.fields(&coder{b: b[headLen:]})
	if m.kind < msgGo || m.kind > msgReport || b[6]|b[7] != 0 {
		return errMalformed
	}
	return nil
}
