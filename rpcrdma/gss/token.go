package gss

import (
	"crypto/aes"
	"crypto/hmac"
	"encoding/binary"
	"slices"
)

// A MIC token and a sealed Wrap token (RFC 4121 sections 4.2.6.1 and 4.2.6.2):
//
//	MIC      04 04 | flags | ff ff ff ff ff      | sequence number, 8 | checksum
//	Wrap     05 04 | flags | ff | EC, 2 | RRC, 2 | sequence number, 8 | encrypted
//
//	checksum      of the message and the header
//	encrypted     confounder of 16 bytes | message | EC bytes of filler | header with RRC 0,
//	              then a checksum
//
// The encrypted part may be rotated right by RRC bytes. The sequence numbers of tokens are not
// checked. RPCSEC_GSS allows gaps and disorder in them, because it has sequence numbers of its own
// (RFC 2203 section 5.3.3.1).
const (
	tokenHeader = 16
	confounder  = aes.BlockSize

	idMIC  = 0x0404
	idWrap = 0x0504

	flagAcceptor = 1 // sent by the acceptor
	flagSealed   = 2
	flagSubkey   = 4 // protected by the acceptor's subkey

	fillerMIC = 0xffffffff
)

// TokenMax is the most bytes by which a token of any encryption type exceeds its message.
const TokenMax = tokenHeader + confounder + tokenHeader + 24

// MICLen is the length of a MIC token in bytes.
func (c *Context) MICLen() int { return tokenHeader + c.sign.size }

// AppendMIC appends a MIC token for the parts of a message to dst.
func (c *Context) AppendMIC(dst []byte, parts ...[]byte) []byte {
	s := c.sign.begin()
	dst = c.appendMIC(dst, s, parts)
	c.sign.end(s)
	return dst
}

func (c *Context) appendMIC(dst []byte, s *macState, parts [][]byte) []byte {
	putHeader(s.hdr[:], idMIC, c.flags, fillerMIC, c.seq.Add(1)-1)
	sum := c.sign.mic(s, parts)
	return append(append(dst, s.hdr[:]...), sum...)
}

// VerifyMIC checks the MIC token of a message in parts.
func (c *Context) VerifyMIC(token []byte, parts ...[]byte) error {
	s := c.check.begin()
	err := c.verifyMIC(token, s, parts)
	c.check.end(s)
	return err
}

func (c *Context) verifyMIC(token []byte, s *macState, parts [][]byte) error {
	if len(token) != tokenHeader+c.check.size || binary.BigEndian.Uint16(token) != idMIC ||
		token[3] != 0xff || binary.BigEndian.Uint32(token[4:]) != fillerMIC || token[2]&flagSealed != 0 {
		return ErrToken
	}
	if err := c.fromPeer(token[2]); err != nil {
		return err
	}
	copy(s.hdr[:], token)
	if !hmac.Equal(c.check.mic(s, parts), token[tokenHeader:]) {
		return ErrMIC
	}
	return nil
}

// fromPeer checks that the flags of a token are those of the other side.
func (c *Context) fromPeer(flags byte) error {
	switch {
	case (flags^c.flags)&flagAcceptor == 0:
		return ErrNotMine
	case (flags^c.flags)&flagSubkey != 0:
		return ErrToken
	}
	return nil
}

// SealedLen is the length of the Wrap token of a message of n bytes. Seal needs up to SealRoom
// bytes.
func (c *Context) SealedLen(n int) int {
	return tokenHeader + confounder + n + tokenHeader + c.seal.ki.size
}

// SealRoom is the capacity that Seal needs for a message of n bytes.
func (c *Context) SealRoom(n int) int { return c.SealedLen(n) + aes.BlockSize }

// Seal appends a sealed Wrap token for a message in parts to dst. It allocates only if dst lacks
// the room.
func (c *Context) Seal(dst []byte, parts ...[]byte) []byte {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	dst = slices.Grow(dst, c.SealRoom(n))
	k := c.seal
	s := k.ki.begin()
	s.h.Reset()
	putHeader(s.hdr[:], idWrap, c.flags|flagSealed, 0, c.seq.Add(1)-1)
	dst = append(dst, s.hdr[:]...)
	body := len(dst)
	dst = dst[:body+confounder]
	confound(dst[body:])
	for _, p := range parts {
		dst = append(dst, p...)
	}
	dst = append(dst, s.hdr[:]...)
	size := len(dst) - body
	if !k.overCipher {
		s.h.Write(dst[body:])
	}
	k.encrypt(dst[body:body+size+aes.BlockSize], size)
	if k.overCipher {
		s.h.Write(zeroIV[:])
		s.h.Write(dst[body:])
	}
	dst = append(dst, k.ki.total(s)...)
	k.ki.end(s)
	return dst
}

// Open decrypts a sealed Wrap token in place, and returns the message, which aliases token. The
// contents of token are lost, even after an error. Open refuses a Wrap token that is not sealed.
func (c *Context) Open(token []byte) ([]byte, error) {
	k := c.open
	size := len(token) - tokenHeader - k.ki.size
	if size < confounder+tokenHeader || binary.BigEndian.Uint16(token) != idWrap || token[3] != 0xff ||
		token[2]&flagSealed == 0 {
		return nil, ErrToken
	}
	if err := c.fromPeer(token[2]); err != nil {
		return nil, err
	}
	filler, rotated := int(binary.BigEndian.Uint16(token[4:])), int(binary.BigEndian.Uint16(token[6:]))
	body := token[tokenHeader:]
	if rotated %= len(body); rotated > 0 {
		rotateLeft(body, rotated)
	}
	sum := body[size:]
	body = body[:size]
	s := k.ki.begin()
	defer k.ki.end(s)
	s.h.Reset()
	if k.overCipher {
		s.h.Write(zeroIV[:])
		s.h.Write(body)
		if !hmac.Equal(k.ki.total(s), sum) {
			return nil, ErrMIC
		}
	}
	k.decrypt(body, &s.blocks)
	if !k.overCipher {
		s.h.Write(body)
		if !hmac.Equal(k.ki.total(s), sum) {
			return nil, ErrMIC
		}
	}
	// The encrypted copy of the header has RRC 0, and is otherwise equal.
	copy(s.hdr[:], token)
	s.hdr[6], s.hdr[7] = 0, 0
	inner := body[size-tokenHeader:]
	if !hmac.Equal(inner, s.hdr[:]) || filler > size-confounder-tokenHeader {
		return nil, ErrToken
	}
	return body[confounder : size-tokenHeader-filler], nil
}

// rotateLeft rotates b left by n bytes, in place.
func rotateLeft(b []byte, n int) {
	slices.Reverse(b[:n])
	slices.Reverse(b[n:])
	slices.Reverse(b)
}
