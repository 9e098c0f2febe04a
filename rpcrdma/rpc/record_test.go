package rpc

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func FuzzRecord(f *testing.F) {
	f.Add([]byte{0x80, 0, 0, 2, 1, 2})
	f.Add([]byte{0, 0, 0, 1, 1, 0x80, 0, 0, 1, 2})
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 100_000
		got, err := ReadRecord(bytes.NewReader(b), nil, limit)
		// A peer that has sent firstRead bytes of a long record gets memory for the longest record.
		if len(got) > len(b) || cap(got) > 2*len(b)+firstRead+limit/4 && len(b) < firstRead {
			t.Fatalf("%d bytes became %d in %d", len(b), len(got), cap(got))
		}
		if err == nil && len(got) > limit {
			t.Fatal("limit not held")
		}
		if errors.Is(err, io.EOF) && len(b) != 0 {
			t.Fatalf("a clean end after %x", b)
		}
	})
}
