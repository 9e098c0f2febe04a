package gss

import (
	"crypto/aes"
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/cpu"
)

var hasAES = cpu.X86.HasAES && cpu.X86.HasAVX

// roundKeys are the round keys of AES, of each direction in the order of its use (FIPS 197). An
// AES-128 key has 10 rounds, an AES-256 key 14, and one key more.
type roundKeys struct {
	rounds   int
	enc, dec [15][aes.BlockSize]byte
}

// newRoundKeys returns nil if the processor lacks the instructions. key has 16 or 32 bytes.
func newRoundKeys(key []byte) *roundKeys {
	if !hasAES {
		return nil
	}
	words := len(key) / 4
	k := &roundKeys{rounds: words + 6}
	var w [4 * 15]uint32
	for i := range words {
		w[i] = binary.LittleEndian.Uint32(key[4*i:])
	}
	constant := uint32(1)
	for i := words; i < 4*(k.rounds+1); i++ {
		t := w[i-1]
		switch {
		case i%words == 0:
			t = subWord(bits.RotateLeft32(t, -8)) ^ constant
			constant = constant<<1 ^ constant>>7*0x11b // in the field of AES
		case words > 6 && i%words == 4:
			t = subWord(t)
		}
		w[i] = w[i-words] ^ t
	}
	for i := range k.rounds + 1 {
		for j := range 4 {
			binary.LittleEndian.PutUint32(k.enc[i][4*j:], w[4*i+j])
		}
	}
	for i := range k.rounds + 1 {
		k.dec[i] = k.enc[k.rounds-i]
		if i > 0 && i < k.rounds {
			inverseMix(&k.dec[i])
		}
	}
	return k
}

// encrypt encrypts b in place, by CBC with an initialization vector of zeros. b has whole blocks.
func (k *roundKeys) encrypt(b []byte) {
	if len(b) > 0 {
		encryptCBC(&k.enc, k.rounds, &b[0], len(b))
	}
}

// decrypt is the reverse of encrypt.
func (k *roundKeys) decrypt(b []byte) {
	if len(b) > 0 {
		decryptCBC(&k.dec, k.rounds, &b[0], len(b))
	}
}

// subWord applies the S-box of AES to each byte of w.
//
//go:noescape
func subWord(w uint32) uint32

// inverseMix makes a key for decryption of one for encryption (InvMixColumns).
//
//go:noescape
func inverseMix(k *[aes.BlockSize]byte)

// encryptCBC encrypts the n bytes at b, whole blocks and at least one.
//
//go:noescape
func encryptCBC(keys *[15][aes.BlockSize]byte, rounds int, b *byte, n int)

// decryptCBC is the reverse of encryptCBC, with the keys of decryption.
//
//go:noescape
func decryptCBC(keys *[15][aes.BlockSize]byte, rounds int, b *byte, n int)
