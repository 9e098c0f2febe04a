package gss

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // of the enctypes of RFC 3962, which today's kernels have
	"encoding"
	"encoding/binary"
	"hash"
)

// short computes HMAC-SHA1 (RFC 2104) of messages of a few blocks, in two thirds of the time of
// crypto/hmac, and in less if the processor has instructions for SHA-1. A call of krb5 has four of
// them. short starts from the states of SHA-1 behind the padded key, pads the message itself, and
// reads the digest from the state. SHA-1 then sees only whole blocks.
//
//	digest          SHA-1 of: key, inner padding, 64 bytes | message
//	checksum        SHA-1 of: key, outer padding, 64 bytes | digest
//
// A state is what MarshalBinary of crypto/sha1 returns: magic, 4 | digest until now, 20 | rest.
type short struct{ inner, outer []byte }

// shortMax is the longest message of short in bytes.
const shortMax = shortBlocks*sha1.BlockSize - 9

const (
	shortBlocks = 3
	stateAt     = 4 // where the digest is in a state
)

// shortState is the memory of a short checksum in progress.
type shortState struct {
	h     sha1State
	block [shortBlocks * sha1.BlockSize]byte
	state [128]byte
	sum   [sha1.Size]byte
	slow  bool // hashBlocks is not used
}

type sha1State interface {
	hash.Hash
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// newShort returns nil if the states of crypto/sha1 are not as described.
func newShort(key []byte) *short {
	var s shortState
	var ok bool
	if s.h, ok = sha1.New().(sha1State); !ok || len(key) > sha1.BlockSize { //nolint:gosec // see the import
		return nil
	}
	after := func(pad byte) []byte {
		block := bytes.Repeat([]byte{pad}, sha1.BlockSize)
		for i, b := range key {
			block[i] ^= b
		}
		s.h.Reset()
		s.h.Write(block)
		state, _ := s.h.AppendBinary(nil) // never fails
		return state
	}
	m := &short{inner: after(0x36), outer: after(0x5c)}
	if len(m.inner) < stateAt+sha1.Size || len(m.inner) > len(s.state) {
		return nil
	}
	example := []byte("example")
	want := hmac.New(sha1.New, key)
	want.Write(example)
	if !bytes.Equal(m.sum(&s, [][]byte{example}, nil), want.Sum(nil)) {
		return nil
	}
	return m
}

// sum returns the checksum of a message in parts and of hdr, together at most shortMax bytes. The
// checksum is valid until s is used again.
func (m *short) sum(s *shortState, parts [][]byte, hdr []byte) []byte {
	n := 0
	for _, p := range parts {
		n += copy(s.block[n:], p)
	}
	n += copy(s.block[n:], hdr)
	n = copy(s.block[:], s.digest(m.inner, n))
	return s.digest(m.outer, n)
}

// digest pads the message of n bytes in s.block, and returns the digest of a state and the message.
func (s *shortState) digest(state []byte, n int) []byte {
	const bits = 8
	end := (n + 9 + sha1.BlockSize - 1) &^ (sha1.BlockSize - 1)
	s.block[n] = 0x80
	clear(s.block[n+1 : end-8])
	binary.BigEndian.PutUint64(s.block[end-8:], uint64(sha1.BlockSize+n)*bits)
	if hasSHA && !s.slow {
		s.sum = [sha1.Size]byte(state[stateAt:])
		hashBlocks(&s.sum, &s.block[0], end)
		return s.sum[:]
	}
	_ = s.h.UnmarshalBinary(state) // it made the state itself
	s.h.Write(s.block[:end])
	b, _ := s.h.AppendBinary(s.state[:0])
	return b[stateAt : stateAt+sha1.Size]
}
