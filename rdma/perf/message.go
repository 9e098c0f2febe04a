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
// The body follows the head (lengths in bytes in parentheses):
//
//	request   REQ    a = operation, b = flags
//	                 8 run (8)        20 depth (2)        24 address (8)    36 zero (8)
//	                16 size (4)       22 queue pairs (2)  32 R_Key (4)
//	reply     REP    8 size (4)       20 R_Key (4)      28 duration in ms (4)
//	                12 address (8)    24 idle ms (4)    32 zero (4)
//	message   SEND   a = kind
//	                 8 sequence (4)   16 count (8)      32 peak in bytes/s (8)
//	                12 size (4)       24 elapsed ns (8)
//	reject    REJ    a = length of the text
//	                 8 text
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

// encode appends a message to b: the head, and the fields of body in their order.
func encode(b []byte, a, c uint8, body any) []byte {
	b = append(binary.BigEndian.AppendUint32(b, magic), Version, a, c, 0)
	b, _ = binary.Append(b, binary.BigEndian, body) // fails only for a body without a fixed size
	return b
}

// decode checks the head of a message and reads the fields of body.
func decode(b []byte, length int, body any) error {
	if err := checkHead(b, length); err != nil {
		return err
	}
	_, err := binary.Decode(b[headLen:], binary.BigEndian, body)
	return err
}

// remote is memory of the peer.
type remote struct {
	Addr uint64
	RKey uint32
}

// request is the private data of a REQ: what the client wants of this queue pair.
type request struct {
	op   Op
	test uint8 // flags
	requestBody
}

type requestBody struct {
	Run   uint64 // the same for all queue pairs of a run
	Size  uint32
	Depth uint16
	QPs   uint16
	Mem   remote // of the client, for the messages of the server
	Zero  uint64
}

func (r *request) plan() plan {
	return plan{
		op: r.op, latency: r.test&flagLatency != 0, bidirectional: r.test&flagBidirectional != 0,
		size: int(r.Size), depth: int(r.Depth), qps: int(r.QPs),
	}
}

func (r *request) encode() []byte { return encode(nil, uint8(r.op), r.test, &r.requestBody) }

// decode reads a request. Whether sizes and numbers are granted is decided by the server's limits.
func (r *request) decode(b []byte) error {
	if err := decode(b, requestLen, &r.requestBody); err != nil {
		return err
	}
	r.op, r.test = Op(b[5]), b[6]
	both := r.test&flagLatency != 0 && r.test&flagBidirectional != 0
	switch {
	case !r.op.known(), r.test&^(flagLatency|flagBidirectional) != 0, both, b[7] != 0, r.Zero != 0:
		return errMalformed
	case r.Size == 0, r.Depth == 0, r.QPs == 0, r.op.Atomic() && r.Size != AtomicSize:
		return errMalformed
	}
	return nil
}

// reply is the private data of a REP: the memory of the server, and how long a measurement may
// take.
type reply struct {
	Size     uint32
	Mem      remote
	Idle     uint32 // ms without a message after which the server ends the connection
	Duration uint32 // ms after which it ends the connection in any case
	Zero     uint32
}

func (r *reply) encode() []byte { return encode(nil, 0, 0, r) }

func (r *reply) decode(b []byte) error {
	if err := decode(b, replyLen, r); err != nil {
		return err
	}
	if b[5]|b[6]|b[7] != 0 || r.Size == 0 || r.Idle == 0 || r.Duration == 0 || r.Zero != 0 {
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
	return append(encode(nil, uint8(len(why)), 0, [0]byte{}), why...)
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
	kind kind
	messageBody
}

type messageBody struct {
	Seq     uint32 // of the test of a size; a report has that of its msgGo
	Size    uint32 // bytes
	Count   uint64
	Elapsed uint64 // ns
	Peak    uint64 // bytes per second
}

// encode writes messageLen bytes to b.
func (m *message) encode(b []byte) { encode(b[:0], uint8(m.kind), 0, &m.messageBody) }

func (m *message) decode(b []byte) error {
	if err := decode(b, messageLen, &m.messageBody); err != nil {
		return err
	}
	m.kind = kind(b[5])
	if m.kind < msgGo || m.kind > msgReport || b[6]|b[7] != 0 {
		return errMalformed
	}
	return nil
}
