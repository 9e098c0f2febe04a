package client

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"unsafe"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Memory is memory that is registered with a client. Any part of it can be the buffer of a call:
// the transport moves data from the network into it (Read, ReadAt, Download) and out of it (Write,
// WriteAt, Upload) without registering it for each call. Calls with memory that is not registered
// work as well.
//
// Over RDMA a call opens only the part of the memory that it names to the server, and only until
// the call returns. Over TCP registration does nothing.
type Memory struct {
	s   *session
	buf []byte
	dma *DMABuf // if it is memory of another device, which buf names

	mu      sync.Mutex
	release map[rpc.Client]func() // by the connections on which it is registered
	closed  bool
}

// Register registers buf with every connection that the client makes, until Close of the returned
// Memory or of the client. The caller owns buf and may use it, but must not free or unmap it before
// then.
func (c *Client) Register(buf []byte) (*Memory, error) {
	return c.register(&Memory{s: c.nfs, buf: buf})
}

func (c *Client) register(m *Memory) (*Memory, error) {
	for _, conn := range c.nfs.enroll(m) { // if there is none yet, the first one registers it
		switch err := m.attach(conn, nil); {
		case errors.Is(err, rpc.ErrNotForDMABufs):
			c.nfs.drop(conn) // the client makes a new connection for such memory, and sends calls in flight again
		case errors.As(err, new(*rpc.ConnError)):
			c.nfs.drop(conn) // lost, and no call has noticed; the next one registers the memory
		case err != nil:
			m.Close()
			return nil, err
		}
	}
	return m, nil
}

// Bytes returns the memory. For a DMABuf that is not Mapped it is address space that only names the
// memory: to read or write it is a fault.
func (m *Memory) Bytes() []byte { return m.buf }

// Close ends the registration. Calls that use the memory must have returned.
func (m *Memory) Close() {
	m.s.expel(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, release := range m.release {
		if release != nil {
			release()
		}
	}
	m.release, m.closed = nil, true
}

// attach registers the memory with a connection. A registration ends with its connection. So if
// others is not nil, attach forgets the registrations with connections that others does not have.
func (m *Memory) attach(conn rpc.Client, others []rpc.Client) error {
	r, ok := conn.(rpc.Registrar)
	if !ok && m.dma == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, has := m.release[conn]; has || m.closed {
		return nil // after Close the caller may have freed the memory and closed its descriptor
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
	if others != nil {
		maps.DeleteFunc(m.release, func(c rpc.Client, _ func()) bool { return !slices.Contains(others, c) })
	}
	if m.release == nil {
		m.release = make(map[rpc.Client]func())
	}
	m.release[conn] = release
	return nil
}

// enroll adds memory that each new connection registers. It returns the current connections.
func (s *session) enroll(m *Memory) []rpc.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory == nil {
		s.memory = make(map[*Memory]struct{})
	}
	s.memory[m] = struct{}{}
	s.enrolled++
	return s.open()
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

// unmapped reports whether b begins in memory of another device that is not mapped here.
func (s *session) unmapped(b []byte) bool {
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

// attachAll registers all enrolled memory with a new connection. enrolled is the number of
// enrolments at that moment. mu is not held.
func (s *session) attachAll(c rpc.Client) (enrolled uint64, err error) {
	s.mu.Lock()
	enrolled = s.enrolled
	others := append(make([]rpc.Client, 0, len(s.links)), s.open()...)
	list := make([]*Memory, 0, len(s.memory))
	for m := range s.memory {
		list = append(list, m)
	}
	s.mu.Unlock()
	for _, m := range list {
		if err := m.attach(c, others); err != nil {
			return 0, err
		}
	}
	return enrolled, nil
}
