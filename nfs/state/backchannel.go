package state

import (
	"slices"
	"sync"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Backchannel is the direction of a session in which the server calls (RFC 8881 section 2.10.3.1).
// It has the slots, and the connections that the client has bound. It sends nothing: the caller
// takes a slot by Begin, sends the request, and calls End with the outcome. Its methods may be
// called from any goroutine. Of all locks its own is taken last.
//
// The slots are those of the client's reply cache, with the server as the requester:
//
//	free --Begin--> busy --Executed------> free, sequence number + 1
//	                  |----Refused-------> free, same sequence number
//	                  |----Unknown-------> free, the backchannel has a fault
//	                  |----Misordered----> dead, for as long as the session exists
//	                  `----Lost----------> lost --Begin--> busy, the same request again
//
// The server cannot know whether the client has executed a lost request. So it sends the same
// request with the same sequence number, when it has a connection, before it uses the slot for
// anything else (RFC 8881 section 2.10.6.2). A client that never answers makes every slot lost;
// then Begin returns lost requests only, and a recall ends by revocation.
type Backchannel struct {
	mu      sync.Mutex
	attr    Channel
	program uint32       // RPC program of the callbacks, the client's choice
	cred    *rpc.Cred    // nil: AUTH_NONE
	paths   []rpc.Caller // connections, newest last; the transport owns them
	slots   []backSlot
	had     bool // the backchannel has had a connection
	proven  bool // the client has answered since the backchannel last had no connection
	probing bool // Probe has returned true and no request has ended since
	fault   bool // the client does not know the session, or no slot is left
}

// backSlot is a slot of the backchannel. what is the request of a busy or lost slot; in other
// states it is nil.
type backSlot struct {
	seq   uint32 // of the last request that was executed
	state backSlotState
	what  any
}

// backSlotState is the state of a slot, see Backchannel.

type backSlotState uint8

const (
	backFree backSlotState = iota
	backBusy
	backLost // to be sent again
	backDead // client and server do not agree on its sequence
)

// The least that a channel must allow for a recall: bytes of a request with a credential and the
// longest file handle, and the operations CB_SEQUENCE and CB_RECALL.
const (
	BackRequestMin = 512
	BackOpsMin     = 2
)

// Bounds of a backchannel. The client may offer more slots and bind more connections. The server
// uses the first slots, and drops the oldest connection for a new one: a client that binds without
// end makes no list grow.
const (
	backSlotsMax = 8
	pathsMax     = 16
)

// NewBackchannel makes a backchannel without connections. attr is the channel as granted. program
// and cred come from CREATE_SESSION: the RPC program and the credential of the callbacks.
func NewBackchannel(attr Channel, program uint32, cred *rpc.Cred) *Backchannel {
	slots := make([]backSlot, min(attr.MaxSlots, backSlotsMax))
	return &Backchannel{attr: attr, program: program, cred: cred, slots: slots}
}

// Usable reports whether the client granted enough for a recall.
func (b *Backchannel) Usable() bool {
	return len(b.slots) > 0 && b.attr.MaxRequest >= BackRequestMin && b.attr.MaxOps >= BackOpsMin
}

// Allows reports whether the client takes requests of n bytes.
func (b *Backchannel) Allows(n int) bool { return int64(b.attr.MaxRequest) >= int64(n) }

// Set is BACKCHANNEL_CTL (RFC 8881 section 18.33). Requests in flight have the earlier values.
// Later requests have the new values, and so have requests that are sent again.
func (b *Backchannel) Set(program uint32, cred *rpc.Cred) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.program, b.cred = program, cred
}

// Bind adds a connection, or makes it the newest one. It clears the fault: a client binds a
// connection again after SEQUENCE has returned SEQ4_STATUS_BACKCHANNEL_FAULT.
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

// Unbind removes a connection that BIND_CONN_TO_SESSION has restricted to the fore channel.
func (b *Backchannel) Unbind(path rpc.Caller) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prune(path)
}

// prune removes connections that have ended, and other. Without a connection the backchannel is not
// proven: the next connection may lead through a firewall that drops calls of the server. Call with
// mu held.
func (b *Backchannel) prune(other rpc.Caller) {
	kept := b.paths[:0]
	for _, p := range b.paths {
		if p != other && p.Connected() {
			kept = append(kept, p)
		}
	}
	clear(b.paths[len(kept):])
	if b.paths = kept; len(kept) == 0 {
		b.proven = false
	}
}

