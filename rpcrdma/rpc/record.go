package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Over a stream a message is a record: a sequence of fragments, each behind a
// word that holds its length and, in the top bit, whether it is the last (RFC
// 5531 section 11).
const (
	MarkLen      = 4
	lastFragment = 1 << 31
	// FragmentMax is the longest record of one fragment.
	FragmentMax = lastFragment - 1

	// MaxRecord is the longest record in bytes that is accepted unless
	// configured otherwise: 1 MiB of data and room for everything around it.
	MaxRecord = 1<<20 + 64<<10

	// fragmentsMax bounds the fragments of one record, so that a peer cannot
	// keep a reader busy with empty ones.
	fragmentsMax = 1024
	// firstRead is how much memory a record gets on the word of its length
	// alone; more follows as bytes arrive.
	firstRead = 64 << 10
)

// Errors of ReadRecord. The stream cannot be used after any of them.
var (
	ErrRecordTooLong    = errors.New("rpc: record longer than allowed")
	ErrTooManyFragments = errors.New("rpc: record of too many fragments")
)

// RecordMark is the word before a record of n bytes in one fragment.
func RecordMark(n int) (mark [MarkLen]byte) {
	binary.BigEndian.PutUint32(mark[:], uint32(n)|lastFragment)
	return mark
}

// ReadRecord reads one record into buf, which it returns, grown where needed.
// It is io.EOF if the stream ends between records. limit bounds the record;
// memory grows with what arrives, not with what is announced.
func ReadRecord(r io.Reader, buf []byte, limit int) ([]byte, error) {
	buf = buf[:0]
	var mark [MarkLen]byte
	for n := 0; ; n++ {
		if n == fragmentsMax {
			return buf, ErrTooManyFragments
		}
		if _, err := io.ReadFull(r, mark[:]); err != nil {
			if n > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return buf, err
		}
		word := binary.BigEndian.Uint32(mark[:])
		size := int(word & FragmentMax)
		if size > limit-len(buf) {
			return buf, fmt.Errorf("%w: %d bytes", ErrRecordTooLong, len(buf)+size)
		}
		var err error
		if buf, err = readFragment(r, buf, size); err != nil {
			return buf, err
		}
		if word&lastFragment != 0 {
			return buf, nil
		}
	}
}

// readFragment appends size bytes of r to buf.
func readFragment(r io.Reader, buf []byte, size int) ([]byte, error) {
	for size > 0 {
		if len(buf) == cap(buf) {
			// Never more than doubles what has arrived.
			grown := make([]byte, len(buf), len(buf)+min(size, max(firstRead, len(buf))))
			copy(grown, buf)
			buf = grown
		}
		room := buf[len(buf):min(cap(buf), len(buf)+size)]
		n, err := io.ReadFull(r, room)
		buf = buf[:len(buf)+n]
		size -= n
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return buf, err
		}
	}
	return buf, nil
}
