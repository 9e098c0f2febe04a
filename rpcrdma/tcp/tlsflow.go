package tcp

import (
	"bufio"
	"crypto/tls"
	"net"
	"sync"
)

// Sizes of what is sent by TLS.
const (
	recordMax = 16 << 10 // plaintext of a record (RFC 8446 section 5.1)
	// flushMax bounds the bytes that are encrypted before they are written to the socket.
	flushMax = 128 << 10
	// flowBuffer bounds the bytes of one read of the socket.
	flowBuffer = 32 << 10
)

// flow is the connection below TLS. It reads several records at once, and can buffer writes, so
// that records leave together.
//
//	writeParts --pieces--> plain (one record) --tls.Conn--> flow, corked --flushMax--> socket
type flow struct {
	net.Conn
	in *bufio.Reader

	mu     sync.Mutex
	corked *[]byte // written since cork; nil without one
}

var flushes = sync.Pool{New: func() any { b := make([]byte, 0, flushMax+2*recordMax); return &b }}

func newFlow(c net.Conn) *flow { return &flow{Conn: c, in: bufio.NewReaderSize(c, flowBuffer)} }

func (f *flow) Read(p []byte) (int, error) { return f.in.Read(p) }

// Write writes a TLS record to the socket, or to the buffer while the flow is corked.
func (f *flow) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.corked == nil {
		return f.Conn.Write(p)
	}
	*f.corked = append(*f.corked, p...)
	if len(*f.corked) < flushMax {
		return len(p), nil
	}
	_, err := f.Conn.Write(*f.corked)
	*f.corked = (*f.corked)[:0]
	return len(p), err
}

// cork buffers writes until uncork. A full buffer (flushMax) is written at once. The buffer
// belongs to the flow until uncork, which returns it to the pool. Only the writer corks, so
// alerts that crypto/tls writes meanwhile go into the same buffer, in order.
func (f *flow) cork() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.corked = flushes.Get().(*[]byte)
}

// uncork ends cork and writes the buffer.
func (f *flow) uncork() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.corked
	f.corked = nil
	var err error
	if len(*b) > 0 {
		_, err = f.Conn.Write(*b)
	}
	if cap(*b) <= flushMax+2*recordMax {
		*b = (*b)[:0]
		flushes.Put(b)
	}
	return err
}

// secured is a connection with TLS. One goroutine at a time may call Write and writeParts.
type secured struct {
	*tls.Conn
	flow *flow
}

// writeParts writes the pieces of messages in as few TLS records as possible. It returns the
// number of their bytes, which is less than the number on the wire. The pieces may be memory of
// the store or of a pool. crypto/tls copies them while it encrypts, so they are free again when
// writeParts returns.
func (s *secured) writeParts(parts [][]byte) (n int64, err error) {
	s.flow.cork()
	defer func() {
		if rerr := s.flow.uncork(); err == nil {
			err = rerr
		}
	}()
	b := flushes.Get().(*[]byte)
	defer flushes.Put(b)
	plain := (*b)[:0] // less than a record
	for _, p := range parts {
		n += int64(len(p))
		for len(p) > 0 {
			if len(plain) == 0 && len(p) >= recordMax {
				whole := len(p) - len(p)%recordMax
				if _, err := s.Write(p[:whole]); err != nil {
					return n, err
				}
				p = p[whole:]
				continue
			}
			k := min(len(p), recordMax-len(plain))
			plain, p = append(plain, p[:k]...), p[k:]
			if len(plain) == recordMax {
				if _, err := s.Write(plain); err != nil {
					return n, err
				}
				plain = plain[:0]
			}
		}
	}
	if len(plain) > 0 {
		_, err = s.Write(plain)
	}
	return n, err
}

// writeParts writes the pieces of messages to any connection. It consumes parts.
func writeParts(c net.Conn, parts *net.Buffers) (int64, error) {
	if s, ok := c.(*secured); ok {
		return s.writeParts(*parts)
	}
	return parts.WriteTo(c)
}
