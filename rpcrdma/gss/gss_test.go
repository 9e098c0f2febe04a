package gss

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

var kinds = []EncType{AES128SHA1, AES256SHA1, AES128SHA256, AES256SHA384}

// pair makes the contexts of both sides.
func pair(tb testing.TB, kind EncType) (client, server *Context) {
	tb.Helper()
	key := Key{kind, bytes.Repeat([]byte{0x42}, kind.KeyLen())}
	client, err := NewContext(key, Role{AcceptorSubkey: true})
	if err != nil {
		tb.Fatal(err)
	}
	server, err = NewContext(key, Role{Acceptor: true, AcceptorSubkey: true})
	if err != nil {
		tb.Fatal(err)
	}
	return client, server
}

// TestStealing: the vectors of RFC 3962 appendix B.
func TestStealing(t *testing.T) {
	key, _ := hex.DecodeString("636869636b656e207465726979616b69")
	plain := []byte("I would like the General Gau's Chicken, please, and wonton soup.")
	want := map[int]string{
		17: "c6353568f2bf8cb4d8a580362da7ff7f97",
		31: "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5",
		32: "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584",
		47: "97687268d6ecccc0c07b25e25ecfe584b3fffd940c16a18c1b5549d2f838029e39312523a78662d5be7fcbcc98ebf5",
		48: "97687268d6ecccc0c07b25e25ecfe5849dad8bbb96c4cdc03bc103e1a194bbd839312523a78662d5be7fcbcc98ebf5a8",
		64: "97687268d6ecccc0c07b25e25ecfe58439312523a78662d5be7fcbcc98ebf5a84807efe836ee89a526730dbc2f7bc840" +
			"9dad8bbb96c4cdc03bc103e1a194bbd8",
	}
	for n, w := range want {
		s := aesOf(t, key)
		if n == 47 || n == 64 {
			s.keys = nil // as on processors without our instructions
		}
		b := append(bytes.Clone(plain[:n]), make([]byte, 16)...)
		s.encrypt(b, n)
		if got := hex.EncodeToString(b[:n]); got != w {
			t.Errorf("%d bytes: %s, want %s", n, got, w)
		}
		s.decrypt(b[:n], new([2][16]byte))
		if !bytes.Equal(b[:n], plain[:n]) {
			t.Errorf("%d bytes do not decrypt", n)
		}
	}
}

func TestTokens(t *testing.T) {
	for _, kind := range kinds {
		client, server := pair(t, kind)
		msg := []byte("some message, not of whole blocks")
		mic, sealed := client.AppendMIC(nil, msg), client.Seal(nil, msg)
		if len(sealed) != client.SealedLen(len(msg)) || len(mic) != client.MICLen() || len(sealed) > len(msg)+TokenMax {
			t.Errorf("%v: tokens of %d and %d bytes", kind, len(mic), len(sealed))
		}
		if err := client.VerifyMIC(mic, msg); !errors.Is(err, ErrNotMine) {
			t.Errorf("%v: a token sent back: %v", kind, err)
		}
		if _, err := client.Open(bytes.Clone(sealed)); !errors.Is(err, ErrNotMine) {
			t.Errorf("%v: a token sent back: %v", kind, err)
		}
		for _, rotated := range []int{0, 1, 28, len(sealed) - tokenHeader, len(sealed) + 5} {
			b := bytes.Clone(sealed)
			b[6], b[7] = byte(rotated>>8), byte(rotated)
			rotateLeft(b[tokenHeader:], len(b)-tokenHeader-rotated%(len(b)-tokenHeader))
			if got, err := server.Open(b); err != nil || !bytes.Equal(got, msg) {
				t.Errorf("%v: rotated by %d: %v", kind, rotated, err)
			}
		}
		for i := range mic {
			b := bytes.Clone(mic)
			b[i] ^= 1 << (i % 8)
			if server.VerifyMIC(b, msg) == nil {
				t.Errorf("%v: byte %d of a MIC token can be changed", kind, i)
			}
			if server.VerifyMIC(mic[:i], msg) == nil {
				t.Errorf("%v: a MIC token can be cut to %d bytes", kind, i)
			}
		}
		for i := range sealed {
			b := bytes.Clone(sealed)
			b[i] ^= 1 << (i % 8)
			if got, err := server.Open(b); err == nil {
				t.Errorf("%v: byte %d of a Wrap token can be changed: %q", kind, i, got)
			}
			if _, err := server.Open(bytes.Clone(sealed[:i])); err == nil {
				t.Errorf("%v: a Wrap token can be cut to %d bytes", kind, i)
			}
		}
	}
}

