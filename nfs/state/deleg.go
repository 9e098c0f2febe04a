package state

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs/lock"
)

// A delegation is a promise (RFC 8881 section 10.4). While a client has a read delegation of a
// file, nobody else changes the file. While it has a write delegation, nobody else reads the file
// either. A request that conflicts is answered DELAY, and the server recalls the delegation:
//
//	granted  --conflict-->  recalled, CB_RECALL  --DELEGRETURN-->  ended
//	                             |
//	                             +--a lease later-->  revoked  --FREE_STATEID-->  ended
//
// A client that does not answer CB_RECALL is called again when the next request conflicts. One that
// goes on writing by the delegation gets more time, up to four leases. If the client's own lease
// has run out, the whole client ends instead.
//
// The server grants no delegation of a file while a change without an open is under way (Hold), nor
// for some time after a recall of the same file: it would be recalled again at once.

// deleg is a delegation of a file to a client.
type deleg struct {
	c *Client
	delegRecord

	// leave is called once when the delegation ends: it gives up the lease of the host's kernel. The
	// client's mu guards it.
	leave func()

	// until is when the server revokes a recalled delegation, in Unix nanoseconds; 0: it is not
	// recalled. The file's shard guards changes from 0.
	until atomic.Int64

	// The file's shard guards these.
	calling bool  // a CB_RECALL is in flight
	called  int64 // when the last one was sent, in Unix nanoseconds
}

// delegRecord is the part of a delegation that a snapshot has.
type delegRecord struct {
	File   lock.File
	Num    uint32
	Seq    uint32
	Write  bool
	Origin Origin
	Given  int64 // when, in Unix nanoseconds
	// Change is the change attribute of the file when the client got the delegation.
	Change uint64

	// The client's mu guards these.
	Pinned  bool // Config.Unpin is called when the delegation ends
	Revoked bool

	// The file's shard guards these.
	Recalled     bool
	Last         int64  // limit of until, however long the client goes on writing
	Acknowledged bool   // the client has answered CB_RECALL with OK
	Reported     uint64 // the last change attribute of a file that the client has changed, see Writer.Change
}

// Origin is the request whose reply gave a delegation. A recall names it, as it may
// be there before that reply.
type Origin struct {
	Session        SessionID
	Slot, Sequence uint32
}

// Recall is a delegation for which the caller sends CB_RECALL.
type Recall struct {
	Client *Client
	ID     Stateid
	File   lock.File
	Origin Origin

	d *deleg
}

const (
	// again is how long to wait before a client that did not answer is called again.
	recallAgain = time.Second
	// patience is for how many leases a client that goes on writing keeps what it was
	// asked for.
	extensions = 4
	// coolMax bounds the files of a shard that are not delegated for a while.
	recentMax = 256
	// coolTime is how long that is.
	recentTime = 30 * time.Second
)

// delegShard is what a shard of the files knows of delegations.
type delegShard struct {
	m        map[lock.File][]*deleg
	changing map[lock.File]int // changes that are being made
	recent   map[lock.File]int64
	// watch is for those who wait until one is returned; closed then.
	watch map[lock.File]chan struct{}
}

// delegCounts are of the whole server.
type delegCounts struct {
	possible               atomic.Bool // there has been a backchannel
	all, writes            atomic.Int64
	given, recalls, denied atomic.Uint64
	revoked                atomic.Uint64
}

// DelegCounts are delegations since the start.
type DelegCounts struct {
	Now                     int
	Given, Recalls, Revoked uint64
	// Waits is how often somebody was told to come again.
	Waits uint64
}

// Delegations counts them.
func (s *Server) Delegations() DelegCounts {
	n := &s.delegs
	return DelegCounts{
		Now: int(n.all.Load()), Given: n.given.Load(), Recalls: n.recalls.Load(), Revoked: n.revoked.Load(),
		Waits: n.denied.Load(),
	}
}

// clash is what is to be done about the delegations that conflict with a request. settle does it,
// when the shard's lock is released: revoking takes the lock of another client.
type clash struct {
	wait   bool      // at least one is being recalled
	recall []Recall  // CB_RECALL is to be sent now
	revoke []*deleg  // the time to return them is over
	gone   []*Client // their lease has run out
}

// any reports whether there is such a delegation.
func (k *clash) any() bool { return k.wait || len(k.revoke)+len(k.gone) > 0 }

