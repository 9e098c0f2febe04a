package state

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// A delegation is a promise (RFC 8881 section 10.4): while a client has a file for
// reading nobody else changes it, while it has it for writing nobody else looks at it
// either. Whoever wants to has to come again until the client, which is called, has
// returned it. If it does not within a lease, the delegation is taken away.
//
// None is given while somebody is in the middle of a change without an open (Hold),
// nor soon after one of the same file was in the way.

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

// Recall is a delegation that its client is to be asked for.
type Recall struct {
	Client *Client
	ID     Stateid
	File   lock.File
	Origin Origin

	d *deleg
}

const (
	// again is how long to wait before a client that did not answer is called again.
	again = time.Second
	// patience is for how many leases a client that goes on writing keeps what it was
	// asked for.
	patience = 4
	// coolMax bounds the files of a shard that are not delegated for a while.
	coolMax = 256
	// coolTime is how long that is.
	coolTime = 30 * time.Second
)

// delegShard is what a shard of the files knows of delegations.
type delegShard struct {
	m    map[lock.File][]*deleg
	held map[lock.File]int // changes that are being made
	cool map[lock.File]int64
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
		Now: int(n.all.Load()), Given: n.given.Load(), Recalls: n.recalls.Load(), Revoked: n.revoked.Load(), Waits: n.denied.Load(),
	}
}

// clash is what delegations of others mean for somebody.
type clash struct {
	wait   bool
	recall []Recall
	revoke []*deleg
	gone   []*Client
}

// any reports whether there is such a delegation.
func (k *clash) any() bool { return k.wait || len(k.revoke)+len(k.gone) > 0 }

