package nfs4

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// The model says which statuses a server may answer with, and what is open, locked and delegated
// afterwards. It is written from RFC 7530 and RFC 8881: lists that are searched, no tables, no
// counters.

const modelLease = 90 * time.Second

// edges are where ranges of locks begin and end. A file is so many segments, the last of which is
// one byte.
var edges = []uint64{0, 1, 2, 5, 1 << 32, 1<<63 - 1, 1 << 63, 1<<64 - 3, 1<<64 - 2, 1<<64 - 1}

// Kinds of stateids.
const (
	anOpen = iota
	aLock
	aDelegation
)

// modelState is what a stateid stands for.
type modelState struct {
	kind             int
	id               state.Stateid
	file             int
	owner            string
	access, deny     uint32
	accessed, denied [4]bool     // by the OPENs that made it
	open             *modelState // of a lock
	write            bool        // of a delegation
	recalled         time.Time   // somebody was told to wait for it
	revoked, gone    bool
	reclaimed        bool
	segs             []uint8 // of a lock before a restart
}

// holder is a lock-owner, of a client of version 4 or, below zero, of a host with version 3.
type holder struct {
	client int
	owner  string
}

// modelOwner is an open-owner or a lock-owner of version 4.0.
type modelOwner struct {
	seq       uint32
	opens     bool // it is an open-owner
	confirmed bool
	used      time.Time
	last      []byte // the compound with its last request
	answer    []byte
	states    []*modelState // that last needs
}

// modelClient is a client, as it knows itself.
type modelClient struct {
	n         int
	minor     uint32
	owner     string
	verf      byte
	id        uint64 // 0: none is confirmed
	pending   uint64 // not confirmed yet
	confirm   [8]byte
	creates   uint32 // sequence of the last CREATE_SESSION
	sessions  []*modelSession
	complete  bool
	seen      time.Time
	states    []*modelState
	past      []state.Stateid // of earlier records of it
	before    []*modelState   // what it had before the restart
	owners    map[string]*modelOwner
	lockers   map[string]*modelOwner
	xid, conn uint32
	calls     []call40
	back      *callee
}

type modelSession struct {
	id    state.SessionID
	slots [4]modelSlot
}

type modelSlot struct {
	seq     uint32
	request []byte
	reply   []byte
	cache   bool
	uid     uint32
}

// call40 is a call of version 4.0 that is executed once.
type call40 struct {
	xid           uint32
	request, want []byte
}

type model struct {
	now      time.Time
	until    time.Time       // of the grace period
	stuck    bool            // its end could not be written down
	known    map[string]bool // who may reclaim in it
	finished map[string]bool // who has said in it that he is done: also a client that has started anew since
	clients  []*modelClient
	files    []lock.File
	held     []map[holder][]uint8 // by file and segment: 1 shared, 2 exclusive
	current  state.Stateid
}

func (m *model) expired(c *modelClient) bool { return m.now.Sub(c.seen) > modelLease }

// graceSure reports whether the grace period cannot be over: a client that may reclaim has not said
// that it is done.
func (m *model) graceSure() bool {
	if !m.now.Before(m.until) {
		return false
	}
	for owner := range m.known {
		if !m.finished[owner] {
			return true
		}
	}
	return false
}

// graceMaybe reports whether it may go on.
func (m *model) graceMaybe() bool { return (m.stuck || m.now.Before(m.until)) && len(m.known) > 0 }

// lost takes everything from a client.
func (m *model) lost(c *modelClient) {
	for _, s := range c.states {
		c.past = append(c.past, s.id)
	}
	c.past = c.past[max(0, len(c.past)-20):]
	for f := range m.held {
		for h := range m.held[f] {
			if h.client == c.n {
				delete(m.held[f], h)
			}
		}
	}
	c.id, c.states, c.complete, c.creates, c.sessions, c.calls = 0, nil, false, 0, nil, nil
	c.owners, c.lockers = make(map[string]*modelOwner), make(map[string]*modelOwner)
}

// live are the states of a kind that a client has.
func (c *modelClient) live(kind int) (list []*modelState) {
	for _, s := range c.states {
		if s.kind == kind && !s.gone && !s.revoked {
			list = append(list, s)
		}
	}
	return list
}

func (c *modelClient) has(kind int, owner string, file int) *modelState {
	for _, s := range c.live(kind) {
		if s.owner == owner && s.file == file {
			return s
		}
	}
	return nil
}