// clash finds the delegations of a file that conflict with reading it or, if change is true, with
// any use. by is the client that wants to, whose own delegation does not conflict; nil for another
// protocol. Call with the shard's lock held.
func (sh *fileShard) clash(now time.Time, f lock.File, by *Client, change bool, lease time.Duration) (k clash) {
	for _, d := range sh.deleg.m[f] {
		if d.c == by || !change && !d.Write {
			continue
		}
		at := now.UnixNano()
		switch {
		case d.c.expired(now):
			k.gone = append(k.gone, d.c)
			continue
		case d.Recalled && at > d.until.Load():
			k.revoke = append(k.revoke, d)
			continue
		case !d.Recalled:
			d.Recalled = true
			d.Last = at + extensions*int64(lease)
			d.until.Store(at + int64(lease)) // who sees this sees last
			sh.deleg.noteRecall(f, at)
		}
		k.wait = true
		if !d.Acknowledged && !d.calling && (d.called == 0 || at-d.called > int64(recallAgain)) {
			d.calling, d.called = true, at
			k.recall = append(k.recall, d.recall())
		}
	}
	return k
}

func (d *deleg) recall() Recall {
	return Recall{Client: d.c, ID: d.c.stateid(d.Num, d.Seq), File: d.File, Origin: d.Origin, d: d}
}

// chill has a file not delegated for a while.
func (h *delegShard) noteRecall(f lock.File, at int64) {
	if len(h.recent) >= recentMax {
		for g, t := range h.recent {
			if at-t > int64(recentTime) {
				delete(h.recent, g)
			}
		}
		if len(h.recent) >= recentMax {
			clear(h.recent)
		}
	}
	if h.recent == nil {
		h.recent = make(map[lock.File]int64)
	}
	h.recent[f] = at
}

// settle recalls and revokes delegations, and ends clients. It reports whether the request may be
// tried again now: otherwise it waits for a DELEGRETURN. Call with no lock held.
func (s *Server) settle(k *clash) bool {
	if len(k.recall) > 0 {
		s.delegs.recalls.Add(uint64(len(k.recall)))
		if s.cfg.Recall != nil {
			s.cfg.Recall(k.recall)
		}
	}
	for _, d := range k.revoke {
		d.c.revoke(d)
	}
	for _, c := range k.gone {
		if !s.give(c) {
			k.wait = true
		}
	}
	if k.wait {
		s.delegs.denied.Add(1)
	}
	return !k.wait
}

// Recalled ends the CB_RECALL of r. told says that the client has answered OK. If it has not, the
// next request that conflicts makes the server send CB_RECALL again.
func (s *Server) Recalled(r *Recall, told bool) {
	sh := s.shardOfFile(r.File)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.d.calling, r.d.Acknowledged = false, told
}

// Free recalls the delegations that conflict with reading a file or, if change is true, with
// changing it. by is a client of version 4, or nil. It reports false if there are any: the request
// is answered DELAY.
//
// Without delegations, which is the common case, Free reads one counter and takes no lock.
func (s *Server) Free(now time.Time, f lock.File, by *Client, change bool) bool {
	if s.delegs.all.Load() == 0 || !change && s.delegs.writes.Load() == 0 {
		return true
	}
	sh := s.shardOfFile(f)
	for {
		sh.mu.Lock()
		k := sh.clash(now, f, by, change, s.cfg.Lease)
		sh.mu.Unlock()
		if !k.any() {
			return true
		}
		if !s.settle(&k) {
			return false
		}
	}
}

// Hold is Free for a change without an open, such as SETATTR or REMOVE. From then on, until Unhold,
// no delegation of the file is granted: it would be granted with attributes that are about to
// change. The caller calls Unhold if held is true. ok is the result of Free.
func (s *Server) Hold(now time.Time, f lock.File, by *Client) (held, ok bool) {
	if !s.delegs.possible.Load() {
		return false, true
	}
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	if sh.deleg.changing == nil {
		sh.deleg.changing = make(map[lock.File]int)
	}
	sh.deleg.changing[f]++
	sh.mu.Unlock()
	if !s.Free(now, f, by, true) {
		s.Unhold(f)
		return false, false
	}
	return true, true
}

// Unhold ends a Hold.
func (s *Server) Unhold(f lock.File) {
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.deleg.changing[f]--; sh.deleg.changing[f] <= 0 {
		delete(sh.deleg.changing, f)
	}
}

// Delegating reports whether there may be delegations.
func (s *Server) Delegating() bool { return s.delegs.possible.Load() }

// Watch returns a channel that is closed when a delegation of a file ends. It is nil if no
// delegation of the file is being recalled.
func (s *Server) Watch(f lock.File) <-chan struct{} {
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !slices.ContainsFunc(sh.deleg.m[f], func(d *deleg) bool { return d.Recalled }) {
		return nil
	}
	ch := sh.deleg.watch[f]
	if ch == nil {
		if sh.deleg.watch == nil {
			sh.deleg.watch = make(map[lock.File]chan struct{})
		}
		ch = make(chan struct{})
		sh.deleg.watch[f] = ch
	}
	return ch
}
