package rpcrdma

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// An RPC-over-RDMA version 1 message begins with a transport header (RFC 8166 section 4.1). All
// fields are XDR: big-endian, in units of 4 bytes. The fixed part:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                XID (that of the RPC message)                  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                          Version = 1                          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|    Credits (call: requested; reply: granted, never 0)         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	| Procedure (0 MSG, 1 NOMSG, 2 MSGP, 3 DONE, 4 ERROR)           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// MSG and NOMSG continue with three lists (section 4.3). A list is a chain of items, each behind a
// word 1, and ends with a word 0:
//
//	Read list:    { 1, position, segment }...  0    entries of one position form a chunk
//	Write list:   { 1, n, n segments }...      0    a chunk for each bulk result, in order
//	Reply chunk:  0, or 1, n, n segments            for the whole reply message
//
// A segment is memory of the client:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                        Handle (R_Key)                         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                        Length in bytes                        |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                       Offset (63..32)                         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                       Offset (31..0)                          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// After MSG the RPC message follows, without the bytes that chunks carry. ERROR continues with the
// code, and with the lowest and highest version if the code is ERR_VERS (section 4.5).

// Version is the version of the protocol (RFC 8166 section 4.2.2).
const Version = 1

// MessageType is the type of an RPC-over-RDMA message (rdma_proc).
type MessageType uint32

// Message types (RFC 8166 section 4.2.4).
const (
	TypeMsg   MessageType = 0 // an RPC message follows
	TypeNoMsg MessageType = 1 // the RPC message is in a chunk
	TypeMsgP  MessageType = 2 // obsolete, never sent
	TypeDone  MessageType = 3 // obsolete, never sent
	TypeError MessageType = 4
)

var typeNames = [...]string{"RDMA_MSG", "RDMA_NOMSG", "RDMA_MSGP", "RDMA_DONE", "RDMA_ERROR"}

func (t MessageType) String() string {
	if uint64(t) < uint64(len(typeNames)) {
		return typeNames[t]
	}
	return fmt.Sprintf("message type %d", uint32(t))
}

// ErrorCode is the reason of an RDMA_ERROR message (RFC 8166 section 4.5).
type ErrorCode uint32

// Error codes.
const (
	CodeVers  ErrorCode = 1
	CodeChunk ErrorCode = 2
)

func (c ErrorCode) String() string {
	switch c {
	case CodeVers:
		return "ERR_VERS"
	case CodeChunk:
		return "ERR_CHUNK"
	}
	return fmt.Sprintf("error code %d", uint32(c))
}

// Lengths in bytes (RFC 8166 section 4.1).
const (
	fixedLen       = 16 // xid, vers, credit, proc
	minMessage     = 28 // with three absent lists
	segmentLen     = 16
	readEntryLen   = 24 // 1, position, segment
	chunkHeadLen   = 8  // 1, count
	listEndLen     = 4
	errVersLen     = 28
	errChunkLen    = 20
	itemFollows    = 1
	nothingFollows = 0
)

// Limits of a Header. RFC 8166 sets none, and a message of 4096 bytes has room for more segments
// than any NFS client uses. A header beyond the limits is ErrTooComplex.
const (
	MaxReadSegments  = 128 // in the Read list
	MaxChunkSegments = 64  // in one Write chunk or Reply chunk
	MaxWriteChunks   = 16
	MaxSegments      = 192 // in all Write chunks and the Reply chunk together
)

// Errors of Header.Parse.
var (
	// ErrShort is a message without room for the four fixed words, or for three empty lists. It
	// cannot be answered, because its XID may be missing.
	ErrShort = errors.New("rpcrdma: message too short")
	// ErrVersion is a version other than 1: answer ERR_VERS.
	ErrVersion = errors.New("rpcrdma: unknown protocol version")
	// ErrMalformed is a header that does not decode: answer ERR_CHUNK.
	ErrMalformed = errors.New("rpcrdma: malformed header")
	// ErrTooComplex is a header that exceeds the limits: answer ERR_CHUNK.
	ErrTooComplex = errors.New("rpcrdma: more chunks or segments than are supported")
)

