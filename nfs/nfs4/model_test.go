package nfs4

import (
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
	segs             []uint8  // of a lock before a restart
	notices          uint32   // of a directory's delegation: the kinds of changes
	told             []string // of these its client was notified
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
	data     [][]byte // of the files
	entries  randomDir
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
