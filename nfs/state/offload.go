package state

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Offload is a COPY that goes on after it was answered (RFC 7862 section 4.8). Its stateid is valid
// until the client has answered CB_OFFLOAD, or has sent OFFLOAD_CANCEL. The goroutine that copies
// calls Add and then Finish, looks at Gone and Silent on the way, and calls Drop when the client
// has answered CB_OFFLOAD.
//
//	copying --Finish--> done --CB_OFFLOAD answered, Drop--> ended
//	   |                 |
//	   +--Drop: OFFLOAD_CANCEL, end of the client--> ended; the goroutine still calls Finish
//
// An Offload counts as a state of its client. So DESTROY_CLIENTID is answered CLIENTID_BUSY before
// it has ended, and its bytes are charged to the client's host. It does not refer to the open of
// the file: the client may close the file before the copy ends.
type Offload struct {
	Client *Client
	// File is the file that is written.
	File lock.File
	// Origin is the COPY, whose reply the callback may overtake.
	Origin Origin

	num    uint32        // among the states of the client
	copied atomic.Uint64 // bytes
	gone   chan struct{} // closed by Drop, with the client's mu held
	done   chan struct{} // closed by Finish

	status nfs.Status // read when done is closed
}

// offloadSeq is the seqid of every copy stateid: it is never 0, and nothing changes it.
const offloadSeq = 1

// Offload makes the stateid of a COPY. It reports false if the client cannot be called, or there
// are too many copies. The server then copies before the reply, as it may for any COPY (RFC 7862
// section 15.2.3). The Linux client waits for CB_OFFLOAD after an asynchronous reply: if the
// callback cannot reach it, the application hangs in copy_file_range.
func (c *Client) Offload(f lock.File, from Origin) (*Offload, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.s
	if c.dead || len(c.offloads) >= s.cfg.ClientOffloads || c.full(0) || !c.calledBack42() {
		return nil, false
	}
	// Counted before the comparison: clients with different mu cannot exceed the bound together.
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

// calledBack42 reports whether the client has answered a callback on a session of minor version 2:
// CB_OFFLOAD does not exist in version 4.1. Call with mu held.
func (c *Client) calledBack42() bool {
	for _, x := range c.sessions {
		if x.Minor >= 2 && x.Back != nil && x.Back.Usable() && x.Back.Status().Proven {
			return true
		}
	}
	return false
}

// FindOffload finds the copy of a stateid, which writes a file, for OFFLOAD_STATUS and
// OFFLOAD_CANCEL (RFC 7862 sections 15.9 and 15.8). The whole stateid must be equal: a seqid of 0,
// which names the current one elsewhere, is not taken for one here. Any other stateid, as well as
// one of a copy that has ended, is BAD_STATEID.
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

// Finish says that nothing more is copied, and why. It is called once; a second call panics. The
// status is written before done is closed, and read after that.
func (o *Offload) Finish(st nfs.Status) {
	o.status = st
	close(o.done)
}

// Done is closed by Finish.
func (o *Offload) Done() <-chan struct{} { return o.done }

// Progress returns how many bytes were copied. After Finish it also returns the status.
func (o *Offload) Progress() (n uint64, done bool, st nfs.Status) {
	select {
	case <-o.done:
		return o.copied.Load(), true, o.status
	default:
		return o.copied.Load(), false, nfs.OK
	}
}

// Drop ends the stateid. Anybody may call it, more than once. It does not wait for the goroutine
// that copies; a caller that needs this waits for Done.
func (o *Offload) Drop() {
	c := o.Client
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropOffload(o)
}

// dropOffload is Drop with mu held.
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

// Gone is closed when the stateid has ended: nothing more should be copied, and no CB_OFFLOAD sent.
func (o *Offload) Gone() <-chan struct{} { return o.gone }

// Silent compares the time since the client's last request with its lease. stop: more than one
// lease, so nothing more should be copied. forget: more than four leases, so CB_OFFLOAD need not be
// sent any more. Between the two the client may come back and learn how many bytes were copied.
func (o *Offload) Silent(now time.Time) (stop, forget bool) {
	lease := int64(o.Client.s.cfg.Lease)
	silent := now.UnixNano() - o.Client.renewed.Load()
	return silent > lease, silent > extensions*lease
}

// Offloads returns how many copies have a stateid.
func (s *Server) Offloads() int { return int(s.offloads.Load()) }