// unconfirmed reports whether a state is of an open-owner of version 4.0 that is not confirmed.
func (c *modelClient) unconfirmed(s *modelState) bool {
	if s.kind == aLock {
		s = s.open
	}
	return c.minor == 0 && s.kind == anOpen && !c.owners[s.owner].confirmed
}

// find is what a stateid stands for, or what is wrong with it (RFC 8881 section 8.2.4, RFC 7530
// section 9.1.4.4).
func (m *model) find(c *modelClient, boot uint32, id state.Stateid) (*modelState, []nfs.Status) {
	if c.minor > 0 && id == state.Current {
		id = m.current
	}
	for _, s := range c.states {
		if s.id.Other != id.Other {
			continue
		}
		d := int32(id.Seq - s.id.Seq)
		switch {
		case s.gone:
			return nil, []nfs.Status{nfs.ErrBadStateID}
		case s.revoked:
			return s, []nfs.Status{nfs.ErrDelegRevoked}
		case id.Seq == 0 && c.minor > 0, d == 0:
			return s, nil
		case d < 0:
			return s, []nfs.Status{nfs.ErrOldStateID}
		}
		return s, []nfs.Status{nfs.ErrBadStateID}
	}
	if c.minor == 0 && !isSpecial(id) {
		if words(id.Other[:])[0] != boot {
			return nil, []nfs.Status{nfs.ErrStaleStateID}
		}
		return nil, []nfs.Status{nfs.ErrBadStateID, nfs.ErrExpired}
	}
	return nil, []nfs.Status{nfs.ErrBadStateID}
}

func isSpecial(id state.Stateid) bool {
	return id.Other == state.Anonymous.Other || id.Other == state.Bypass.Other
}