// lost reports whether a request must be sent again.
func (b *Backchannel) lost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.slots, func(k backSlot) bool { return k.state == backLost })
}

// Lost returns the sessions with callbacks that must be sent again. The successor calls it after an
// upgrade, because the old process has not seen the replies.
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

// BackStatus is the state of a backchannel at one moment.
type BackStatus struct {
	Live   bool // it has a connection
	Proven bool // Live, no Fault, and the client has answered: delegations may be granted
	Down   bool // it has had a connection and has none now
	Fault  bool // the client and the server disagree about session or slots
}

// Status checks the connections and returns the state.
func (b *Backchannel) Status() BackStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status()
}

// status is Status. Call with mu held.
func (b *Backchannel) status() BackStatus {
	for _, p := range b.paths {
		if !p.Connected() {
			b.prune(nil)
			break
		}
	}
	live := len(b.paths) > 0
	return BackStatus{Live: live, Proven: live && b.proven && !b.fault, Down: b.had && !live, Fault: b.fault}
}

// Probe reports whether the caller should send a CB_SEQUENCE alone, to learn whether the client
// answers. After it has returned true it returns false until an attempt ends.
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

// Attempt is a request that the caller must send. It owns the slot until End.
type Attempt struct {
	Path     rpc.Caller
	Program  uint32
	Cred     *rpc.Cred
	Slot     uint32
	Sequence uint32 // csa_sequenceid
	Highest  uint32 // csa_highest_slotid: the highest slot that is busy
	What     any    // the request of Begin, or a lost one
}

// Begin takes a slot. If a request is lost, the attempt is that request, and the caller calls Begin
// again afterwards for its own. ok is false if there is no connection or no free slot. The caller
// must call End for each attempt. The caller compares a.What with what, so what must be comparable.
func (b *Backchannel) Begin(what any) (a Attempt, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() {
		if !ok {
			b.probing = false // Begin has taken no slot, so End will not clear probing
		}
	}()
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

// attempt makes slot i busy and returns its request, for the newest connection. The client host may
// have lost its network: then its older connections lead nowhere. Call with mu held, and with a
// connection.
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

// Outcome is the result of an attempt. nfs4.outcomeOf derives it from the reply, whose content is
// the client's choice.
type Outcome uint8

// Outcomes.
const (
	// Executed: the client has used up the sequence number.
	Executed Outcome = iota
	// Refused: the client has not used the sequence number up, as with DELAY for CB_SEQUENCE.
	Refused
	// Lost: there was no reply in time, or the connection has ended.
	Lost
	// Misordered: the client expects another sequence number in this slot.
	Misordered
	// Unknown: the client does not know the session, or its reply makes no sense.
	Unknown
)

// End ends an attempt. After Lost the connection is no longer used, even if it is alive: the client
// may have restarted without closing it. The client can bind the connection again.
func (b *Backchannel) End(a *Attempt, o Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	k := &b.slots[a.Slot]
	k.state = backFree
	switch o {
	case Executed:
		// seq wraps around to 0, as the client's does (RFC 8881 section 2.10.6.1).
		k.seq++
		b.proven = true
	case Refused:
		b.proven = true
	case Lost:
		k.state = backLost
		b.prune(a.Path)
		return
	case Misordered:
		// With a guessed number the client could execute a request twice, or answer another one.
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

// calledBack reports whether the client can be called (live), and whether it has answered (proven),
// over all sessions. Call with mu held.
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

// Answers reports whether the client has answered a callback on a connection that it still has.
func (c *Client) Answers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, proven := c.calledBack()
	return proven
}

// Backchannels returns the sessions by which the client can be called. Those in which the client
// has answered come first.
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

// Notices are flags of the result of SEQUENCE (sr_status_flags, RFC 8881 section 18.46.3).
type Notices struct {
	PathDown        bool // CB_PATH_DOWN: SessionPathDown, and no other session has a connection
	SessionPathDown bool // CB_PATH_DOWN_SESSION: the session has lost its connections
	Fault           bool // BACKCHANNEL_FAULT
	Revoked         bool // RECALLABLE_STATE_REVOKED, until FREE_STATEID of all revoked delegations
}

// Notices returns the flags of a session. Each SEQUENCE calls it; Client.mu is locked only in the
// rare cases that need more than this session.
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

// Bind adds a connection to a session's backchannel. From the first such connection on, changes
// look for delegations: see delegCounts.possible.
func (s *Server) Bind(x *Session, path rpc.Caller) {
	x.Back.Bind(path)
	s.delegs.possible.Store(true)
}
