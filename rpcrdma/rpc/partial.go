package rpc

import (
	"bufio"
	"errors"
	"os"
	"slices"
)

// partial is a record of which a part has been read.
type partial struct {
	fragments int // begun
	left      int // bytes of the last of them that have not come
	last      bool
}

// interrupted reports whether a read ended because of its deadline: Next may be called again with what
// it returned, and goes on.
func interrupted(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// Rest is what was taken off the stream and is not in a whole record, as a stream again: record is what Next returned
// with os.ErrDeadlineExceeded.
func (s *Records) Rest(record []byte) []byte {
	var out []byte
	if p := s.part; p != nil {
		mark := RecordMark(len(record) + p.left)
		if !p.last {
			mark[0] &^= lastFragment >> 24
		}
		out = slices.Concat(mark[:], record)
	}
	if b, ok := s.r.(*bufio.Reader); ok {
		buffered, _ := b.Peek(b.Buffered()) // no more than is there
		out = append(out, buffered...)
	}
	return out
}