// Segment is a range of the peer's memory (RFC 8166 section 3.4.3). Handle is an R_Key. Offset is
// opaque: the only arithmetic allowed is to add to it.
type Segment struct {
	Handle uint32
	Length uint32
	Offset uint64
}

// ReadSegment is an entry of the Read list. Entries with the same Position
// form one chunk, in list order.
type ReadSegment struct {
	Position uint32
	Segment
}

// Chunk is a list of segments for one data item or one message.
type Chunk []Segment

// Len is the length of the chunk in bytes: its room in a call, its content in a reply.
func (c Chunk) Len() int {
	n := 0
	for i := range c {
		n += int(c[i].Length) // at most 64 times 4 GiB
	}
	return n
}

// Header is a transport header. Parse reuses the memory of an earlier header, so in the steady
// state it does not allocate.
type Header struct {
	XID     uint32
	Version uint32
	// Credits are requested in a call and granted in a reply.
	Credits uint32
	Type    MessageType

	// TypeMsg and TypeNoMsg:
	Reads    []ReadSegment
	Writes   []Chunk
	Reply    Chunk
	HasReply bool // the Reply chunk is present, perhaps without segments

	// TypeError:
	Code      ErrorCode
	Low, High uint32 // versions, for CodeVers

	segs   []Segment // memory of Writes and Reply
	counts []int     // number of segments of each chunk in Writes
}

// Reset empties h, and retains its memory.
func (h *Header) Reset() {
	*h = Header{Reads: h.Reads[:0], Writes: h.Writes[:0], segs: h.segs[:0], counts: h.counts[:0]}
}

// cursor reads words. bad is sticky: a read beyond the end sets it, or an illegal value. After that
// all words are 0, so every list ends.
type cursor struct {
	b   []byte
	bad bool
}

// word reads a word, or returns 0 at the end.
func (c *cursor) word() uint32 {
	if len(c.b) < 4 {
		c.b, c.bad = nil, true
		return 0
	}
	v := binary.BigEndian.Uint32(c.b)
	c.b = c.b[4:]
	return v
}

// follows reads the word that says whether an optional item follows. Only 0 and 1 are legal (RFC
// 4506 section 4.19).
func (c *cursor) follows() bool {
	w := c.word()
	if w > itemFollows {
		c.b, c.bad = nil, true
	}
	return w == itemFollows
}

func (c *cursor) segment() Segment {
	s := Segment{Handle: c.word(), Length: c.word()}
	s.Offset = uint64(c.word())<<32 | uint64(c.word())
	return s
}

// chunk appends the segments of a Write or Reply chunk and returns their number. It compares the
// count, which the peer chose, with the bytes that are there before it appends.
func (h *Header) chunk(c *cursor) (int, error) {
	n := c.word()
	if c.bad || uint64(n)*segmentLen > uint64(len(c.b)) {
		return 0, ErrMalformed
	}
	if n > MaxChunkSegments || len(h.segs)+int(n) > MaxSegments {
		return 0, ErrTooComplex
	}
	for range n {
		h.segs = append(h.segs, c.segment())
	}
	return int(n), nil
}

// Parse reads the header at the start of msg and returns what follows it. After an error other than
// ErrShort the four fixed words are valid, so the error can be answered. Nothing in h aliases msg:
// the reply is built in the buffer of the call.
func (h *Header) Parse(msg []byte) (rest []byte, err error) {
	h.Reset()
	if len(msg) < fixedLen {
		return nil, ErrShort
	}
	c := cursor{b: msg}
	h.XID, h.Version, h.Credits, h.Type = c.word(), c.word(), c.word(), MessageType(c.word())
	if h.Version != Version {
		return nil, ErrVersion
	}
	switch h.Type {
	case TypeMsg, TypeNoMsg:
		if len(msg) < minMessage {
			return nil, ErrShort
		}
		err = h.lists(&c)
	case TypeError:
		err = h.fault(&c)
	case TypeDone, TypeMsgP:
	default:
		err = ErrMalformed
	}
	if err != nil {
		return nil, err
	}
	return c.b, nil
}

