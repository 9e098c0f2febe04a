package state

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Delegate are the arguments of a delegation: for an OPEN of the file (RFC 8881 section 18.16.3),
// or for WANT_DELEGATION without an open (section 18.49).
type Delegate struct {
	File  lock.File
	Write bool
	// Reclaim: the client had it before the server's restart.
	Reclaim bool
	Origin  Origin
	// Change is the file's change attribute before the grant. It counts for write delegations only.
	Change uint64
	// Times: the client is to keep the times of the file, too (RFC 9754 section 5). Accessed and
	// Modified are the times before the grant, in Unix nanoseconds. All three count for write
	// delegations only.
	Times              bool
	Accessed, Modified int64
	// Dir: the file is a directory; see DelegateDir. Notices are kinds of changes of its entries.
	Dir     bool
	Notices uint32
	// By is the turn of the OPEN, in version 4.0; nil in later versions.
	By *Turn
}

// Delegated is a delegation that was granted. If none was, only Crowded has a meaning.
type Delegated struct {
	ID    Stateid
	Write bool
	Times bool
	// Crowded: there is hardly room for more delegations; see RecallAny.
	Crowded bool
}

// WhyNot says why no delegation was given.
type WhyNot uint8

// Reasons, with the numbers of why_no_delegation4 (RFC 8881 section 18.16.2):
//
//	0  WND4_NOT_WANTED                  here Given, which no reply carries
//	1  WND4_CONTENTION                  another open, lock, lease or delegation, or a recent recall
//	2  WND4_RESOURCE                    no room, or a client that cannot be called
//	3  WND4_NOT_SUPP_FTYPE              package nfs4 decides
//	4  WND4_WRITE_DELEG_NOT_SUPP_FTYPE  package nfs4 decides
//	5  WND4_NOT_SUPP_UPGRADE            the client has a read delegation
//	6  WND4_NOT_SUPP_DOWNGRADE          the client has a write delegation
//	7  WND4_CANCELLED                   package nfs4 decides
const (
	Given         WhyNot = 0 // there is one
	WhyContention WhyNot = 1
	WhyResource   WhyNot = 2
	WhyUpgrade    WhyNot = 5 // the client has a read delegation
	WhyDowngrade  WhyNot = 6 // the client has a write delegation
)

