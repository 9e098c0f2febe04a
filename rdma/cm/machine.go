package cm

import (
	"cmp"
	"errors"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Config describes a machine.
type Config struct {
	Addr netip.Addr
	GUID uint64 // of the port: stable, and unique among all that share peers
	// Random returns words that peers cannot predict. Each communication ID and transaction ID is
	// drawn from it, so that only those who see the messages of a connection can name it.
	Random func() uint32
	// ConnectLimit bounds how long an unanswered REQ or REP is repeated; 0 means 8 seconds.
	ConnectLimit rdma.Time
	// PendingMax bounds the connections that are being set up, PeerPendingMax those of them that
	// one address asked for, and TimeWaitMax those in TimeWait. 0 means 512, half of PendingMax,
	// and 8192.
	//
	// Source addresses can be forged, also those of hosts that exist. So a REQ beyond a bound
	// replaces the half-open connection that has waited longest for its RTU: beyond
	// PeerPendingMax one of the same address, beyond PendingMax any. No half-open connection is
	// replaced within halfOpenMin. A REQ that finds none older waits in a queue of PeerPendingMax.
	// A REQ that finds this queue full replaces a random one in it, which is dropped without an
	// answer, so that its sender repeats it. REQs that were dropped before go first.
	//
	// SIDR REQs have tables of PendingMax of their own, one for each direction.
	PendingMax     int
	PeerPendingMax int
	TimeWaitMax    int
	// Refused, if set, is called for each REQ that was rejected before it became an ID.
	Refused func(src netip.Addr, r *REQ, why Reason)
	// If Starting is true, the user will call Listen soon, and then Started. Until Started,
	// requests for ports that are not open are not refused. Up to PeerPendingMax REQs wait for
	// Listen, because the Linux kernel repeats its REQs only after seconds. Other requests are
	// dropped, so that their senders repeat them.
	Starting bool
	// Ledger is memory that outlives the process, LedgerRecord bytes for each connection, zero at
	// first. See Resume. It may be nil.
	Ledger   []byte
	Counters *Counters
}

// Counters count messages and their outcomes. A message that is sent again because nothing answered
// it counts in Resent only.
type Counters struct {
	RxREQ, RxREP, RxRTU, RxREJ, RxMRA, RxDREQ, RxDREP uint64
	TxREQ, TxREP, TxRTU, TxREJ, TxMRA, TxDREQ, TxDREP uint64
	RxSIDRREQ, RxSIDRREP, TxSIDRREQ, TxSIDRREP        uint64

	Resent          uint64 // messages repeated by timers
	Duplicates      uint64 // messages received again
	Stale           uint64 // REQs of connections in TimeWait, or with a queue pair in use
	Timeouts        uint64 // REQs, REPs and SIDR REQs given up
	HalfOpenEvicted uint64 // half-open connections that a newer REQ replaced
	Unsupported     uint64 // messages that CM has and we do not support: LAP
	TimeWaitEvicted uint64 // connections that left TimeWait early
	DropMalformed   uint64 // no CM MADs
	DropUnknown     uint64 // of no connection that we know with this peer
	DropState       uint64 // not expected in the connection's state
	DropFull        uint64 // REQs refused or dropped, or messages not sent, for lack of room
	Early           uint64 // REQs and SIDR REQs for ports that were not open yet during the start
}

// State is the state of an ID, after the names of ib_cm. See the package comment.
type State uint8

// States.
const (
	Idle State = iota
	REQSent
	REQReceived
	REPReceived
	REPSent
	Established
	DREQSent
	TimeWait
	SIDRREQSent
	SIDRREQReceived
	SIDRAnswered
)

// pending reports whether the connection is being set up.
func (s State) pending() bool { return s >= REQSent && s <= REPSent }

// ID is one connection or attempt at one. Its fields are read-only for users.
type ID struct {
	// SnapshotID is what another process needs to continue. Its times are points in time here.
	SnapshotID
	User any
	// Resolution is set in the states of SIDR, and after them.
	Resolution *Resolution

	since rdma.Time // when Msg was sent first
	index int       // in the heap of deadlines, -1 = none
	mra   bool      // an MRA of the peer was granted
}

// EventKind is what happened to an ID.
type EventKind uint8

// Events. ConnRequest is answered by Accept or Reject, Reply by Confirm or Reject. After Rejected,
// Unreachable and Gone the ID is dead. A peer may give up at any time: Rejected can follow a
// ConnRequest or a Reply that is not answered yet, and the answer then fails with ErrState.
const (
	ConnRequest EventKind = iota + 1
	Reply
	ConnEstablished
	Rejected
	Unreachable
	Disconnected
	Gone           // TimeWait is over: the IDs may be used again
	ResolveRequest // a SIDR REQ, to be answered by Answer
	Resolved       // the SIDR REP is in the ID, which is dead
)

// Event is one thing that happened.
type Event struct {
	Kind    EventKind
	ID      *ID
	Private []byte // of a REJ; REQ and REP are in the ID
	Reason  Reason // of a REJ
	Err     error  // why, in words; nil for a Disconnected that the peer requested
}

// peerComm and peerQPN identify a peer's side of a connection. The peer chooses its GUID, so its
// address is part of the key: no host can name what another host has here.
type peerComm struct {
	addr netip.Addr
	guid uint64
	comm uint32
}

type peerQPN struct {
	addr netip.Addr
	guid uint64
	qpn  uint32
}

// Machine is the CM of one address. It is not safe for concurrent use.
//
//	table    finds an ID by                            has it
//	ids      our communication ID                      always
//	comms    the peer's GUID and communication ID      from the REQ or REP until Forget
//	qpns     the peer's GUID and QPN                   likewise
//	timers   its deadline                              while it has one
//	ledger   (a record for the next process)           while it is established
type Machine struct {
	cfg       Config
	n         *Counters
	ids       map[uint32]*ID // by our communication ID
	comms     map[peerComm]*ID
	qpns      map[peerQPN]*ID
	listen    map[uint16]bool
	listenUD  map[uint16]bool
	sidrs     map[peerSIDR]*ID // SIDR REQs of peers, answered or not
	answered  []*ID            // the answered ones, oldest first
	timers    deadlines
	blank     []int32 // free records of the ledger
	waiting   int     // connections in TimeWait
	resolving int     // SIDR REQs of ours
	events    []Event
	ending    bool
	out       []*outgoing
	psn       wire.PSN // of the next datagram; UD receivers ignore it

	pending  int                   // connections that are being set up
	askers   map[netip.Addr]*asker // peers that asked for some of them
	halfOpen halfOpen              // of all peers
	early    []waitingREQ          // REQs for ports that are not open yet, oldest first
	queue    reqQueue              // REQs that wait for a place
}

// New makes a machine.
func New(cfg Config) *Machine {
	cfg.ConnectLimit = cmp.Or(cfg.ConnectLimit, 8*rdma.Second)
	cfg.PendingMax = cmp.Or(cfg.PendingMax, 512)
	cfg.PeerPendingMax = cmp.Or(cfg.PeerPendingMax, max(cfg.PendingMax/2, 1))
	cfg.TimeWaitMax = cmp.Or(cfg.TimeWaitMax, 8192)
	cfg.Counters = cmp.Or(cfg.Counters, new(Counters))
	return &Machine{
		cfg: cfg, n: cfg.Counters, psn: wire.PSN(cfg.Random() & wire.PSNMask),
		ids: map[uint32]*ID{}, comms: map[peerComm]*ID{}, qpns: map[peerQPN]*ID{},
		listen: map[uint16]bool{}, listenUD: map[uint16]bool{}, sidrs: map[peerSIDR]*ID{}, askers: map[netip.Addr]*asker{},
	}
}

// Errors of the machine's calls.
var (
	ErrPortTaken = errors.New("cm: the port is listened on already")
	ErrTooMany   = errors.New("cm: too many connections are being set up")
	ErrState     = errors.New("cm: the connection's state does not allow this")
	// ErrEvicted is why a connection without an RTU ended: a newer request took its place. There
	// may be many of these connections, because anybody can send a REQ.
	ErrEvicted = errors.New("cm: a half-open connection was given up for a newer request")
	ErrAddress = errors.New("cm: the remote address cannot be reached from the local one")
)

// Listen accepts REQs for a port, beginning with those that wait for it.
func (m *Machine) Listen(port uint16) error {
	if m.listen[port] {
		return ErrPortTaken
	}
	m.listen[port] = true
	m.admitEarly(port)
	return nil
}

// Unlisten refuses further REQs for a port.
func (m *Machine) Unlisten(port uint16) { delete(m.listen, port) }

// Ending drops from now on, instead of refusing, requests for ports that nobody listens on: their
// senders repeat them, and reach the process that has the socket next. A refusal would end the
// attempt of the peer at once: the Linux kernel does not repeat a REQ that was rejected.
func (m *Machine) Ending() { m.ending = true }

// Pending is the number of connections being set up, and of those in TimeWait.
func (m *Machine) Pending() (setup, timeWait int) { return m.pending, m.waiting }

// Events moves what happened into dst, oldest first. The caller fetches events in the turn in
// which they occur: nothing bounds their number otherwise. An ID in an event of the kinds
// Rejected, Unreachable, Gone or Resolved is no longer in the tables.
func (m *Machine) Events(dst []Event) int {
	n := copy(dst, m.events)
	rest := copy(m.events, m.events[n:])
	clear(m.events[rest:])
	m.events = m.events[:rest]
	return n
}

func (m *Machine) event(e Event) { m.events = append(m.events, e) }

// newCommID draws a communication ID that is not in use, not even in TimeWait.
func (m *Machine) newCommID() uint32 {
	n := m.cfg.Random()
	for n == 0 || m.ids[n] != nil {
		n++ // ends: there are far fewer IDs than numbers
	}
	return n
}

// newID makes an ID with a new communication ID.
func (m *Machine) newID(s State, peer netip.AddrPort, service uint16) *ID {
	id := &ID{SnapshotID: SnapshotID{State: s, Local: m.newCommID(), Peer: peer, Service: service, Record: -1}, index: -1}
	m.ids[id.Local] = id
	return id
}

// newTID draws a transaction ID.
func (m *Machine) newTID() uint64 { return uint64(m.cfg.Random())<<32 | uint64(m.cfg.Random()) }

// bind enters the peer's identities into the tables of known ones.
//
//	comms   (address, GUID, communication ID) -> ID    finds repeated REQs
//	qpns    (address, GUID, QPN) -> ID                  finds an earlier connection
func (m *Machine) bind(id *ID, guid uint64, comm, qpn uint32) {
	id.GUID, id.Comm, id.RemoteQPN = guid, comm, qpn
	m.comms[peerComm{id.Peer.Addr(), guid, comm}] = id
	k := peerQPN{id.Peer.Addr(), guid, qpn}
	if old := m.qpns[k]; old == nil || old.State == TimeWait || id.State == Established {
		m.qpns[k] = id // otherwise establish replaces the old connection
	}
}

// unbind removes the peer's identities, unless a newer connection has them.
func (m *Machine) unbind(id *ID) {
	if k := (peerComm{id.Peer.Addr(), id.GUID, id.Comm}); m.comms[k] == id {
		delete(m.comms, k)
	}
	if k := (peerQPN{id.Peer.Addr(), id.GUID, id.RemoteQPN}); m.qpns[k] == id {
		delete(m.qpns, k)
	}
}

// Forget drops an ID at once, without a message or an event. Its REQ and REP remain readable.
func (m *Machine) Forget(id *ID) {
	m.stop(id)
	m.leavePending(id)
	m.leaveSIDR(id)
	if id.State == TimeWait {
		m.waiting--
	}
	m.strike(id)
	delete(m.ids, id.Local)
	m.unbind(id)
	id.State = Idle
}
