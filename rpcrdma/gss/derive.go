package gss

import (
	"crypto/aes"
	"crypto/hmac"
	"encoding/binary"
)

// The purposes of derived keys: the last byte of the constant from which a key is derived (RFC 3961
// section 5.3).
const (
	kindKc = 0x99 // checksums
	kindKe = 0xaa // encryption
	kindKi = 0x55 // checksums of encrypted data
)

// derive derives a key from the key of a context (RFC 3961 section 5.1, RFC 8009 section 3).
//
//	AES-SHA1    AES of the constant, folded to a block; AES of that; as many bytes as needed
//	AES-SHA2    HMAC of: 1 | constant | 0 | length in bits
func derive(key Key, p profile, usage uint32, kind byte) ([]byte, error) {
	constant := append(binary.BigEndian.AppendUint32(nil, usage), kind)
	if p.overCipher {
		size := p.mac
		if kind == kindKe {
			size = p.key
		}
		m := hmac.New(p.hash, key.Value)
		b := binary.BigEndian.AppendUint32(nil, 1)
		b = append(append(b, constant...), 0)
		m.Write(binary.BigEndian.AppendUint32(b, uint32(size)*8))
		return m.Sum(nil)[:size], nil
	}
	block, err := aes.NewCipher(key.Value)
	if err != nil {
		return nil, err
	}
	out, last := make([]byte, 0, p.key+aes.BlockSize), fold(constant, aes.BlockSize)
	for len(out) < p.key {
		block.Encrypt(last, last)
		out = append(out, last...)
	}
	return out[:p.key], nil
}

// fold stretches b to n bytes (n-fold, RFC 3961 section 5.1). It joins copies of b, each rotated
// right by 13 bits more than the one before, until the length is a multiple of n. Then it adds the
// pieces of n bytes in ones' complement.
func fold(b []byte, n int) []byte {
	bits := len(b) * 8
	total := len(b)
	for total%n != 0 {
		total += len(b)
	}
	joined := make([]byte, total)
	for i := range total * 8 {
		from := ((i-13*(i/bits))%bits + bits) % bits
		if b[from/8]&(0x80>>(from%8)) != 0 {
			joined[i/8] |= 0x80 >> (i % 8)
		}
	}
	out := make([]byte, n)
	for at := 0; at < total; at += n {
		carry := 0
		for i := n - 1; i >= 0; i-- {
			carry += int(out[i]) + int(joined[at+i])
			out[i] = byte(carry)
			carry >>= 8
		}
		for i := n - 1; carry > 0; i = (i + n - 1) % n { // around the end
			carry += int(out[i])
			out[i] = byte(carry)
			carry >>= 8
		}
	}
	return out
}
