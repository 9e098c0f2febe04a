package gss

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Arguments and results on the wire (RFC 2203 sections 5.3.2 and 5.3.3.2). body is the XDR of the
// procedure:
//
//	None         body
//	Integrity    opaque( sequence number | body ), opaque( MIC token of the first opaque )
//	Privacy      opaque( Wrap token of: sequence number | body )

// ErrSequence is the error for a body whose sequence number differs from that of its header.
var ErrSequence = errors.New("gss: arguments or results have another sequence number than their header")

// Overhead is the most bytes that Protect adds to a reply, or a client to a call: a verifier, and
// the bytes around the body.
const Overhead = (8 + tokenHeader + 24) + (4 + 4 + TokenMax + 4 + 4)

// Unprotect removes the protection from the arguments or results in d, and returns a decoder of the
// procedure's XDR. It decrypts in place.
func (c *Context) Unprotect(s Service, seq uint32, d xdr.Decoder) (xdr.Decoder, error) {
	var body []byte
	switch s {
	case None:
		return d, nil
	case Integrity:
		body = d.Opaque(d.Remaining())
		token := d.Opaque(tokenHeader + 24)
		if d.Err() != nil {
			return d, d.Err()
		}
		if err := c.VerifyMIC(token, body); err != nil {
			return d, err
		}
	case Privacy:
		token := d.Opaque(d.Remaining())
		if d.Err() != nil {
			return d, d.Err()
		}
		var err error
		if body, err = c.Open(token); err != nil {
			return d, err
		}
	default:
		return d, ErrToken
	}
	if len(body) < 4 {
		return d, xdr.ErrShort
	}
	if binary.BigEndian.Uint32(body) != seq {
		return d, ErrSequence
	}
	return xdr.NewDecoder(body[4:]), nil
}

// Protect protects the bytes of the encoder from offset at on: the arguments of a call or the
// results of a reply. alloc returns n bytes of memory from which a transport can send encrypted
// data, or nil.
func (c *Context) Protect(s Service, seq uint32, e *xdr.Encoder, at int, alloc func(n int) []byte) {
	switch s {
	case Integrity:
		c.protectIntegrity(seq, e, at)
	case Privacy:
		c.protectPrivacy(seq, e, at, alloc)
	}
}

func (c *Context) protectIntegrity(seq uint32, e *xdr.Encoder, at int) {
	body := e.Len() - at
	insert(e, at, 8)
	binary.BigEndian.PutUint32(e.B[at:], uint32(4+body))
	binary.BigEndian.PutUint32(e.B[at+4:], seq)
	var few [16][]byte
	var token [tokenHeader + 24]byte
	e.Opaque(c.AppendMIC(token[:0], appendParts(few[:0], e, at+4)...))
}

func (c *Context) protectPrivacy(seq uint32, e *xdr.Encoder, at int, alloc func(n int) []byte) {
	insert(e, at, 4)
	binary.BigEndian.PutUint32(e.B[at:], seq)
	n := e.Len() - at
	var b []byte
	if alloc != nil {
		b = alloc(c.SealRoom(n))
	}
	var few [16][]byte
	b = c.Seal(b[:0], appendParts(few[:0], e, at)...)
	e.Truncate(at)
	e.Bulk(b)
}

// insert makes room for n bytes at offset at, and moves the references behind it.
func insert(e *xdr.Encoder, at, n int) {
	size := len(e.B)
	e.B = slices.Grow(e.B, n)[:size+n]
	copy(e.B[at+n:], e.B[at:size])
	for i := range e.Refs {
		if e.Refs[i].At > at {
			e.Refs[i].At += n
		}
	}
}

var zeros [4]byte

// appendParts appends the pieces of an encoded message from offset at on. There must be no
// reference before at.
func appendParts(parts [][]byte, e *xdr.Encoder, at int) [][]byte {
	for i := range e.Refs {
		r := &e.Refs[i]
		parts = append(parts, e.B[at:r.At], r.Data, zeros[:xdr.Pad(len(r.Data))])
		at = r.At
	}
	return append(parts, e.B[at:])
}

// ReplyVerifier replaces the empty verifier of an accepted reply by a MIC token for the sequence
// number of the call, or for the window in a reply to Init (RFC 2203 sections 5.2.3.1 and 5.3.3.2).
// The verifier is at offset at of e. It returns by how much the message has grown.
func (c *Context) ReplyVerifier(e *xdr.Encoder, at int, number uint32) int {
	size := c.MICLen()
	n := xdr.Padded(size)
	insert(e, at+8, n)
	message := e.B[at : at+4]
	binary.BigEndian.PutUint32(message, number)
	c.AppendMIC(e.B[at+8:at+8], message)
	clear(e.B[at+8+size : at+8+n])
	binary.BigEndian.PutUint32(message, Flavor)
	binary.BigEndian.PutUint32(e.B[at+4:], uint32(size))
	return n
}

// VerifyReply checks the verifier of a reply.
func (c *Context) VerifyReply(token []byte, number uint32) error {
	s := c.check.begin()
	binary.BigEndian.PutUint32(s.word[:], number)
	err := c.verifyMIC(token, s, [][]byte{s.word[:]})
	c.check.end(s)
	return err
}