// Delegate grants the client a delegation of a file that it has open, unless an open, lock,
// reservation or delegation of another conflicts. It is granted only to a client that has answered
// a callback: one that cannot be called would block others for a lease (RFC 8881 section 10.2). A
// reclaim is excepted, as the client may not have been called since the restart.
//
// What excludes a delegation (RFC 8881 section 10.4):
//
//	                               read    write
//	open of another client         write   any
//	share reservation of others    write   any     also one that denies reading
//	byte-range lock of others      write   any     of clients, other protocols and host programs
//	delegation of another client   write   any
//	change without an open (BeginChange)  any     any
//	recall in the last 30 seconds  any     any     not for a reclaim
//
// A refusal is no error: the OPEN succeeds without a delegation.
func (c *Client) Delegate(now time.Time, a *Delegate) (res Delegated, why WhyNot) {
	whole := lock.Lock{Owner: lock.Owner{Client: c.name}, End: lock.ToEnd, Exclusive: a.Write}
	// The client locks a delegated file without calling the server. So it gets no delegation while
	// a lock of the host conflicts. The host is asked before any lock of this package is taken.
	if !a.Dir && c.s.delegs.possible.Load() && c.s.cfg.Locks.OnHost() {
		if _, ok := c.s.cfg.Locks.Probe(a.File, whole); !ok {
			return res, WhyContention
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { res.Crowded = c.crowded() }()
	s := c.s
	if c.dead || len(c.delegs) >= s.cfg.ClientDelegations || c.full(0) || s.delegs.all.Load() >= int64(s.cfg.Delegations) {
		return res, WhyResource
	}
	switch d := c.delegs[a.File]; {
	case d != nil && a.Write && !d.Write:
		return res, WhyUpgrade
	case d != nil && !a.Write && d.Write:
		return res, WhyDowngrade
	case d != nil || c.revoked > 0:
		// One delegation of a file for each client: a second stateid would have to be recalled,
		// too. A client that ignores its revoked stateids would collect them without end.
		return res, WhyResource // the client has one already, or has to free a revoked one first
	}
	live, proven := c.calledBack()
	if !proven && (!a.Reclaim || !live) {
		return res, WhyResource
	}
	if o := a.By; o != nil && !o.owner.Confirmed {
		return res, WhyResource // the OPEN may be an old request of the network; see seqid.go
	}
	d := &deleg{c: c, delegRecord: delegRecord{
		File: a.File, Write: a.Write, Origin: a.Origin, Change: a.Change, Given: now.UnixNano(), Seq: 1,
		Times: a.Write && a.Times, Accessed: a.Accessed, Modified: a.Modified, Dir: a.Dir, Notices: a.Notices,
	}}
	// From here on the shard's lock is held, so that no open, reservation or change of the file can
	// come between the checks and the grant.
	sh := s.shardOfFile(a.File)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if t, ok := sh.deleg.recent[a.File]; ok && now.UnixNano()-t > int64(recentTime) {
		delete(sh.deleg.recent, a.File)
	} else if ok && !a.Reclaim {
		return res, WhyContention
	}
	if sh.deleg.changing[a.File] > 0 {
		return res, WhyContention
	}
	// Locks of other clients and protocols, also such as the host did not take.
	if _, ok := s.cfg.Locks.Test(a.File, whole); !ok {
		return res, WhyContention
	}
	for _, o := range sh.m[a.File] {
		if o.c != c && (a.Write || o.Share.Access&Write != 0) {
			return res, WhyContention
		}
	}
	if f := sh.foreign[a.File]; len(f) > 0 && (a.Write || sh.foreignDeny(a.File, Read, Write)) {
		return res, WhyContention
	}
	for _, o := range sh.deleg.m[a.File] {
		if a.Write || o.Write {
			return res, WhyContention
		}
	}
	d.Num = c.number(d)
	c.addDeleg(sh, d)
	s.delegs.given.Add(1)
	res.ID, res.Write, res.Times = c.stateid(d.Num, d.Seq), d.Write, d.Times
	return res, Given
}

// addDeleg enters a delegation that has its number. Call with mu and the shard's lock held.
func (c *Client) addDeleg(sh *fileShard, d *deleg) {
	if c.delegs == nil {
		c.delegs = make(map[lock.File]*deleg)
	}
	c.delegs[d.File] = d
	if sh.deleg.m == nil {
		sh.deleg.m = make(map[lock.File][]*deleg)
	}
	sh.deleg.m[d.File] = append(sh.deleg.m[d.File], d)
	c.s.delegs.all.Add(1)
	if d.Write {
		c.s.delegs.writes.Add(1)
	}
	if d.Dir {
		c.s.delegs.dirs.Add(1)
	}
}

// unshareDeleg removes a delegation from its file and wakes those who wait for its end (Watch).
// Call with the client's mu held. A second call for one delegation does nothing, so the lease and
// the pin are given up once.
func (s *Server) unshareDeleg(d *deleg) {
	sh := s.shardOfFile(d.File)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	list := sh.deleg.m[d.File]
	i := slices.Index(list, d)
	if i < 0 {
		return
	}
	if d.leave != nil {
		d.leave() // before the watchers continue: they may open the file by the host's kernel
	}
	if d.Pinned {
		s.cfg.Unpin(d.File)
	}
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(sh.deleg.m, d.File)
	} else {
		sh.deleg.m[d.File] = list
	}
	if ch := sh.deleg.watch[d.File]; ch != nil {
		close(ch)
		delete(sh.deleg.watch, d.File)
	}
	s.delegs.all.Add(-1)
	if d.Write {
		s.delegs.writes.Add(-1)
	}
	if d.Dir {
		s.delegs.dirs.Add(-1)
	}
}

// Leased hands over the lease of the host's kernel for a delegation that was just granted. The
// caller owns the lease until this call, and the delegation owns it from then on. When the
// delegation ends, leave is called once; if it has ended already, Leased calls leave at once. Locks
// are held then, so leave must not wait, nor call this package.
//
// The delegation can have ended before this call, and before its client knew of it: Evict, for
// example, ends all state of a client at any time.
func (c *Client) Leased(id Stateid, f lock.File, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d, st := c.findDeleg(id, f); st == nfs.OK {
		d.leave = leave
		return
	}
	leave()
}

// Pinned says that the caller has pinned the file of a delegation that was just given. The
// delegation owns the pin from then on. If the delegation has ended, or owns a pin already, Pinned
// gives this pin back at once.
func (c *Client) Pinned(id Stateid, f lock.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d, st := c.findDeleg(id, f); st == nfs.OK && !d.Revoked && !d.Pinned {
		d.Pinned = true
		return
	}
	c.s.cfg.Unpin(f)
}

// dropDeleg ends a delegation, revoked or not, and makes its stateid unknown: a later use is
// answered NFS4ERR_BAD_STATEID. Call with mu held.
func (c *Client) dropDeleg(d *deleg) {
	if d.Revoked {
		c.revoked--
		c.anyRevoked.Store(c.revoked > 0)
	} else {
		c.s.unshareDeleg(d)
		delete(c.delegs, d.File)
	}
	delete(c.states, d.Num)
	c.charge(-costOf(d))
}

// revoke ends a delegation against the client's will. Its stateid stays, so that the client learns
// of it: by a flag of SEQUENCE and by NFS4ERR_DELEG_REVOKED, until FREE_STATEID (RFC 8881 sections
// 10.4.6 and 18.38). What the client had cached and not written is lost (section 10.5.1).
//
// BAD_STATEID in place of DELEG_REVOKED would make the Linux client forget the delegation without
// FREE_STATEID. The flag of SEQUENCE then stays set, and its state manager runs again and again.
//
// The delegation may have ended since clash found it, with no lock held meanwhile: then this does
// nothing. Memory of a revoked one stays charged to the client, and DESTROY_CLIENTID is answered
// NFS4ERR_CLIENTID_BUSY until the client frees it. Call with no lock held.
func (c *Client) revoke(d *deleg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || d.Revoked || c.delegs[d.File] != d {
		return
	}
	if c.v40 != nil {
		// Version 4.0 has neither FREE_STATEID nor the flag: the client learns of it by
		// BAD_STATEID.
		c.dropDeleg(d)
		c.s.delegs.revoked.Add(1)
		return
	}
	c.s.unshareDeleg(d)
	delete(c.delegs, d.File)
	d.Revoked = true
	c.revoked++
	c.anyRevoked.Store(true)
	c.s.delegs.revoked.Add(1)
}

// ReturnDelegation is DELEGRETURN (RFC 8881 section 18.6.3, RFC 7530 section 16.6). A client may
// return a delegation that nobody has recalled. Statuses:
//
//	OK            it has ended, and its watchers try again
//	BAD_STATEID   no delegation of this client, of another file, or returned before
//	OLD_STATEID   seqid before the current one
//	STALE_STATEID from an earlier start of the server
//	DELEG_REVOKED it was revoked; the client sends FREE_STATEID (not in version 4.0)
//	EXPIRED       the client has ended meanwhile
func (c *Client) ReturnDelegation(id Stateid, f lock.File) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, st := c.findDeleg(id, f)
	if st == nfs.OK {
		c.dropDeleg(d)
	}
	return st
}

