package wire

import (
	"bytes"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

func checkCRC(t testing.TB, name string, head *[crcHead]byte, p []byte) {
	t.Helper()
	want := crc32.Update(crc32.ChecksumIEEE(head[:]), crc32.IEEETable, p)
	if got := crcOf(head, p, nil); got != want {
		t.Errorf("%s: head and %d bytes: %#x, want %#x", name, len(p), got, want)
	}
	// dst has room for all of p, or for one byte less. The bytes around dst do not change.
	for _, room := range []int{len(p), max(len(p)-1, 0)} {
		at := 1 + len(p)%16
		mem := bytes.Repeat([]byte{0xa5}, at+room+300)
		if got := crcOf(head, p, mem[at:][:room]); got != want {
			t.Errorf("%s: copying %d bytes: %#x, want %#x", name, len(p), got, want)
		}
		if !bytes.Equal(mem[at:][:room], p[:room]) {
			t.Errorf("%s: a copy of %d of %d bytes is not like them", name, room, len(p))
		}
		if bytes.Count(mem[:at], []byte{0xa5}) != at || bytes.Count(mem[at+room:], []byte{0xa5}) != 300 {
			t.Errorf("%s: a copy of %d of %d bytes writes beyond its destination", name, room, len(p))
		}
	}
	if got := crcUpdate(0x12345678, p); got != crc32.Update(0x12345678, crc32.IEEETable, p) {
		t.Errorf("%s: update with %d bytes: %#x", name, len(p), got)
	}
}

// TestCRC compares every length and alignment up to two kilobytes with hash/crc32.
func TestCRC(t *testing.T) {
	var head [crcHead]byte
	rnd := rand.NewChaCha8([32]byte{1})
	data := make([]byte, 9000+64)
	_, _ = rnd.Read(head[:])
	_, _ = rnd.Read(data)
	for _, name := range crcImplementations(t) {
		for n := range 2048 {
			checkCRC(t, name, &head, data[n%64:][:n])
		}
		for _, n := range []int{4096, 4097, 8191, 9000} {
			checkCRC(t, name, &head, data[7:][:n])
		}
	}
}

func FuzzCRC(f *testing.F) {
	f.Add([]byte("head"), bytes.Repeat([]byte{0xff}, 700))
	f.Fuzz(func(t *testing.T, start, p []byte) {
		var head [crcHead]byte
		copy(head[:], start)
		for _, name := range crcImplementations(t) {
			checkCRC(t, name, &head, p)
		}
	})
}

// TestMulmod compares both implementations of the multiplication.
func TestMulmod(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		a, b := rnd.Uint32(), rnd.Uint32()
		if got, want := mulmod(a, b), mulmodGo(a, b); got != want {
			t.Fatalf("%#x times %#x is %#x, want %#x", a, b, got, want)
		}
	}
}

func BenchmarkCRC(b *testing.B) {
	var head [crcHead]byte
	p := make([]byte, 4096-64)
	for _, name := range crcImplementations(b) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(head) + len(p)))
			b.ReportAllocs()
			for b.Loop() {
				crcOf(&head, p, nil)
			}
		})
		b.Run(name+"-then-copy", func(b *testing.B) {
			dst := make([]byte, len(p))
			b.SetBytes(int64(len(head) + len(p)))
			for b.Loop() {
				crcOf(&head, p, nil)
				copy(dst, p)
			}
		})
		b.Run(name+"-and-copy", func(b *testing.B) {
			dst := make([]byte, len(p))
			b.SetBytes(int64(len(head) + len(p)))
			for b.Loop() {
				crcOf(&head, p, dst)
			}
		})
	}
	b.Run("hash-crc32", func(b *testing.B) {
		b.SetBytes(int64(len(head) + len(p)))
		for b.Loop() {
			crc32.Update(crc32.ChecksumIEEE(head[:]), crc32.IEEETable, p)
		}
	})
}