// lists reads the Read list, the Write list and the Reply chunk.
func (h *Header) lists(c *cursor) error {
	for c.follows() {
		if len(h.Reads) == MaxReadSegments {
			return ErrTooComplex
		}
		h.Reads = append(h.Reads, ReadSegment{Position: c.word(), Segment: c.segment()})
	}
	for c.follows() {
		if len(h.counts) == MaxWriteChunks {
			return ErrTooComplex
		}
		n, err := h.chunk(c)
		if err != nil {
			return err
		}
		h.counts = append(h.counts, n)
	}
	reply := 0
	if h.HasReply = c.follows(); h.HasReply {
		var err error
		if reply, err = h.chunk(c); err != nil {
			return err
		}
	}
	if c.bad {
		return ErrMalformed
	}
	at := 0
	for _, n := range h.counts { // all appends to segs are done, so its memory does not move
		h.Writes = append(h.Writes, Chunk(h.segs[at:at+n:at+n]))
		at += n
	}
	h.Reply = Chunk(h.segs[at : at+reply : at+reply])
	return nil
}

// fault reads the rest of an RDMA_ERROR message (RFC 8166 section 4.5).
func (h *Header) fault(c *cursor) error {
	h.Code = ErrorCode(c.word())
	switch h.Code {
	case CodeVers:
		h.Low, h.High = c.word(), c.word()
	case CodeChunk:
	default:
		return ErrMalformed
	}
	if c.bad {
		return ErrMalformed
	}
	return nil
}

// Len is the encoded length of the header.
func (h *Header) Len() int {
	switch h.Type {
	case TypeMsg, TypeNoMsg:
	case TypeError:
		if h.Code == CodeVers {
			return errVersLen
		}
		return errChunkLen
	default:
		return fixedLen
	}
	n := minMessage + readEntryLen*len(h.Reads)
	for _, w := range h.Writes {
		n += chunkHeadLen + segmentLen*len(w)
	}
	if h.HasReply {
		n += chunkHeadLen - listEndLen + segmentLen*len(h.Reply)
	}
	return n
}

// Append appends the encoded header to b.
func (h *Header) Append(b []byte) []byte {
	b = appendWords(b, h.XID, h.Version, h.Credits, uint32(h.Type))
	switch h.Type {
	case TypeMsg, TypeNoMsg:
	case TypeError:
		b = appendWords(b, uint32(h.Code))
		if h.Code == CodeVers {
			b = appendWords(b, h.Low, h.High)
		}
		return b
	default:
		return b
	}
	for i := range h.Reads {
		r := &h.Reads[i]
		b = appendSegment(appendWords(b, itemFollows, r.Position), &r.Segment)
	}
	b = appendWords(b, nothingFollows)
	for _, w := range h.Writes {
		b = appendChunk(b, w)
	}
	b = appendWords(b, nothingFollows)
	if !h.HasReply {
		return appendWords(b, nothingFollows)
	}
	return appendChunk(b, h.Reply)
}

// appendChunk appends an item of the Write list, or the Reply chunk.
func appendChunk(b []byte, c Chunk) []byte {
	b = appendWords(b, itemFollows, uint32(len(c)))
	for i := range c {
		b = appendSegment(b, &c[i])
	}
	return b
}

func appendSegment(b []byte, s *Segment) []byte {
	b = appendWords(b, s.Handle, s.Length)
	return binary.BigEndian.AppendUint64(b, s.Offset)
}

func appendWords(b []byte, words ...uint32) []byte {
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}