// HasDelegation checks the stateid of an OPEN with CLAIM_DELEGATE_CUR or CLAIM_DELEG_CUR_FH: the
// client opened the file locally before, by the delegation. The Linux client sends such OPENs
// before it returns a recalled delegation, so they must be accepted while a recall is under way.
func (c *Client) HasDelegation(id Stateid, f lock.File) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, st := c.findDeleg(id, f)
	return st
}

// findDeleg is find for the delegation of a file.
func (c *Client) findDeleg(id Stateid, f lock.File) (*deleg, nfs.Status) {
	what, st := c.find(id)
	if st != nfs.OK {
		return nil, st
	}
	d, ok := what.(*deleg)
	if !ok || d.File != f {
		return nil, nfs.ErrBadStateID
	}
	return d, nfs.OK
}

// io is IO by a delegation. Each WRITE after a recall, when the client writes back its cache, gives
// it another lease to return the delegation, up to Last. A READ does not, as it writes nothing
// back. READ by a write delegation is allowed, WRITE by a read delegation is NFS4ERR_OPENMODE. Call
// with the client's mu held.
func (d *deleg) io(now time.Time, f lock.File, write bool) nfs.Status {
	switch {
	case d.File != f:
		return nfs.ErrBadStateID
	case write && !d.Write:
		return nfs.ErrOpenMode
	}
	if u := d.until.Load(); write && u != 0 {
		d.until.Store(max(u, min(now.UnixNano()+int64(d.c.s.cfg.Lease), atomic.LoadInt64(&d.Last))))
	}
	return nfs.OK
}
