package state

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Notice is a copy stateid of COPY_NOTIFY (RFC 7862 sections 4.8 and 15.3): another server, the
// destination of a COPY, may read one file with it. It ends
//
//   - with the state by which its client reads the file: at CLOSE, DELEGRETURN, or the end of the
//     client;
//   - when the destination has not read with it for a lease;
//   - at OFFLOAD_CANCEL of its client;
//   - when its client has noticesOf of them and makes another one. The least recently used one
//     ends.
//
// Most notices end by CLOSE: clients seldom send OFFLOAD_CANCEL.
type Notice struct {
	// File may be read. To is the address of the destination: READs from elsewhere are refused.
	File lock.File
	To   netip.Addr
	// UID, GID and Groups are the identity of the client's caller in the export. The destination
	// reads as this user, not as the user that it names itself.
	UID, GID uint32
	Groups   []uint32

	c      *Client
	other  [12]byte     // of the stateid
	parent Stateid      // by which the client reads; its seqid is 0
	used   atomic.Int64 // Unix nanoseconds
}

// noticesOf bounds the notices of one client.
const noticesOf = 1024

// notices are the copy stateids of all clients. mu is the last lock of the order.
type notices struct {
	mu sync.Mutex
	m  map[[12]byte]*Notice
}

// noticeSeq is the seqid of every copy stateid. A destination may also send 0.
const noticeSeq = 1

// Notify makes the copy stateid of a COPY_NOTIFY. The caller has checked that the client may read
// n.File by id. DELAY means that there is no room, EXPIRED that the client has ended.
//
// Whoever knows a copy stateid can use it, because the destination has a client ID of its own. So
// nobody must be able to guess it: unlike other stateids, it has 64 random bits in Other.
//
//	 0         4         8         12        16
//	+---------+---------+---------+---------+
//	|    1    |  boot   |      random       |
//	+---------+---------+---------+---------+
func (c *Client) Notify(now time.Time, id Stateid, n *Notice) (Stateid, nfs.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, st := c.find(id); st != nfs.OK {
		return Stateid{}, st
	}
	var oldest *Notice
	for _, o := range c.notices {
		if _, st := c.find(o.parent); st != nfs.OK || o.expired(now) {
			c.dropNotice(o)
		} else if oldest == nil || o.used.Load() < oldest.used.Load() {
			oldest = o
		}
	}
	if len(c.notices) >= noticesOf {
		c.dropNotice(oldest)
	}
	if c.full(n.cost() - stateCost) {
		return Stateid{}, nfs.ErrJukebox
	}
	n.parent = Stateid{Other: id.Other}
	n.used.Store(now.UnixNano())
	binary.BigEndian.PutUint32(n.other[:], c.s.cfg.Boot)
	_, _ = rand.Read(n.other[4:]) // it never fails
	c.addNotice(n)
	return n.ID(), nfs.OK
}

// ID is the stateid.
func (n *Notice) ID() Stateid { return Stateid{noticeSeq, n.other} }

// cost is the memory of a notice in bytes.
func (n *Notice) cost() int { return stateCost + 4*len(n.Groups) }

func (n *Notice) expired(now time.Time) bool {
	return now.UnixNano()-n.used.Load() > int64(n.c.s.cfg.Lease)
}

// addNotice enters a notice that has its stateid. Call with mu held.
func (c *Client) addNotice(n *Notice) {
	n.c = c
	if c.notices == nil {
		c.notices = make(map[[12]byte]*Notice)
	}
	c.notices[n.other] = n
	c.charge(int64(n.cost()))
	t := &c.s.notices
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = make(map[[12]byte]*Notice)
	}
	t.m[n.other] = n
}

// dropNotice ends a notice. Call with mu held.
func (c *Client) dropNotice(n *Notice) {
	delete(c.notices, n.other)
	c.charge(-int64(n.cost()))
	t := &c.s.notices
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.m, n.other)
}

// Noticed checks the copy stateid with which the destination reads a file, and its address. The
// session of the destination does not matter.
//
//	BAD_STATEID   no copy stateid, one that has ended, of another file, or whose client has closed it
//	EXPIRED       the destination has not read for a lease
//	ACCES         the reader is not the destination that the client has named
func (s *Server) Noticed(now time.Time, id Stateid, f lock.File, from netip.Addr) (*Notice, nfs.Status) {
	s.notices.mu.Lock()
	n := s.notices.m[id.Other]
	s.notices.mu.Unlock()
	switch {
	case n == nil, id.Seq > noticeSeq, n.File != f:
		return nil, nfs.ErrBadStateID
	case n.To != from.Unmap().WithZone(""):
		return nil, nfs.ErrAcces
	case n.expired(now):
		return nil, nfs.ErrExpired
	}
	if st := n.c.IO(now, n.parent, f, false); st != nfs.OK {
		return nil, nfs.ErrBadStateID
	}
	n.used.Store(now.UnixNano())
	return n, nfs.OK
}

// CancelNotice is OFFLOAD_CANCEL of a copy stateid at the source (RFC 7862 section 15.8).
func (c *Client) CancelNotice(id Stateid, f lock.File) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.notices[id.Other]
	if n == nil || id != n.ID() || n.File != f {
		return nfs.ErrBadStateID
	}
	c.dropNotice(n)
	return nfs.OK
}

// Notices returns how many copy stateids of COPY_NOTIFY there are.
func (s *Server) Notices() int {
	s.notices.mu.Lock()
	defer s.notices.mu.Unlock()
	return len(s.notices.m)
}

// savedNotice is a notice in a snapshot.
type savedNotice struct {
	File     lock.File
	To       netip.Addr
	UID, GID uint32
	Groups   []uint32
	Other    [12]byte
	Parent   Stateid
	Used     int64 // Unix nanoseconds
}

func (n *Notice) saved() savedNotice {
	return savedNotice{n.File, n.To, n.UID, n.GID, n.Groups, n.other, n.parent, n.used.Load()}
}

// notice restores a copy stateid.
func (r *restorer) notice(c *Client, x savedNotice) error {
	if x.File.Handle.Len == 0 || c.notices[x.Other] != nil || len(c.notices) >= noticesOf {
		return damaged("a copy stateid without a file, twice, or too many")
	}
	n := &Notice{File: x.File, To: x.To, UID: x.UID, GID: x.GID, Groups: x.Groups, other: x.Other, parent: x.Parent}
	n.used.Store(r.shift(x.Used))
	c.addNotice(n)
	return nil
}
