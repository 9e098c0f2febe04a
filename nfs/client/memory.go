package client

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Memory is memory that is registered with a client: what Read, ReadAt and
// Download bring into any part of it, and Write, WriteAt and Upload take out of
// it, is moved by the carrier itself, and costs no registration per call. Memory that
// is not registered works as well.
//
// Over RDMA the server is never given more than the part that a call names, and
// only until the call returns. Over TCP registration does nothing.
type Memory struct {
	s   *session
	buf []byte
	dma *DMABuf // if it is memory of another device, which buf names

	mu      sync.Mutex
	conn    rpc.Client // on which it is registered
	release func()
	closed  bool
}

// Register registers buf until Close of the returned Memory or of the client,
// across all connections that the client makes. buf belongs to the caller, who
// may use it as ever but must keep it until then.
func (c *Client) Register(buf []byte) (*Memory, error) {
	return c.register(&Memory{s: c.nfs, buf: buf})
}

func (c *Client) register(m *Memory) (*Memory, error) {
	conn := c.nfs.enroll(m)
	if conn == nil {
		return m, nil // with the first connection
	}
	switch err := m.attach(conn); {
	case errors.Is(err, rpc.ErrNotForDMABufs):
		c.nfs.drop(conn) // the next one is; calls in flight are sent again
	case err != nil:
		m.Close()
		return nil, err
	}
	return m, nil
}

// Bytes is the memory. Of a DMABuf that is not mapped it is the names of the memory alone, not to be touched.
func (m *Memory) Bytes() []byte { return m.buf }

// Close ends the registration. Calls that use the memory must have returned.
func (m *Memory) Close() {
	m.s.expel(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.release != nil {
		m.release()
	}
	m.release, m.closed = nil, true
}

// attach registers the memory with a connection. That of an earlier connection
// ended with it.
func (m *Memory) attach(conn rpc.Client) error {
	r, ok := conn.(rpc.Registrar)
	if !ok && m.dma == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == conn || m.closed {
		return nil // it may not be there any more, nor its descriptor
	}
	var release func()
	var err error
	if m.dma != nil {
		release, err = m.dma.register(conn)
	} else {
		release, err = r.Register(m.buf)
	}
	if err != nil {
		return err
	}
	m.conn, m.release = conn, release
	return nil
}

// enroll adds memory to what each new connection gets, and returns the present
// connection.
func (s *session) enroll(m *Memory) rpc.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory == nil {
		s.memory = make(map[*Memory]struct{})
	}
	s.memory[m] = struct{}{}
	s.enrolled++
	return s.conn
}

// hasDMABufs reports whether memory of another device is registered.
func (s *session) hasDMABufs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.memory {
		if m.dma != nil {
			return true
		}
	}
	return false
}

// untouchable reports whether b begins in memory of another device that is not mapped.
func (s *session) untouchable(b []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.memory {
		if m.dma == nil || m.dma.Mapped {
			continue
		}
		at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(m.buf)))
		if len(b) > 0 && at < uintptr(len(m.buf)) {
			return true
		}
	}
	return false
}

func (s *session) expel(m *Memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.memory, m)
}

// attachAll registers all memory with a new connection, which has what was enrolled by then. mu is not held.
func (s *session) attachAll(c rpc.Client) (enrolled uint64, err error) {
	s.mu.Lock()
	enrolled = s.enrolled
	list := make([]*Memory, 0, len(s.memory))
	for m := range s.memory {
		list = append(list, m)
	}
	s.mu.Unlock()
	for _, m := range list {
		if err := m.attach(c); err != nil {
			return 0, err
		}
	}
	return enrolled, nil
}
