package rpc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
)

// Over a stream a message is a record: a sequence of fragments (RFC 5531 section 11). A word with
// the length precedes each fragment.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|L|                  Length of the fragment                     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
//	L: last fragment of the record
const (
	MarkLen      = 4
	lastFragment = 1 << 31
	// FragmentMax is the longest record of one fragment.
	FragmentMax = lastFragment - 1

	// MaxRecord is the default for the longest record in bytes: 1 MiB of data and room for the rest
	// of the message.
	MaxRecord = 1<<20 + 64<<10

	// fragmentsMax bounds the fragments of one record: a peer could send empty ones for ever.
	fragmentsMax = 1024
	// firstRead bounds the memory that a record gets for its announced length; more follows as
	// bytes arrive.
	firstRead = 64 << 10
)

// Errors of Next. The stream cannot be used after any of them.
var (
	ErrRecordTooLong    = errors.New("rpc: record longer than allowed")
	ErrTooManyFragments = errors.New("rpc: record of too many fragments")
)

// RecordMark is the word before a record of n bytes in one fragment.
func RecordMark(n int) (mark [MarkLen]byte) {
	binary.BigEndian.PutUint32(mark[:], uint32(n)|lastFragment)
	return mark
}

// Records reads the records of a stream.
type Records struct {
	r     io.Reader
	limit int
	// long: the peer has sent a record longer than firstRead, so the next one gets its memory at
	// once.
	long bool
	part *partial // of the record that was interrupted
}

// NewRecords reads records of at most limit bytes from r. Reads of r should be cheap, because the
// length of a fragment is read alone.
func NewRecords(r io.Reader, limit int) *Records { return &Records{r: r, limit: limit} }

// ReadRecord reads one record; see Next.
func ReadRecord(r io.Reader, buf []byte, limit int) ([]byte, error) {
	return NewRecords(r, limit).Next(buf)
}

// headWords is the length of the XID and the message type, in bytes.
const headWords = 8

// Next reads one record into buf, and returns it, grown if necessary. FreeRecord takes the memory
// back. The error is io.EOF if the stream ends between records. Memory grows with the bytes that
// arrive, not with the length that the peer announces.
//
// If the stream is a bufio.Reader and a read ends with os.ErrDeadlineExceeded, Next can be called
// again with the buffer that it has returned, and continues.
func (s *Records) Next(buf []byte) ([]byte, error) {
	b, _, err := s.Head(buf, nil)
	return b, err
}

// Head is Next, but may leave the last bytes of a record in the stream; left is their number, and
// the caller reads them by Tail before the next record. The function tail gets the XID, the message
// type and the length of a record of one fragment, and returns how many bytes to leave: all but
// these two words at most.
func (s *Records) Head(buf []byte, tail func(xid, kind uint32, size int) int) (b []byte, left int, err error) {
	n := 0
	if p := s.part; p == nil {
		buf = buf[:0]
	} else {
		s.part = nil
		if buf, err = s.take(buf, p.fragments, p.left, p.last); err != nil || p.last {
			return buf, 0, err
		}
		n = p.fragments
	}
	for ; ; n++ {
		if n == fragmentsMax {
			return buf, 0, ErrTooManyFragments
		}
		word, err := s.word()
		if err != nil {
			if n > 0 && interrupted(err) {
				s.part = &partial{fragments: n}
			}
			if n > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return buf, 0, err
		}
		size := int(word & FragmentMax)
		if size > s.limit-len(buf) {
			return buf, 0, fmt.Errorf("%w: %d bytes", ErrRecordTooLong, len(buf)+size)
		}
		if n == 0 && word&lastFragment != 0 && tail != nil && size >= headWords {
			if buf, err = s.fragment(buf, headWords); err != nil {
				return buf, 0, err
			}
			size -= headWords
			left = min(max(0, tail(binary.BigEndian.Uint32(buf), binary.BigEndian.Uint32(buf[4:]), size+headWords)), size)
			size -= left
		}
		if buf, err = s.take(buf, n+1, size, word&lastFragment != 0); err != nil {
			return buf, 0, err
		}
		if word&lastFragment != 0 {
			return buf, left, nil
		}
	}
}