// TestProtect: arguments and results with bulk data, under every service.
func TestProtect(t *testing.T) {
	for _, kind := range kinds {
		for _, s := range []Service{None, Integrity, Privacy} {
			client, server := pair(t, kind)
			var e, plain xdr.Encoder
			for _, x := range []*xdr.Encoder{&e, &plain} {
				x.Uint32s(1, 2, 3)
				x.Bulk([]byte("bulk data"))
				x.Uint32(4)
				x.Bulk(nil)
			}
			const at = 4
			server.Protect(s, 77, &e, at, nil)
			flat := e.AppendFlat(nil)
			if len(flat) != e.Len() || len(flat)%4 != 0 || len(flat) > plain.Len()+Overhead {
				t.Errorf("%v: %d bytes", s, len(flat))
			}
			d := xdr.NewDecoder(bytes.Clone(flat))
			d.Uint32()
			d, err := client.Unprotect(s, 77, d)
			if got := d.AppendRest(nil); err != nil || !bytes.Equal(got, plain.AppendFlat(nil)[at:]) {
				t.Errorf("%v, %v: %q, %v", kind, s, got, err)
			}
			d = xdr.NewDecoder(bytes.Clone(flat))
			d.Uint32()
			if _, err := client.Unprotect(s, 78, d); s != None && !errors.Is(err, ErrSequence) {
				t.Errorf("%v with another sequence number: %v", s, err)
			}
		}
	}
}

func TestWindow(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	var w Window
	seen := map[uint32]bool{}
	top := uint32(0)
	for range 200_000 {
		seq := top + uint32(rnd.IntN(40)) - min(top, 20)
		switch rnd.IntN(200) {
		case 0:
			seq = top + uint32(rnd.IntN(3*windowSize))
		case 1:
			seq = top - min(top, uint32(rnd.IntN(2*windowSize)))
		}
		want := !seen[seq] && (len(seen) == 0 || seq > top || top-seq < windowSize)
		if got := w.Admit(seq); got != want {
			t.Fatalf("seed %d: %d after %d: %v", seed, seq, top, got)
		}
		if want {
			seen[seq], top = true, max(top, seq)
		}
	}
}

func TestAllocations(t *testing.T) {
	client, server := pair(t, AES256SHA1)
	header, data := make([]byte, 120), make([]byte, 4096)
	buf, out := make([]byte, 0, 8192), make([]byte, 0, 8192)
	var e xdr.Encoder
	n := testing.AllocsPerRun(100, func() {
		buf = client.AppendMIC(buf[:0], header)
		if server.VerifyMIC(buf, header) != nil {
			t.Fatal("MIC")
		}
		out = client.Seal(out[:0], header, data)
		if _, err := server.Open(out); err != nil {
			t.Fatal(err)
		}
		e.Reset()
		e.Uint32s(1, 2, 3, 4)
		e.Bulk(data)
		server.Protect(Integrity, 1, &e, 8, nil)
		server.ReplyVerifier(&e, 0, 1)
	})
	if n != 0 && !raceEnabled {
		t.Errorf("%v allocations", n)
	}
}

func FuzzOpen(f *testing.F) {
	client, server := pair(f, AES128SHA256)
	f.Add(client.Seal(nil, []byte("message")), uint32(3))
	f.Add(client.AppendMIC(nil, []byte("message")), uint32(2))
	f.Fuzz(func(_ *testing.T, b []byte, s uint32) {
		_ = server.VerifyMIC(b, b)
		var c Cred
		_ = c.Decode(b)
		var r InitRes
		d := xdr.NewDecoder(b)
		_ = r.Decode(&d)
		_, _ = server.Unprotect(Service(s), 0, xdr.NewDecoder(bytes.Clone(b)))
		_, _ = server.Open(bytes.Clone(b))
	})
}

func BenchmarkTokens(b *testing.B) {
	client, server := pair(b, AES256SHA1)
	header, data := make([]byte, 120), make([]byte, 1<<20)
	buf := make([]byte, 0, client.SealRoom(len(data)))
	b.Run("header", func(b *testing.B) {
		for b.Loop() {
			buf = client.AppendMIC(buf[:0], header)
			_ = server.VerifyMIC(buf, header)
		}
	})
	b.Run("MIC", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			buf = client.AppendMIC(buf[:0], data)
		}
	})
	b.Run("seal", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			buf = client.Seal(buf[:0], data)
		}
	})
	b.Run("open", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			_, _ = server.Open(buf[:client.SealedLen(len(data))])
		}
	})
}
