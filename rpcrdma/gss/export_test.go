package gss

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"testing"
)

// aesOf makes a sealer whose key is used as it is, without derivation.
func aesOf(t *testing.T, key []byte) *sealer {
	t.Helper()
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	s := &sealer{block: block, keys: newRoundKeys(key)}
	s.enc.New = func() any { return cipher.NewCBCEncrypter(block, zeroIV[:]) }
	s.dec.New = func() any { return cipher.NewCBCDecrypter(block, zeroIV[:]) }
	return s
}

// TestFold: vectors of RFC 3961 appendix A.1.
func TestFold(t *testing.T) {
	for in, want := range map[string]string{
		"012345": "be072631276b1955", "password": "78a07b6caf85fa", "kerberos": "6b65726265726f737b9b5b2b93132b93",
	} {
		if got := hex.EncodeToString(fold([]byte(in), len(want)/2)); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

// TestShort compares the checksums of short messages, of each length, with those of crypto/hmac.
func TestShort(t *testing.T) {
	for _, key := range [][]byte{
		make([]byte, 16), []byte("a key of 256 bits has 32 bytes ."), make([]byte, sha1.BlockSize),
	} {
		m := newShort(key)
		if m == nil {
			t.Fatal("crypto/sha1 has other states than the package expects")
		}
		s, slow := &shortState{h: sha1.New().(sha1State)}, &shortState{h: sha1.New().(sha1State), slow: true}
		h := hmac.New(sha1.New, key)
		message := []byte(strings.Repeat("every length of a message is tried once. ", 5))
		hdr := []byte("a header of 16 b")
		for n := range shortMax - len(hdr) + 1 {
			h.Reset()
			h.Write(message[:n])
			h.Write(hdr)
			for _, s := range []*shortState{s, slow} {
				if got := m.sum(s, [][]byte{message[:n/3], message[n/3 : n]}, hdr); !bytes.Equal(got, h.Sum(nil)) {
					t.Fatalf("a message of %d bytes has the checksum %x instead of %x", n, got, h.Sum(nil))
				}
			}
		}
	}
	if newShort(make([]byte, sha1.BlockSize+1)) != nil {
		t.Error("a key is longer than a block")
	}
}

// TestShortOrLong: both implementations of a checksum agree at the length where one takes over.
func TestShortOrLong(t *testing.T) {
	key := Key{AES256SHA1, make([]byte, 32)}
	client, err := NewContext(key, Role{})
	if err != nil {
		t.Fatal(err)
	}
	server, err := NewContext(key, Role{Acceptor: true})
	if err != nil {
		t.Fatal(err)
	}
	server.check.short = nil
	for n := range 2 * shortMax {
		if err := server.VerifyMIC(client.AppendMIC(nil, make([]byte, n)), make([]byte, n)); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

// TestCBC: our CBC is that of crypto/cipher, for each number of blocks up to a few passes of eight.
func TestCBC(t *testing.T) {
	for _, key := range []string{"a key: 16 bytes.", "a key of 256 bits has 32 bytes ."} {
		s := aesOf(t, []byte(key))
		if s.keys == nil {
			t.Skip("this processor encrypts by crypto/cipher")
		}
		for n := range 40 {
			plain := []byte(strings.Repeat("sixteen bytes \x80\xff", n))
			for i := range plain {
				plain[i] += byte(i / 7)
			}
			want, got := bytes.Clone(plain), bytes.Clone(plain)
			cbc(&s.enc, want)
			s.keys.encrypt(got)
			if !bytes.Equal(got, want) {
				t.Fatalf("%d blocks encrypt to other bytes", n)
			}
			s.keys.decrypt(got)
			if !bytes.Equal(got, plain) {
				t.Fatalf("%d blocks do not decrypt", n)
			}
		}
	}
}
