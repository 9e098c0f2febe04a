package rpcrdma

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"
)

// headerFile has headers from packets of the Linux kernel.
const headerFile = "testdata/headers.txt"

func kernelHeaders(t testing.TB, file string) [][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out [][]byte
	for s := bufio.NewScanner(f); s.Scan(); {
		field := strings.Fields(s.Text())
		if field[0] == "#" {
			continue
		}
		b, err := hex.DecodeString(field[2])
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

func TestKernelHeadersRoundTrip(t *testing.T) {
	file := headerFile
	if more := os.Getenv("RPCRDMA_HEADERS"); more != "" { // a larger file of the same form
		file = more
	}
	var h Header
	list := kernelHeaders(t, file)
	for _, b := range list {
		rest, err := h.Parse(append(bytes.Clone(b), "rest"...))
		if err != nil {
			t.Errorf("%x: %v", b, err)
			continue
		}
		if string(rest) != "rest" {
			t.Errorf("%x: %d bytes left over", b, len(rest))
		}
		if got := h.Append(nil); !bytes.Equal(got, b) || h.Len() != len(b) {
			t.Errorf("%x\nencodes as (length %d)\n%x", b, h.Len(), got)
		}
	}
	t.Logf("%d headers", len(list))
}

// words builds a message from words.
func words(w ...uint32) []byte { return appendWords(nil, w...) }

func TestParseErrors(t *testing.T) {
	chunk := func(n int) []uint32 {
		w := []uint32{1, uint32(n)}
		return append(w, make([]uint32, 4*n)...)
	}
	list := func(parts ...any) []byte {
		w := []uint32{7, 1, 32, 0}
		for _, p := range parts {
			switch p := p.(type) {
			case int:
				w = append(w, uint32(p))
			case []uint32:
				w = append(w, p...)
			}
		}
		return words(w...)
	}
	var reads, tooManyReads, writes, tooManyWrites, wide []uint32
	for i := range MaxReadSegments + 1 {
		e := []uint32{1, 4, 9, 10, 0, 0}
		if i < MaxReadSegments {
			reads = append(reads, e...)
		}
		tooManyReads = append(tooManyReads, e...)
	}
	for i := range MaxWriteChunks + 1 {
		if i < MaxWriteChunks {
			writes = append(writes, chunk(1)...)
		}
		tooManyWrites = append(tooManyWrites, chunk(1)...)
	}
	for range MaxSegments/MaxChunkSegments + 1 {
		wide = append(wide, chunk(MaxChunkSegments)...)
	}
	for _, c := range []struct {
		name string
		msg  []byte
		want error
	}{
		{"empty", nil, ErrShort},
		{"three words", words(1, 1, 1), ErrShort},
		{"shorter than three lists", words(1, 1, 1, 0, 0, 0), ErrShort},
		{"version", words(1, 2, 1, 0, 0, 0, 0), ErrVersion},
		{"unknown type", words(1, 1, 1, 5, 0, 0, 0), ErrMalformed},
		{"plain", list(0, 0, 0), nil},
		{"list word neither 0 nor 1", list(2, 0, 0), ErrMalformed},
		{"read list without end", list([]uint32{1, 4, 9, 10, 0, 0}), ErrMalformed},
		{"write chunk cut short", list(0, []uint32{1, 2, 9, 10, 0, 0}), ErrMalformed},
		{"write chunk of 2^32-1 segments", list(0, []uint32{1, 1<<32 - 1, 0, 0}), ErrMalformed},
		{"reply chunk missing", list(0, 0), ErrShort},
		{"reply chunk word", list(0, 0, 7), ErrMalformed},
		{"empty reply chunk", list(0, 0, chunk(0)), nil},
		{"most read segments", list(reads, 0, 0, 0), nil},
		{"a read segment too many", list(tooManyReads, 0, 0), ErrTooComplex},
		{"most write chunks", list(0, writes, 0, 0), nil},
		{"a write chunk too many", list(0, tooManyWrites, 0, 0), ErrTooComplex},
		{"most segments", list(0, chunk(MaxChunkSegments), 0, chunk(MaxChunkSegments)), nil},
		{"17 segments", list(0, chunk(17), 0, 0), nil},
		{"a segment too many", list(0, chunk(MaxChunkSegments+1), 0, 0), ErrTooComplex},
		{"too many segments together", list(0, wide, 0, 0), ErrTooComplex},
		{"ERR_VERS", words(1, 1, 1, 4, 1, 1, 1), nil},
		{"ERR_VERS cut short", words(1, 1, 1, 4, 1, 1), ErrMalformed},
		{"ERR_CHUNK", words(1, 1, 1, 4, 2), nil},
		{"unknown error", words(1, 1, 1, 4, 3), ErrMalformed},
		{"RDMA_DONE", words(1, 1, 1, 3), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h Header
			_, err := h.Parse(c.msg)
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if err == nil && !bytes.Equal(h.Append(nil), c.msg) {
				t.Errorf("%x encodes as %x", c.msg, h.Append(nil))
			}
			if err != nil && !errors.Is(err, ErrShort) && h.XID != binary.BigEndian.Uint32(c.msg) {
				t.Errorf("XID %d", h.XID)
			}
		})
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	var h Header
	list := kernelHeaders(t, headerFile)
	b := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(10, func() {
		for _, m := range list {
			if _, err := h.Parse(m); err != nil {
				t.Fatal(err)
			}
			b = h.Append(b[:0])
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzHeader(f *testing.F) {
	for _, b := range kernelHeaders(f, headerFile) {
		f.Add(b)
	}
	f.Add(words(1, 1, 1, 3))
	f.Add(words(1, 2, 1, 0, 0, 0, 0))
	var h Header
	f.Fuzz(func(t *testing.T, b []byte) {
		rest, err := h.Parse(b)
		if err != nil {
			return
		}
		head := b[:len(b)-len(rest)]
		if got := h.Append(nil); !bytes.Equal(got, head) || h.Len() != len(head) {
			t.Fatalf("%x encodes as %x", head, got)
		}
		if len(h.Reads) > MaxReadSegments || len(h.Writes) > MaxWriteChunks || len(h.segs) > MaxSegments {
			t.Fatal("limits not held")
		}
	})
}

func TestPrivateMessage(t *testing.T) {
	linux := []byte{0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3}
	for _, c := range []struct {
		name string
		data []byte
		want PrivateMessage
		ok   bool
	}{
		{"Linux client", linux, PrivateMessage{true, 4096, 4096}, true},
		{"behind other data", append(make([]byte, 36), linux...), PrivateMessage{true, 4096, 4096}, true},
		{"Linux server", []byte{0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3}, PrivateMessage{false, 4096, 4096}, true},
		{"largest", []byte{0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 255, 0}, PrivateMessage{false, 256 << 10, 1024}, true},
		{"none", nil, PrivateMessage{false, 1024, 1024}, false},
		{"cut short", linux[:7], PrivateMessage{false, 1024, 1024}, false},
		{"other version", []byte{0xf6, 0xab, 0x0e, 0x18, 2, 1, 3, 3}, PrivateMessage{false, 1024, 1024}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, ok := ParsePrivate(c.data)
			if m != c.want || ok != c.ok {
				t.Errorf("%+v, %v", m, ok)
			}
		})
	}
	if b := (PrivateMessage{true, 4096, 4096}).Append(nil); !bytes.Equal(b, linux) {
		t.Errorf("encodes as %x", b)
	}
	if b := (PrivateMessage{false, 1 << 20, 0}).Append(nil); b[6] != 255 || b[7] != 0 {
		t.Errorf("sizes out of range encode as %x", b[6:])
	}
}

func FuzzPrivateMessage(f *testing.F) {
	f.Add([]byte{0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, ok := ParsePrivate(b); ok {
			if again, ok := ParsePrivate(m.Append(nil)); !ok || again != m {
				t.Fatalf("%+v became %+v", m, again)
			}
		}
	})
}