// Tail reads the bytes that Head has left.
func (s *Records) Tail(p []byte) (int, error) {
	n, err := io.ReadFull(s.r, p)
	return n, unexpected(err)
}

// word reads the word before a fragment.
func (s *Records) word() (uint32, error) {
	if b, ok := s.r.(*bufio.Reader); ok { // Peek does not allocate
		p, err := b.Peek(MarkLen)
		if err != nil {
			if len(p) > 0 {
				err = unexpected(err)
			}
			return 0, err
		}
		word := binary.BigEndian.Uint32(p)
		_, err = b.Discard(MarkLen)
		return word, err
	}
	var mark [MarkLen]byte
	_, err := io.ReadFull(s.r, mark[:])
	return binary.BigEndian.Uint32(mark[:]), err
}

// unexpected returns err, or io.ErrUnexpectedEOF for an io.EOF inside of a record.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// take is fragment, and remembers where it was interrupted.
func (s *Records) take(buf []byte, fragments, size int, last bool) ([]byte, error) {
	before := len(buf)
	buf, err := s.fragment(buf, size)
	if interrupted(err) {
		s.part = &partial{fragments: fragments, left: size - (len(buf) - before), last: last}
	}
	return buf, err
}

// fragment appends size bytes of the stream to buf.
//
//	what a peer can do                         what bounds it
//	announce a long record, send nothing       firstRead: 64 KiB until bytes arrive
//	announce more than limit                   ErrRecordTooLong
//	send empty fragments                       fragmentsMax
//	stop in the middle                         the deadline of the caller
func (s *Records) fragment(buf []byte, size int) ([]byte, error) {
	for size > 0 {
		if len(buf) == cap(buf) {
			buf = s.grow(buf, size)
		}
		room := buf[len(buf):min(cap(buf), len(buf)+size)]
		n, err := io.ReadFull(s.r, room)
		buf = buf[:len(buf)+n]
		size -= n
		if err != nil {
			return buf, unexpected(err)
		}
	}
	s.long = s.long || len(buf) > firstRead
	return buf, nil
}

// longRecords is memory for records longer than firstRead. New memory would be cleared for each
// record.
var longRecords = sync.Pool{New: func() any { return new([MaxRecord]byte) }}

// grow makes room for more bytes after buf, of which size are announced.
func (s *Records) grow(buf []byte, size int) []byte {
	var grown []byte
	switch {
	case len(buf)+size <= firstRead:
		grown = make([]byte, len(buf), len(buf)+size)
	case !s.long && len(buf) < firstRead:
		grown = make([]byte, len(buf), firstRead)
	case len(buf)+size <= MaxRecord:
		grown = longRecords.Get().(*[MaxRecord]byte)[:len(buf)]
	default: // never more than doubles what has arrived
		grown = make([]byte, len(buf), len(buf)+min(size, len(buf)))
	}
	copy(grown, buf)
	FreeRecord(buf)
	return grown
}

// FreeRecord takes back the memory of a record for reuse. Calling it is optional.
func FreeRecord(b []byte) {
	if cap(b) == MaxRecord {
		longRecords.Put((*[MaxRecord]byte)(b[:MaxRecord]))
	}
}

// partial is a record of which a part has been read.
type partial struct {
	fragments int // begun
	left      int // bytes of the last one that have not arrived
	last      bool
}

// interrupted reports whether a read ended at its deadline. Next can then be called again with the
// buffer that it has returned, and continues.
func interrupted(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// Rest returns what was read from the stream and is not part of a complete record, as a stream
// again: another reader can begin with it. record is the buffer that Next has returned with
// os.ErrDeadlineExceeded.
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
		buffered, _ := b.Peek(b.Buffered())
		out = append(out, buffered...)
	}
	return out
}
