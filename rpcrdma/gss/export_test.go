package gss

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"testing"
)

// aesOf is a sealer whose key is not derived.
func aesOf(t *testing.T, key []byte) *sealer {
	t.Helper()
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	s := &sealer{block: block}
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