// of is find for an operation on a file that wants a stateid of a kind.
func (m *model) of(c *modelClient, boot uint32, id state.Stateid, kind, file int) (*modelState, []nfs.Status) {
	s, errs := m.find(c, boot, id)
	if s == nil {
		return nil, errs
	}
	if len(errs) > 0 && (s.kind != kind || s.file != file) {
		errs = append(errs, nfs.ErrBadStateID)
	}
	if s.kind != kind || s.file != file || kind != aDelegation && c.unconfirmed(s) {
		return nil, append(errs, nfs.ErrBadStateID)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return s, nil
}

// shareConflict reports whether an open stands against one for access that denies deny: that of a
// client that is there (live), or of one that is silent. An owner's own opens count like others
// (RFC 8881 section 9.7).
func (m *model) shareConflict(by *modelClient, file int, access, deny uint32) (live bool) {
	for _, c := range m.clients {
		for _, o := range c.live(anOpen) {
			if o.file == file && (access&o.deny != 0 || deny&o.access != 0) && (c == by || !m.expired(c)) {
				live = true
			}
		}
	}
	return live
}

// delegations of others that stand against reading, or changing, a file. must: somebody has to wait
// for one; may: the server may have taken it away.
func (m *model) delegations(by *modelClient, file int, change bool) (list []*modelState, must, may bool) {
	for _, c := range m.clients {
		for _, d := range c.live(aDelegation) {
			if c == by || d.file != file || !change && !d.write || m.expired(c) {
				continue
			}
			list = append(list, d)
			// A client that goes on writing keeps it for four leases.
			if d.recalled.IsZero() || m.now.Sub(d.recalled) <= modelLease {
				must = true
			} else if m.now.Sub(d.recalled) <= 4*modelLease {
				may = true
			}
		}
	}
	return list, must, may || must
}

// segments are those of a range; ok is false if there is no such range (RFC 8881 section 18.10.3).
func segments(off, n uint64) (from, to int, ok bool) {
	if n == 0 || n != 1<<64-1 && n > 1<<64-1-off {
		return 0, 0, false
	}
	from = slices.Index(edges, off)
	if n == 1<<64-1 {
		return from, len(edges), true
	}
	to = slices.Index(edges, off+n)
	if from < 0 || to < 0 {
		panic(fmt.Sprintf("%d+%d", off, n))
	}
	return from, to, true
}

// lockConflict reports whether a lock of somebody who is there stands against one.
func (m *model) lockConflict(who holder, file, from, to int, exclusive bool) bool {
	for h, segs := range m.held[file] {
		if h == who || h.client >= 0 && h.client != who.client && m.expired(m.clients[h.client]) {
			continue
		}
		for _, s := range segs[from:to] {
			if s == 2 || s == 1 && exclusive {
				return true
			}
		}
	}
	return false
}

func (m *model) setLock(who holder, file, from, to int, kind uint8) {
	segs := m.held[file][who]
	if segs == nil {
		segs = make([]uint8, len(edges))
		m.held[file][who] = segs
	}
	for i := from; i < to; i++ {
		segs[i] = kind
	}
	if !slices.ContainsFunc(segs, func(k uint8) bool { return k != 0 }) {
		delete(m.held[file], who)
	}
}

// drop ends a state, and an open's locks with it.
func (m *model) drop(c *modelClient, s *modelState) {
	s.gone = true
	switch s.kind {
	case anOpen:
		for _, l := range c.live(aLock) {
			if l.open == s {
				m.drop(c, l)
			}
		}
	case aLock:
		delete(m.held[s.file], holder{c.n, s.owner})
		if c.minor == 0 && !slices.ContainsFunc(c.live(aLock), func(l *modelState) bool { return l.owner == s.owner }) {
			delete(c.lockers, s.owner)
		}
	}
}

// mayDowngrade: the modes are a union of some of those that were opened (RFC 8881 section 18.18.3).
func mayDowngrade(opened [4]bool, want uint32) bool {
	var union uint32
	for mode := range uint32(4) {
		if opened[mode] && mode&^want == 0 {
			union |= mode
		}
	}
	return union == want
}

// agree compares what there is with what has to be.
func (m *model) agree(s *state.Server, locks *lock.Table) error {
	var want state.Counts
	for _, c := range m.clients {
		want.Opens += len(c.live(anOpen))
		want.Locks += len(c.live(aLock))
		want.Delegations += len(c.live(aDelegation))
		want.Sessions += len(c.sessions)
		for i, o := range c.live(anOpen) {
			for _, d := range m.clients {
				for j, p := range d.live(anOpen) {
					if (c != d || i != j) && o.owner != p.owner && o.file == p.file && (o.access&p.deny != 0 || o.deny&p.access != 0) {
						return fmt.Errorf("file %d is open twice, by client %d (%d, denied %d) and client %d (%d, denied %d)", o.file,
							c.n, o.access, o.deny, d.n, p.access, p.deny)
					}
				}
				if c == d {
					continue
				}
				for _, p := range d.live(aDelegation) {
					if o.file == p.file && (p.write || o.access&state.Write != 0) && !m.expired(c) && !m.expired(d) {
						return fmt.Errorf("client %d has file %d open and client %d has a delegation of it", c.n, o.file, d.n)
					}
				}
			}
		}
	}
	if got := s.Counts(); got.Opens != want.Opens || got.Locks != want.Locks || got.Delegations != want.Delegations ||
		got.Sessions != want.Sessions {
		return fmt.Errorf("%+v instead of %+v", got, want)
	}
	// Segment by segment: what the server holds, and nothing else.
	have := make([]map[string][]uint8, len(m.files))
	for i := range have {
		have[i] = make(map[string][]uint8)
	}
	for _, l := range locks.List(1 << 20) {
		f := slices.Index(m.files, l.File)
		who := l.Owner.Client + "/" + l.Owner.ID
		if have[f][who] == nil {
			have[f][who] = make([]uint8, len(edges))
		}
		kind := uint8(1)
		if l.Exclusive {
			kind = 2
		}
		for i, at := range edges {
			if l.Start > at || at > l.End {
				continue
			}
			if have[f][who][i] != 0 || i+1 < len(edges) && l.End < edges[i+1]-1 {
				return fmt.Errorf("file %d: odd lock %+v", f, l)
			}
			have[f][who][i] = kind
		}
	}
	for f := range m.held {
		if len(m.held[f]) != len(have[f]) {
			return fmt.Errorf("file %d: %v holds %v instead of %v", f, "the server", have[f], m.held[f])
		}
		for h, segs := range m.held[f] {
			if got := have[f][m.lockName(h)]; !bytes.Equal(got, segs) {
				return fmt.Errorf("file %d: %v holds %v instead of %v", f, h, got, segs)
			}
		}
	}
	return nil
}

// lockName is a holder's name in the table of locks.
func (m *model) lockName(h holder) string {
	if h.client < 0 {
		return fmt.Sprintf("10.0.0.1 host%d/\x00\x00\x00\x01%s", -h.client, h.owner)
	}
	return fmt.Sprintf("nfs4 %016x/%s", m.clients[h.client].id, h.owner)
}
