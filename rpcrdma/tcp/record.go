// Package tcp carries ONC RPC over TCP with record marking (RFC 5531 section
// 11): a server for the same rpc.Server that RPC-over-RDMA serves, and a
// client.
package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A record is a sequence of fragments, each behind a word that holds its
// length and, in the top bit, whether it is the last.
const (
	markLen      = 4
	lastFragment = 1 << 31
	fragmentMax  = lastFragment - 1

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

// Errors of the record reader. The stream cannot be used after any of them.
var (
	ErrRecordTooLong    = errors.New("tcp: RPC record longer than allowed")
	ErrTooManyFragments = errors.New("tcp: RPC record of too many fragments")
)

// readRecord reads one record into buf, which it returns, grown where needed.
// It is io.EOF if the stream ends between records.
func readRecord(r io.Reader, buf []byte, limit int) ([]byte, error) {
	buf = buf[:0]
	var mark [markLen]byte
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
		size := int(word & fragmentMax)
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
