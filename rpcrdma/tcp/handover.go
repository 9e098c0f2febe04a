package tcp

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// snapshot is the quiescent connections of a Listener; their sockets are passed as files.
// A connection goes to another process in these steps:
//
//	old process                                          new process
//	Pause(true)   readers stop at a record's end,
//	              or within a record
//	Busy          until all calls are answered
//	Export        state, and a copy of each socket  -->  Import  connections, not served yet
//	                                                     Start   reads Rest, then the socket
//	ends without closing the sockets
//
// Both processes have the socket for a moment, but only one reads it.
type snapshot struct{ Conns []snapshotConn }

type snapshotConn struct {
	Peer  rpc.Peer
	Since time.Time
	Calls uint64
	// Rest was read from the socket, and is not part of a served call.
	Rest []byte
}

// longPast is a deadline in the past: setting it interrupts a blocked read or accept.
var longPast = time.Unix(1, 0)

// pause stops each reader before its next read. The zero value stops no reader.
type pause struct {
	mu   sync.Mutex
	gate chan struct{} // closed at the end of the pause; nil without one
}

// wait blocks while readers are paused.
func (h *pause) wait() {
	h.mu.Lock()
	gate := h.gate
	h.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

// on reports whether readers are paused.
func (h *pause) on() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gate != nil
}

// end ends the pause.
func (h *pause) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate != nil {
		close(h.gate)
		h.gate = nil
	}
}

// Pause stops accepting and reading, or resumes both. What arrives meanwhile stays in the sockets.
// Calls that were read are served.
func (s *Listener) Pause(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.pause
	if on == h.on() {
		return
	}
	at := longPast
	if on {
		h.mu.Lock()
		h.gate = make(chan struct{})
		h.mu.Unlock()
	} else {
		at = time.Time{}
	}
	if l, ok := s.l.(interface{ SetDeadline(t time.Time) error }); ok {
		_ = l.SetDeadline(at)
	}
	for c := range s.conns {
		_ = c.c.SetReadDeadline(at)
	}
	if !on {
		h.end()
	}
}

// waitPaused is called by an interrupted reader, and returns when the pause ends. Export reads the
// partial record meanwhile.
func (c *conn) waitPaused(r *rpc.Records, record []byte) {
	set := func(paused bool, r *rpc.Records, record []byte) {
		c.pausing.Lock()
		defer c.pausing.Unlock()
		c.paused, c.reader, c.record = paused, r, record
	}
	set(true, r, record)
	c.s.pause.wait()
	set(false, nil, nil)
}

// quiescent reports whether the reader is paused and all complete calls that it read are
// answered. calls is the number of calls in progress. No reply is half written then: the writer
// takes the replies in order, and has set writing to false after the last one.
func (c *conn) quiescent() (ok bool, calls int) {
	c.pausing.Lock()
	defer c.pausing.Unlock()
	calls = c.s.cfg.MaxCalls - len(c.free)
	if c.paused {
		calls-- // that of the reader
	}
	return c.paused && calls == 0 && c.calling.Load() == 0 && len(c.replies) == 0 && !c.writing.Load(), calls
}

// Busy is a connection that is not quiescent.
type Busy struct {
	Remote netip.AddrPort
	Calls  int
}

// Busy lists the connections that are not quiescent, while the Listener is paused.
func (s *Listener) Busy() (out []Busy) {
	s.each(func(c *conn) {
		if ok, calls := c.quiescent(); !ok {
			out = append(out, Busy{c.peer.Addr, calls})
		}
	})
	return out
}

// Drop closes the connection of a client that takes no replies, so that it never becomes quiescent.
func (s *Listener) Drop(remote netip.AddrPort) {
	s.each(func(c *conn) {
		if c.peer.Addr == remote {
			s.cfg.Logger.Warn("closing a connection", "peer", remote.String(),
				"error", "the client takes no replies, and another process takes over")
			c.end()
		}
	})
}

// Export describes the quiescent connections while the Listener is paused, with a copy of the
// socket of each. The Listener does not change. The files belong to the caller, who passes them
// to the other process and closes them. A connection that is not quiescent is left out. It ends
// with this process, and its client connects again and repeats its calls.
func (s *Listener) Export() (data []byte, files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			files = nil
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out snapshot
	for c := range s.conns {
		if ok, _ := c.quiescent(); !ok || c.peer.Security != rpc.Cleartext {
			continue // the keys of TLS exist only in this process
		}
		t, ok := c.c.(*net.TCPConn)
		if !ok {
			return nil, files, fmt.Errorf("tcp: the connection to %v is of type %T", c.peer.Addr, c.c)
		}
		f, err := t.File()
		if err != nil {
			return nil, files, fmt.Errorf("tcp: the socket of %v: %w", c.peer.Addr, err)
		}
		files = append(files, f)
		c.pausing.Lock()
		out.Conns = append(out.Conns, snapshotConn{
			Peer: c.peer, Since: c.since, Calls: c.calls.Load(), Rest: c.reader.Rest(c.record),
		})
		c.pausing.Unlock()
	}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(&out); err != nil {
		return nil, files, fmt.Errorf("tcp: %w", err)
	}
	return b.Bytes(), files, nil
}

// Fixed is the number of connections with TLS. They cannot be handed over, because their keys are
// in this process, and end with it.
func (s *Listener) Fixed() (n int) {
	s.each(func(c *conn) {
		if c.peer.Security != rpc.Cleartext {
			n++
		}
	})
	return n
}

// Import adds the connections that another process exported to a Listener that was not started.
// It owns the files, and returns the number of connections.
// After an error the caller must not call Start: the old process still has all connections.
func (s *Listener) Import(data []byte, files []*os.File) (int, error) {
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	var in snapshot
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&in); err != nil {
		return 0, fmt.Errorf("tcp: decoding the handed-over connections: %w", err)
	}
	if len(in.Conns) != len(files) {
		return 0, fmt.Errorf("tcp: %d connections were handed over with %d sockets", len(in.Conns), len(files))
	}
	for i, k := range in.Conns {
		nc, err := net.FileConn(files[i])
		if err != nil {
			return i, fmt.Errorf("tcp: restoring the connection to %v: %w", k.Peer.Addr, err)
		}
		c := newConn(s, nc, k.Peer)
		c.since, c.rest = k.Since, k.Rest
		c.calls.Store(k.Calls)
		s.cfg.Limiter.Restore(k.Peer.Addr.Addr(), true)
		s.mu.Lock()
		s.conns[c] = struct{}{}
		s.mu.Unlock()
	}
	return len(in.Conns), nil
}

// Start begins to serve, if Config.Later was set.
func (s *Listener) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		s.done.Add(1)
		go c.serve()
	}
	s.done.Add(1)
	go s.accept()
}

// Callers returns, for each connection, the Caller that calls its client.
func (s *Listener) Callers() map[rpc.Peer]rpc.Caller {
	out := make(map[rpc.Peer]rpc.Caller)
	s.each(func(c *conn) { out[c.peer] = c.back })
	return out
}

// stream is what the connection's calls are read from.
// It begins with what the other process has read.
func (c *conn) stream() *bufio.Reader {
	var r io.Reader = c.c
	if len(c.rest) > 0 {
		r = io.MultiReader(bytes.NewReader(c.rest), c.c)
		c.rest = nil
	}
	return bufio.NewReaderSize(r, 32<<10)
}

// interrupted reports whether a read or an accept was interrupted by Pause.
func interrupted(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
