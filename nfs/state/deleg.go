package state

import (
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
// If a client does not answer CB_RECALL, the next request that conflicts sends it again. A client
// that goes on writing by the delegation gets more time: up to four leases, or two if the store
// wants its lease of the file back (FreeLease). If the client's own lease has run out, the whole
// client ends instead.
//
// No timer revokes a delegation. The next conflicting request does, a lease or more after the
// recall (RFC 8881 section 10.4.5, RFC 7530 section 10.4.6). A recalled delegation that no request
// conflicts with any more stays valid. A conflicting request finds:
//
//	holder of the delegation       the server's action    the request
//	not recalled yet               sends CB_RECALL        DELAY
//	recalled, CB_RECALL in flight  none                   DELAY
//	recalled, no answer or error   CB_RECALL again        DELAY, one callback each second at most
//	recalled, answered OK          none                   DELAY
//	recalled, time is over         revokes it             continues
//	silent for a lease             ends the client        continues; DELAY if the journal fails
//
// The reply is DELAY at once, except for a short wait in package nfs4 (Watch): if the request
// waited for the return, a holder that never answers would occupy a worker for a whole lease. A
// hostile holder delays others by one lease, or by four leases if it sends WRITEs.
//
// The server grants no delegation of a file while a change without an open is under way
// (BeginChange), nor for some time after a recall of the same file: it would be recalled again at
// once.

// deleg is a delegation of a file to a client.
type deleg struct {
	c *Client
	delegRecord

	// leave is called once when the delegation ends: it gives up the lease of the host's kernel.
	// The client's mu guards it.
	leave func()

	// until is when the server revokes a recalled delegation, in Unix nanoseconds; 0: it is not
	// recalled. The file's shard guards changes from 0. Later changes are made under the client's
	// mu (io), so the two locks need not be held together.
	until atomic.Int64

	// The file's shard guards these.
	calling bool  // a CB_RECALL is in flight; Server.Recalled clears it
	called  int64 // when the last one was sent, in Unix nanoseconds
}

// delegRecord is the part of a delegation that a snapshot has. The fields down to Change never
// change after the grant, and are read without a lock.
type delegRecord struct {
	File    lock.File
	Num     uint32 // among the states of the client; the end of the stateid's Other
	Seq     uint32 // always 1: no operation changes a delegation
	Write   bool
	Dir     bool   // of a directory; never with Write
	Notices uint32 // kinds of changes of the directory that the client is notified of
	Origin  Origin
	Given   int64 // when, in Unix nanoseconds
	// Change is the change attribute of the file when the client got the delegation. A holder whose
	// CB_GETATTR reply has another one has modified the file (RFC 8881 section 10.4.3). It counts
	// for write delegations only.
	Change uint64
	Times  bool // the client also keeps the times of the file (RFC 9754 section 5)

	// The client's mu guards these. Accessed and Modified are the times of the file when the client
	// got the delegation, or those that it has set since, in Unix nanoseconds.
	Accessed, Modified int64

	Pinned  bool // Config.Unpin is called when the delegation ends
	Revoked bool // only the stateid is left, until FREE_STATEID; never set in version 4.0

	// The file's shard guards these.
	Recalled     bool
	Last         int64  // the latest that until can become; io reads it atomically
	Acknowledged bool   // the client has answered CB_RECALL with OK
	Reported     uint64 // the last change attribute that others got, see Writer.Change
}

// Origin is the request whose reply gave a delegation. CB_SEQUENCE names it as a referring call:
// CB_RECALL may reach the client before that reply does, and a client that does not know the
// stateid yet waits for the reply (RFC 8881 section 2.10.6.3). Version 4.0 has no such field and a
// zero Origin. There the client answers BADHANDLE or BAD_STATEID, and the server calls again (RFC
// 7530 section 10.4.5).
type Origin struct {
	Session        SessionID
	Slot, Sequence uint32
}

// Recall is a delegation for which the caller sends CB_RECALL (RFC 8881 section 20.2). It does not
// own the delegation: DELEGRETURN may end that at any time, and Recalled accepts one that has
// ended.
type Recall struct {
	Client *Client
	ID     Stateid
	File   lock.File
	Origin Origin

	d *deleg
}

const (
	// recallAgain is the least time between two CB_RECALLs of a delegation whose client did not
	// answer, or answered an error. A conflicting client repeats its request after each DELAY, and
	// each of its requests would otherwise send another callback.
	recallAgain = time.Second
	// extensions is for how many leases, counted from the recall, a client may go on writing back
	// its cache. Without this bound one WRITE for each lease would keep others from the file for
	// ever.
	extensions = 4
	// leaseExtensions replaces extensions if the store wants its lease back. A cluster ends a store
	// that returns a lease too late, and bounds the time that a store may choose for it.
	leaseExtensions = 2
	// recentMax bounds delegShard.recent.
	recentMax = 256
	// recentTime is how long a file is not delegated after a recall.
	recentTime = 30 * time.Second
)

// delegShard is what a shard of the files knows of delegations. fileShard.mu guards it. All maps
// are nil until the first use, since most servers never grant a delegation.
type delegShard struct {
	m        map[lock.File][]*deleg // without the revoked ones
	changing map[lock.File]int      // calls of BeginChange without their EndChange
	recent   map[lock.File]int64    // time of the last recall, in Unix nanoseconds
	// watch has one channel for each file whose return somebody waits for. The end of any
	// delegation of the file closes and removes it (unshareDeleg).
	watch map[lock.File]chan struct{}
}

// delegCounts are counts of the whole server.
type delegCounts struct {
	possible               atomic.Bool   // there has been a backchannel; never false again
	all, writes, dirs      atomic.Int64  // now, without the revoked ones
	given, recalls, denied atomic.Uint64 // since the start; denied are answers of DELAY
	revoked                atomic.Uint64
}

// DelegCounts are delegations since the start.
type DelegCounts struct {
	Now                     int
	Given, Recalls, Revoked uint64
	// Waits is how many requests were answered DELAY because of a delegation.
	Waits uint64
}

// Delegations returns the counts.
func (s *Server) Delegations() DelegCounts {
	n := &s.delegs
	return DelegCounts{
		Now: int(n.all.Load()), Given: n.given.Load(), Recalls: n.recalls.Load(), Revoked: n.revoked.Load(),
		Waits: n.denied.Load(),
	}
}

// clash is what has to be done about the delegations that conflict with a request. settle does it
// after the shard's lock was released, because revoking takes the lock of another client.
type clash struct {
	wait   bool      // at least one is being recalled
	recall []Recall  // CB_RECALL is to be sent now
	revoke []*deleg  // the time to return them is over
	gone   []*Client // their lease has run out
}

// any reports whether any delegation conflicts.
func (k *clash) any() bool { return k.wait || len(k.revoke)+len(k.gone) > 0 }

// clash finds the delegations of a file that conflict with reading it or, if change is true, with
// any use. by is the client that makes the request; its own delegation does not conflict. by is nil
// for another protocol. kinds are the kinds of a change of a directory, see BeginDirChange; 0 for
// other requests. Call with the shard's lock held.
//
// clash only marks and collects. It must not send, revoke or end anything itself: that takes the mu
// of the delegation's client, and the lock order has Client.mu before the shard.
func (sh *fileShard) clash(
	now time.Time, f lock.File, by *Client, change bool, kinds uint32, lease time.Duration,
) (k clash) {
	for _, d := range sh.deleg.m[f] {
		if d.c != by && (change || d.Write) && !d.covers(kinds) {
			k.add(sh, now, d, lease)
		}
	}
	return k
}

// add adds a delegation that conflicts. Call with the shard's lock held.
func (k *clash) add(sh *fileShard, now time.Time, d *deleg, lease time.Duration) {
	if d.c.expired(now) {
		k.gone = append(k.gone, d.c)
		return
	}
	k.take(sh, now, d, lease)
}

// take recalls or revokes a delegation, also of a client whose lease has run out. Call with the
// shard's lock held.
func (k *clash) take(sh *fileShard, now time.Time, d *deleg, lease time.Duration) {
	at := now.UnixNano()
	switch {
	case d.Recalled && at > min(d.until.Load(), d.Last):
		k.revoke = append(k.revoke, d)
		return
	case !d.Recalled:
		d.Recalled = true
		atomic.StoreInt64(&d.Last, at+extensions*int64(lease))
		d.until.Store(at + int64(lease)) // after Last: io reads Last once until is not 0
		sh.deleg.noteRecall(d.File, at)
	}
	k.wait = true
	if !d.Acknowledged && !d.calling && (d.called == 0 || at-d.called > int64(recallAgain)) {
		d.calling, d.called = true, at
		k.recall = append(k.recall, d.recall())
	}
}

func (d *deleg) recall() Recall {
	return Recall{Client: d.c, ID: d.c.stateid(d.Num, d.Seq), File: d.File, Origin: d.Origin, d: d}
}

// noteRecall keeps a file from being delegated for recentTime. When the map is full and nothing in
// it is old, it is emptied. Then some files are delegated early; that costs a recall and nothing
// else. Call with the shard's lock held.
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
// tried again now: otherwise it waits for a DELEGRETURN. Call with no lock held: Config.Recall may
// call Recalled before it returns, and revoke and give take the mu of other clients.
//
// A client whose removal the journal cannot record is not ended. The request is delayed instead:
// after a restart that client could reclaim what the request is about to change.
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

// Recalled ends the CB_RECALL of r. acknowledged says that the client will return the delegation.
// If not, the next request that conflicts makes the server send CB_RECALL again. OK does not end
// the delegation: a client may answer OK and never send DELEGRETURN. Its delegation is revoked
// after until.
func (s *Server) Recalled(r *Recall, acknowledged bool) {
	sh := s.shardOfFile(r.File)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.d.calling, r.d.Acknowledged = false, acknowledged
}

// FreeLease is Free for a store that wants its lease of the file back. From the first call on, a
// client that goes on writing has two leases.
func (s *Server) FreeLease(now time.Time, f lock.File) bool {
	free := s.Free(now, f, nil, true)
	if !free {
		sh := s.shardOfFile(f)
		sh.mu.Lock()
		defer sh.mu.Unlock()
		last := now.UnixNano() + leaseExtensions*int64(s.cfg.Lease)
		for _, d := range sh.deleg.m[f] {
			if d.Recalled {
				atomic.StoreInt64(&d.Last, min(d.Last, last))
			}
		}
	}
	return free
}

// Free recalls the delegations that conflict with reading a file or, if change is true, with
// changing it. by is a client of version 4, or nil. It reports false if there are any: the request
// is answered DELAY.
//
// Without delegations, which is the common case, Free reads one counter and takes no lock. READs of
// version 3 and READs with a special stateid call it.
func (s *Server) Free(now time.Time, f lock.File, by *Client, change bool) bool {
	return s.free(now, f, by, change, 0)
}

// Undelegated reports whether no delegation conflicts, so that Free would return true. It neither
// recalls nor revokes anything: a transport's loop must not wait for the journal or for the locks
// of other clients.
func (s *Server) Undelegated(f lock.File, by *Client, change bool) bool {
	if s.delegs.all.Load() == 0 || !change && s.delegs.writes.Load() == 0 {
		return true
	}
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, d := range sh.deleg.m[f] {
		if d.c != by && (change || d.Write) {
			return false
		}
	}
	return true
}

func (s *Server) free(now time.Time, f lock.File, by *Client, change bool, kinds uint32) bool {
	if s.delegs.all.Load() == 0 || !change && s.delegs.writes.Load() == 0 {
		return true
	}
	sh := s.shardOfFile(f)
	for {
		sh.mu.Lock()
		k := sh.clash(now, f, by, change, kinds, s.cfg.Lease)
		sh.mu.Unlock()
		if !k.any() {
			return true
		}
		if !s.settle(&k) {
			return false
		}
	}
}

// BeginChange is Free for a change without an open, such as SETATTR or REMOVE. From then on, until
// EndChange, no delegation of the file is granted: it would be granted with attributes that are
// about to change. The caller calls EndChange if held is true. ok is the result of Free.
//
// The count goes up before Free looks. In the other order another client could get a delegation
// between the two.
func (s *Server) BeginChange(now time.Time, f lock.File, by *Client) (held, ok bool) {
	return s.begin(now, f, by, 0)
}

func (s *Server) begin(now time.Time, f lock.File, by *Client, kinds uint32) (held, ok bool) {
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
	if !s.free(now, f, by, true, kinds) {
		s.EndChange(f)
		return false, false
	}
	return true, true
}

// EndChange ends a BeginChange whose held was true. A missing call keeps the file from
// being delegated until the server ends; a second one could end the change of another request.
func (s *Server) EndChange(f lock.File) {
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.deleg.changing[f]--; sh.deleg.changing[f] <= 0 {
		delete(sh.deleg.changing, f)
	}
}
