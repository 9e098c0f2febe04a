package rpc

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
)

// cutReader is a stream that stops after some bytes.
type cutReader struct {
	b     []byte
	left  int // bytes until it stops
	stood bool
}

func (c *cutReader) Read(p []byte) (int, error) {
	if c.left == 0 && !c.stood {
		c.stood = true
		return 0, os.ErrDeadlineExceeded
	}
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(c.b))
	if !c.stood {
		n = min(n, c.left)
		c.left -= n
	}
	copy(p, c.b[:n])
	c.b = c.b[n:]
	return n, nil
}

// TestInterrupted: a stream of records stops after any byte. Reading continues in this process, or
// in another one with the rest of the stream.
func TestInterrupted(t *testing.T) {
	long := bytes.Repeat([]byte("long"), 50)
	want := [][]byte{[]byte("one"), []byte("two in three"), {}, long, []byte("end")}
	mark := func(n int, last bool) []byte {
		m := RecordMark(n)
		if !last {
			m[0] &^= 0x80
		}
		return m[:]
	}
	stream := slices.Concat(
		mark(3, true), want[0],
		mark(4, false), want[1][:4], mark(0, false), mark(8, true), want[1][4:],
		mark(0, true),
		mark(100, false), long[:100], mark(100, true), long[100:],
		mark(3, true), want[4])
	for cut := range len(stream) + 1 {
		for _, moves := range []bool{false, true} {
			src := &cutReader{b: stream, left: cut}
			r := NewRecords(bufio.NewReaderSize(src, 16), 1000)
			var got [][]byte
			var buf []byte
			for {
				var err error
				buf, err = r.Next(buf)
				switch {
				case errors.Is(err, os.ErrDeadlineExceeded) && moves:
					rest := r.Rest(buf)
					r = NewRecords(bufio.NewReaderSize(io.MultiReader(bytes.NewReader(rest), src), 16), 1000)
					buf = nil
					continue
				case errors.Is(err, os.ErrDeadlineExceeded):
					continue
				case errors.Is(err, io.EOF):
				case err != nil:
					t.Fatalf("cut at %d: %v", cut, err)
				default:
					got = append(got, bytes.Clone(buf))
					continue
				}
				break
			}
			if !slices.EqualFunc(got, want, bytes.Equal) {
				t.Fatalf("cut at %d, moves %v: %q", cut, moves, got)
			}
		}
	}
}
