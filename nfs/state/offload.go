package state

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Offload is a COPY that goes on after it was answered (RFC 7862 section 4.8). Its
// stateid is the client's until it has answered the callback that tells of the end, or
// has asked that the copy be stopped. Whoever copies calls Add and then Finish, looks at
// Gone and Silent on the way, and calls Drop when the client has heard of the end.
//
// It counts as a state of its client, who cannot be destroyed before it has ended.
type Offload struct {
	Client *Client
	// File is the file that is written.
	File lock.File
	// Origin is the COPY, whose reply the callback may overtake.
	Origin Origin

	num    uint32
	copied atomic.Uint64
	gone   chan struct{} // closed by Drop
	done   chan struct{} // closed by Finish

	status nfs.Status // read when done is closed
}

// offloadSeq is the seqid of every copy stateid: it is never 0, and nothing changes it.
const offloadSeq = 1

// Offload makes the stateid of a COPY. It reports false if the client cannot be called,
// or there are too many of them: the copy has to be made at once then.
func (c *Client) Offload(f lock.File, from Origin) (*Offload, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.s
	if c.dead || len(c.offloads) >= s.cfg.ClientOffloads || c.full(0) || !c.calledBack42() {
		return nil, false
	}
	if s.offloads.Add(1) > int64(s.cfg.Offloads) {
		s.offloads.Add(-1)
		return nil, false
	}
	o := newOffload(c, f, from)
	o.num = c.number(o)
	c.addOffload(o)
	return o, true
}

func newOffload(c *Client, f lock.File, from Origin) *Offload {
	return &Offload{Client: c, File: f, Origin: from, gone: make(chan struct{}), done: make(chan struct{})}
}

// addOffload enters a copy that has its number. Call with mu held.
func (c *Client) addOffload(o *Offload) {
	if c.offloads == nil {
		c.offloads = make(map[uint32]*Offload)
	}
	c.offloads[o.num] = o
}

// calledBack42 reports whether the client can be called with what minor version 2 has.
// Call with mu held.
func (c *Client) calledBack42() bool {
	for _, x := range c.sessions {
		if x.Minor >= 2 && x.Back != nil && x.Back.Usable() && x.Back.Status().Proven {
			return true
		}
	}
	return false
}

// FindOffload finds the copy of a stateid, which writes a file.
func (c *Client) FindOffload(id Stateid, f lock.File) (*Offload, nfs.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.offloads[binary.BigEndian.Uint32(id.Other[8:])]
	if c.dead || o == nil || id != o.id() || o.File != f {
		return nil, nfs.ErrBadStateID
	}
	return o, nfs.OK
}

func (o *Offload) id() Stateid { return o.Client.stateid(o.num, offloadSeq) }

// ID is the stateid.
func (o *Offload) ID() Stateid { return o.id() }

// Add counts bytes that were copied.
func (o *Offload) Add(n uint64) { o.copied.Add(n) }

// Finish says that nothing more is copied, and why. It is called once.
func (o *Offload) Finish(st nfs.Status) {
	o.status = st
	close(o.done)
}

// Done is closed by Finish.
func (o *Offload) Done() <-chan struct{} { return o.done }

// Progress is how many bytes were copied, and, once it is done, how that ended.
func (o *Offload) Progress() (n uint64, done bool, st nfs.Status) {
	select {
	case <-o.done:
		return o.copied.Load(), true, o.status
	default:
		return o.copied.Load(), false, nfs.OK
	}
}

// Drop ends the stateid. It may be called more than once, by anybody.
func (o *Offload) Drop() {
	c := o.Client
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropOffload(o)
}

// dropOffload is Drop. Call with mu held.
func (c *Client) dropOffload(o *Offload) {
	if c.offloads[o.num] != o {
		return
	}
	delete(c.offloads, o.num)
	delete(c.states, o.num)
	c.charge(-costOf(o))
	c.s.offloads.Add(-1)
	close(o.gone)
}

// Gone is closed when nobody wants to know any more what becomes of the copy.
func (o *Offload) Gone() <-chan struct{} { return o.gone }

// Silent says of how the client keeps silent whether nothing more should be copied for
// it, and whether it need not be told of the end.
func (o *Offload) Silent(now time.Time) (stop, forget bool) {
	lease := int64(o.Client.s.cfg.Lease)
	silent := now.UnixNano() - o.Client.renewed.Load()
	return silent > lease, silent > extensions*lease
}

// Offloads is how many copies have a stateid.
func (s *Server) Offloads() int { return int(s.offloads.Load()) }
