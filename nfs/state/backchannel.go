package state

import (
	"slices"
	"sync"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Backchannel is the direction of a session in which the server calls (RFC 8881
// section 2.10.3.1): the connections for it, newest last, and the slots. It sends
// nothing. Its methods may be called from any goroutine; its lock is taken last.
//
// A request whose reply was lost is sent again as it was, on another connection,
// before its slot is used for anything else (section 2.10.6.2).
type Backchannel struct {
	mu      sync.Mutex
	attr    Channel
	program uint32
	cred    *rpc.Cred
	paths   []rpc.Caller
	slots   []backSlot
	had     bool // there was a connection
	proven  bool // an answer came since the oldest connection of now was there
	probing bool
	fault   bool // the client does not know the session, or no slot is left
}

type backSlot struct {
	seq   uint32 // of the last request that was executed
	state backSlotState
	what  any
}

type backSlotState uint8

const (
	backFree backSlotState = iota
	backBusy
	backLost // to be sent again
	backDead // client and server do not agree on its sequence
)

// What a recall takes: bytes of a request, and operations.
const (
	BackRequestMin = 512
	BackOpsMin     = 2
)

// Bounds of a backchannel.
const (
	backSlotsMax = 8
	pathsMax     = 16
)

// NewBackchannel makes one without connections. attr is as granted; program and cred
// are what the client wants to be called by.
func NewBackchannel(attr Channel, program uint32, cred *rpc.Cred) *Backchannel {
	slots := make([]backSlot, min(attr.MaxSlots, backSlotsMax))
	return &Backchannel{attr: attr, program: program, cred: cred, slots: slots}
}

// Usable reports whether the client granted enough for a recall.
func (b *Backchannel) Usable() bool {
	return len(b.slots) > 0 && b.attr.MaxRequest >= BackRequestMin && b.attr.MaxOps >= BackOpsMin
}

// Set is BACKCHANNEL_CTL (section 18.33).
func (b *Backchannel) Set(program uint32, cred *rpc.Cred) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.program, b.cred = program, cred
}

// Bind adds a connection.
func (b *Backchannel) Bind(path rpc.Caller) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prune(path)
	if len(b.paths) == pathsMax {
		b.paths = append(b.paths[:0], b.paths[1:]...)
	}
	b.paths = append(b.paths, path)
	b.had, b.fault = true, false
}

// Unbind takes a connection away.
func (b *Backchannel) Unbind(path rpc.Caller) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prune(path)
}

// prune forgets connections that have ended, and one other. Call with mu held.
func (b *Backchannel) prune(other rpc.Caller) {
	kept := b.paths[:0]
	for _, p := range b.paths {
		if p != other && p.Alive() {
			kept = append(kept, p)
		}
	}
	clear(b.paths[len(kept):])
	if b.paths = kept; len(kept) == 0 {
		b.proven = false
	}
}

// lost reports whether there is a request to be sent again.
func (b *Backchannel) lost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.slots, func(k backSlot) bool { return k.state == backLost })
}

// Lost are the sessions with callbacks that are to be sent again.
func (s *Server) Lost() (list []*Session) {
	for _, c := range s.sortedClients() {
		c.mu.Lock()
		for _, x := range c.sessions {
			if x.Back != nil && x.Back.lost() {
				list = append(list, x)
			}
		}
		c.mu.Unlock()
	}
	return list
}

// BackStatus is how a backchannel is.
type BackStatus struct {
	Live   bool // there is a connection
	Proven bool // and an answer came
	Down   bool // there was one, and there is none now
	Fault  bool
}

// Status looks at the connections.
func (b *Backchannel) Status() BackStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status()
}

func (b *Backchannel) status() BackStatus {
	for _, p := range b.paths {
		if !p.Alive() {
			b.prune(nil)
			break
		}
	}
	live := len(b.paths) > 0
	return BackStatus{Live: live, Proven: live && b.proven && !b.fault, Down: b.had && !live, Fault: b.fault}
}

// Probe reports, once, that somebody should find out whether the client answers.
func (b *Backchannel) Probe() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status()
	if !s.Live || s.Proven || s.Fault || b.probing {
		return false
	}
	b.probing = true
	return true
}

// Attempt is a request to be sent.
type Attempt struct {
	Path     rpc.Caller
	Program  uint32
	Cred     *rpc.Cred
	Slot     uint32
	Sequence uint32
	Highest  uint32 // slot in use
	What     any    // may be one of before, whose reply was lost
}

// Begin takes a slot for a request, or for one whose reply was lost; then the caller
// sends that and begins again. It reports false if there is nothing to send it by.
// Whoever sends it calls End. What is compared: it must be comparable.
func (b *Backchannel) Begin(what any) (a Attempt, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.status().Live {
		return a, false
	}
	free := -1
	for i := range b.slots {
		k := &b.slots[i]
		switch k.state {
		case backLost:
			return b.attempt(i), true
		case backFree:
			if free < 0 {
				free = i
			}
		}
	}
	if free < 0 {
		return a, false
	}
	b.slots[free].what = what
	return b.attempt(free), true
}

func (b *Backchannel) attempt(i int) Attempt {
	k := &b.slots[i]
	k.state = backBusy
	a := Attempt{
		Path: b.paths[len(b.paths)-1], Program: b.program, Cred: b.cred, Slot: uint32(i), Sequence: k.seq + 1, What: k.what,
	}
	for j := range b.slots {
		if b.slots[j].state == backBusy {
			a.Highest = uint32(j)
		}
	}
	return a
}

// Outcome is what became of an attempt.
type Outcome uint8

// Outcomes.
const (
	// Executed: the client has used up the sequence number.
	Executed Outcome = iota
	// Refused: it has not, and answers.
	Refused
	// Lost: it is not known.
	Lost
	// Misordered: the client takes the sequence number for a wrong one.
	Misordered
	// Unknown: the client does not know the session.
	Unknown
)

// End ends an attempt. If the client did not answer, the connection is no longer used.
func (b *Backchannel) End(a *Attempt, o Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	k := &b.slots[a.Slot]
	k.state = backFree
	switch o {
	case Executed:
		k.seq++
		b.proven = true
	case Refused:
		b.proven = true
	case Lost:
		k.state = backLost
		b.prune(a.Path)
		return
	case Misordered:
		k.state = backDead
		alive := false
		for i := range b.slots {
			alive = alive || b.slots[i].state != backDead
		}
		b.fault = b.fault || !alive
	case Unknown:
		b.fault = true
	}
	k.what = nil
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

// Bind adds a connection to a session's backchannel.
func (s *Server) Bind(x *Session, path rpc.Caller) {
	x.Back.Bind(path)
	s.delegs.possible.Store(true)
}