// clash finds the delegations of a file that stand against reading, or anything else,
// by a client, or by somebody who is none. Call with the shard's lock held.
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
			d.Last = at + patience*int64(lease)
			d.until.Store(at + int64(lease)) // who sees this sees last
			sh.deleg.chill(f, at)
		}
		k.wait = true
		if !d.Acknowledged && !d.calling && (d.called == 0 || at-d.called > int64(again)) {
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
func (h *delegShard) chill(f lock.File, at int64) {
	if len(h.cool) >= coolMax {
		for g, t := range h.cool {
			if at-t > int64(coolTime) {
				delete(h.cool, g)
			}
		}
		if len(h.cool) >= coolMax {
			clear(h.cool)
		}
	}
	if h.cool == nil {
		h.cool = make(map[lock.File]int64)
	}
	h.cool[f] = at
}

// settle does what a clash asks for, without a lock held. It reports whether the way
// may be free now.
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

// Recalled says what became of a call to a client: whether it has heard of it. If not
// it will be called again as soon as somebody still wants the file.
func (s *Server) Recalled(r *Recall, told bool) {
	sh := s.shardOfFile(r.File)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.d.calling, r.d.Acknowledged = false, told
}

// Free asks for the delegations back that stand against reading a file, or changing
// it, by a client of version 4, or, nil, somebody else. It reports false if there are
// any: come again.
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

// Hold is Free for a change that no open announces: until Unhold, which must be called
// if held is true, nobody else gets a delegation.
func (s *Server) Hold(now time.Time, f lock.File, by *Client) (held, ok bool) {
	if !s.delegs.possible.Load() {
		return false, true
	}
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	if sh.deleg.held == nil {
		sh.deleg.held = make(map[lock.File]int)
	}
	sh.deleg.held[f]++
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
	if sh.deleg.held[f]--; sh.deleg.held[f] <= 0 {
		delete(sh.deleg.held, f)
	}
}

// Delegate are the arguments of a delegation, of a file that the client has open.
type Delegate struct {
	File  lock.File
	Write bool
	// Reclaim: the client had it before the server's restart.
	Reclaim bool
	Origin  Origin
	// Change is the file's change attribute.
	Change uint64
	// By is the turn of the OPEN, in version 4.0.
	By *Turn
}

// Delegated is a delegation that was given.
type Delegated struct {
	ID    Stateid
	Write bool
	// Crowded: there is hardly room for more, given or not; see Relief.
	Crowded bool
}

// WhyNot says why no delegation was given.
type WhyNot uint8

// Reasons, with the numbers of why_no_delegation4.
const (
	Given         WhyNot = 0 // there is one
	WhyContention WhyNot = 1
	WhyResource   WhyNot = 2
	WhyUpgrade    WhyNot = 5 // the client has it for reading
	WhyDowngrade  WhyNot = 6 // the client has it for writing
)

// Delegate gives the client a delegation if nothing stands against it.
func (c *Client) Delegate(now time.Time, a *Delegate) (res Delegated, why WhyNot) {
	// Its client takes locks without a word, also against those of the host.
	if c.s.delegs.possible.Load() && c.s.cfg.Locks.OnHost() {
		if _, ok := c.s.cfg.Locks.Probe(a.File, lock.Lock{Owner: lock.Owner{Client: c.name}, End: lock.ToEnd, Exclusive: a.Write}); !ok {
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
		return res, WhyResource // there is one already, or the client has one to give up first
	}
	live, proven := c.calledBack()
	if !proven && (!a.Reclaim || !live) {
		return res, WhyResource
	}
	if o := a.By; o != nil && !o.owner.Confirmed {
		return res, WhyResource // the open may be no open at all
	}
	d := &deleg{c: c, delegRecord: delegRecord{
		File: a.File, Write: a.Write, Origin: a.Origin, Change: a.Change, Given: now.UnixNano(), Seq: 1,
	}}
	sh := s.shardOfFile(a.File)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if t, ok := sh.deleg.cool[a.File]; ok && now.UnixNano()-t > int64(coolTime) {
		delete(sh.deleg.cool, a.File)
	} else if ok && !a.Reclaim {
		return res, WhyContention
	}
	if sh.deleg.held[a.File] > 0 {
		return res, WhyContention
	}
	// Its client takes locks without a word.
	if _, ok := s.cfg.Locks.Test(a.File, lock.Lock{Owner: lock.Owner{Client: c.name}, End: lock.ToEnd, Exclusive: a.Write}); !ok {
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
	res.ID, res.Write = c.stateid(d.Num, d.Seq), d.Write
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
}

// calledBack reports whether the client can be called. Call with mu held.
func (c *Client) calledBack() (live, proven bool) {
	if c.v40 != nil {
		return c.v40.path.usable()
	}
	for _, x := range c.sessions {
		if x.Back == nil || !x.Back.Usable() {
			continue
		}
		st := x.Back.Status()
		live, proven = live || st.Live, proven || st.Proven
	}
	return live, proven
}

// Backchannels are the sessions by which the client may be called, those that have
// answered first.
func (c *Client) Backchannels() (list []*Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.sessions {
		if x.Back == nil || !x.Back.Usable() {
			continue
		}
		switch st := x.Back.Status(); {
		case st.Proven:
			list = slices.Insert(list, 0, x)
		case st.Live:
			list = append(list, x)
		}
	}
	return list
}

// Notices is what a client should know (sr_status_flags, section 18.46.3).
type Notices struct {
	PathDown        bool // no session has a backchannel that had one
	SessionPathDown bool
	Fault           bool
	Revoked         bool
}

// Notices collects them for a session.
func (x *Session) Notices() (n Notices) {
	c := x.Client
	if x.Back != nil {
		st := x.Back.Status()
		n.SessionPathDown, n.Fault = st.Down, st.Fault
	}
	if !n.SessionPathDown && !c.anyRevoked.Load() {
		return n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.Revoked = c.revoked > 0
	if n.SessionPathDown {
		live, _ := c.calledBack()
		n.PathDown = !live
	}
	return n
}

// unshareDeleg takes a delegation out of the table of files. Call with the client's mu
// held.
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
		d.leave() // before those who wait for the file go on
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
}

// Leased has leave called when a delegation that was just given ends: once, with locks
// held, so that it must not wait nor come back here.
func (c *Client) Leased(id Stateid, f lock.File, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d, st := c.findDeleg(id, f); st == nfs.OK {
		d.leave = leave
		return
	}
	leave()
}

// Pinned says that the caller has pinned the file of a delegation that was just given.
func (c *Client) Pinned(id Stateid, f lock.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d, st := c.findDeleg(id, f); st == nfs.OK && !d.Revoked && !d.Pinned {
		d.Pinned = true
		return
	}
	c.s.cfg.Unpin(f)
}

// dropDeleg ends a delegation. Call with mu held.
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

// revoke takes a delegation away. Its stateid stays until the client frees it.
func (c *Client) revoke(d *deleg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || d.Revoked || c.delegs[d.File] != d {
		return
	}
	if c.v40 != nil {
		c.dropDeleg(d) // it has no way to give a stateid up that is of no more use
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

// ReturnDelegation is DELEGRETURN (section 18.6.3).
func (c *Client) ReturnDelegation(id Stateid, f lock.File) nfs.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, st := c.findDeleg(id, f)
	if st == nfs.OK {
		c.dropDeleg(d)
	}
	return st
}

// HasDelegation checks the stateid by which a client claims what it opened by itself.
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

// io is IO by a delegation. A client that was asked for it and is writing what it has
// kept gets more time. Call with the client's mu held.
func (d *deleg) io(now time.Time, f lock.File, write bool) nfs.Status {
	switch {
	case d.File != f:
		return nfs.ErrBadStateID
	case write && !d.Write:
		return nfs.ErrOpenMode
	}
	if u := d.until.Load(); write && u != 0 {
		d.until.Store(max(u, min(now.UnixNano()+int64(d.c.s.cfg.Lease), d.Last)))
	}
	return nfs.OK
}

// Bind adds a connection to a session's backchannel.
func (s *Server) Bind(x *Session, path rpc.Caller) {
	x.Back.Bind(path)
	s.delegs.possible.Store(true)
}

// Delegating reports whether there may be delegations.
func (s *Server) Delegating() bool { return s.delegs.possible.Load() }

// Watch returns a channel that is closed when a delegation of a file ends, or nil if
// there is none that its client was asked for.
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
