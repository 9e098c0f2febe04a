// Package cm is the communication manager of InfiniBand (IBTA 12) as RDMA-CM
// uses it over RoCEv2: the management datagrams and a state machine for one
// address, without IO or clock. Its owner makes the queue pairs; the machine
// says when, and what the peer's messages said.
package cm

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Timing of our own retransmissions. The kernel's are seconds long, made for a
// fabric with a subnet manager; a lost datagram need not cost that much.
const (
	resendFirst = 200 * rdma.Millisecond
	resendMax   = 4 * rdma.Second
	dreqLimit   = 4 * rdma.Second

	timeWaitMin = 500 * rdma.Millisecond
	timeWaitMax = 4 * rdma.Second

	// replyLimit bounds how long an unanswered REP is repeated. It is longer than
	// a kernel takes to give up its REQ, which it repeats every six seconds.
	replyLimit = 30 * rdma.Second

	// mraService is the time code that our MRA asks for: 4.096 us * 2^20, 4 s.
	mraService = 20
	// mraMax bounds the time that a peer's MRA is granted.
	mraMax    = 60 * rdma.Second
	cmTimeout = 20
	cmRetries = 15
)

// Config describes a machine.
type Config struct {
	Addr netip.Addr
	GUID uint64 // of the port: stable, and unique among all that share peers
	// Random returns words that peers cannot predict, from a generator that was
	// seeded well. Each communication ID and transaction ID is drawn from it: who
	// cannot see a connection's messages cannot name it in one.
	Random func() uint32
	// ConnectLimit bounds how long an unanswered REQ or REP is repeated; 0
	// means 8 seconds.
	ConnectLimit rdma.Time
	// PendingMax bounds connections that are being set up, PeerPendingMax those
	// of them that one address asked for, and TimeWaitMax those that are
	// remembered after their end. 0 means 512, half of PendingMax, and 8192.
	//
	// Source addresses can be forged, also those of hosts that exist. So a REQ beyond
	// a bound takes the place of the half-open connection that has waited longest for
	// its RTU: beyond PeerPendingMax of those of the same address, beyond PendingMax of
	// all. A half-open connection has its place for 20 ms in any case. A REQ that finds
	// none older waits in a queue of PeerPendingMax. When that is full it takes the place of a
	// random one there, which is dropped without an answer, so that its sender repeats it: REQs that
	// were dropped before go first. SIDR REQs have a table of PendingMax of their own, in either direction.
	PendingMax     int
	PeerPendingMax int
	TimeWaitMax    int
	// Refused, if set, is told of each REQ that was rejected without becoming an
	// ID, of which no event comes.
	Refused func(src netip.Addr, r *REQ, why Reason)
	// Starting says that the user is about to listen: until Started, REQs and SIDR REQs
	// for ports that nobody listens on yet are not refused. REQs wait for Listen, as the
	// Linux kernel repeats its own only after seconds; what is more than PeerPendingMax of
	// them, and SIDR REQs, are left to be repeated.
	Starting bool
	// Ledger is memory that outlives the process, LedgerRecord bytes for each
	// connection, zero at first. See Resume. It may be nil.
	Ledger   []byte
	Counters *Counters
}

// Counters count messages and what became of them. A message that is sent again
// because nothing answered it counts in Resent only.
type Counters struct {
	RxREQ, RxREP, RxRTU, RxREJ, RxMRA, RxDREQ, RxDREP uint64
	TxREQ, TxREP, TxRTU, TxREJ, TxMRA, TxDREQ, TxDREP uint64
	RxSIDRREQ, RxSIDRREP, TxSIDRREQ, TxSIDRREP        uint64

	Resent          uint64 // messages repeated by timers
	Duplicates      uint64 // messages received again
	Stale           uint64 // REQs of a peer that holds on to, or lost, an earlier connection
	Timeouts        uint64 // REQs, REPs and SIDR REQs given up
	HalfOpenEvicted uint64 // half-open connections that a newer REQ took the place of
	Unsupported     uint64 // messages that CM has and we do not support: LAP
	TimeWaitEvicted uint64 // connections forgotten before their time
	DropMalformed   uint64 // no CM MADs
	DropUnknown     uint64 // of no connection that we know with this peer
	DropState       uint64 // not expected in the connection's state
	DropFull        uint64 // REQs refused or dropped, or messages not sent, for lack of room
	Early           uint64 // REQs and SIDR REQs for ports that were not open yet during the start
}

// State is the state of an ID, after the names of ib_cm.
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

// ID is one connection or attempt at one. Its fields are read-only for users.
type ID struct {
	State   State
	Active  bool // we sent the REQ
	Local   uint32
	Remote  uint32
	Peer    netip.AddrPort // port: active side the service, passive side the peer's own
	Service uint16
	REQ     REQ
	REP     REP
	User    any
	// Resolution is set in the states of SIDR, and after them.
	Resolution *Resolution

	localQPN, remoteQPN uint32
	tid                 uint64
	msg                 []byte    // what is repeated
	every               rdma.Time // and how often
	due                 rdma.Time
	since               rdma.Time // when msg was sent first
	limit               rdma.Time
	index               int   // in the heap of deadlines, -1 = none
	record              int32 // in the ledger, -1 = none
	guid                uint64
	comm                uint32 // the peer's ID in the table of known ones
	mra                 bool
}

// EventKind is what happened to an ID.
type EventKind uint8

// Events. ConnRequest is answered by Accept or Reject, Reply by Confirm or
// Reject. After Rejected, Unreachable and Gone the ID is dead. A peer may give
// up at any time: Rejected can follow a ConnRequest or a Reply that is not
// answered yet, and the answer then fails with ErrState.
const (
	ConnRequest EventKind = iota + 1
	Reply
	ConnEstablished
	Rejected
	Unreachable
	Disconnected
	Gone           // TIMEWAIT is over: identities may be used again
	ResolveRequest // a SIDR REQ, to be answered by Answer
	Resolved       // the SIDR REP is in the ID, which is dead
)

// Event is one thing that happened.
type Event struct {
	Kind    EventKind
	ID      *ID
	Private []byte // of a REJ; REQ and REP are in the ID
	Reason  Reason // of a REJ
	Err     error  // why, in words; nil for a Disconnected that the peer asked for
}

// peerComm and peerQPN are the identities of a peer's side of a connection. A
// GUID is what the peer says it is, so its address belongs to them: no host can
// get at what another host has here.
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
type Machine struct {
	cfg       Config
	n         *Counters
	ids       map[uint32]*ID // by our communication ID
	comms     map[peerComm]*ID
	qpns      map[peerQPN]*ID
	listen    map[uint16]bool
	listenUD  map[uint16]bool
	sidrs     map[peerSIDR]*ID // SIDR REQs of peers, answered or not
	answered  []*ID            // those that are answered, oldest first
	timers    deadlines
	pending   int
	askers    map[netip.Addr]*asker // of pending connections that peers asked for
	halfOpen  halfOpen              // of all peers
	blank     []int32               // records of the ledger that are free
	waiting   int
	resolving int // SIDR REQs of ours
	events    []Event
	ending    bool
	early     []earlyREQ // in the order in which they came
	queue     []earlyREQ // REQs that wait for room
	queueDue  rdma.Time  // when there may be some
	dequeuing bool
	repeated  int      // how many at the front of queue were dropped before
	dropped   []uint32 // marks of REQs that were dropped, by hash; nil if there are none
	dropKey   uint64   // of the hash
	out       []*outgoing
	psn       wire.PSN // of the next datagram; nobody looks at it
}

// outgoing is a datagram to be sent.
type outgoing struct {
	flow wire.Flow
	mad  []byte
}

// outMax bounds the datagrams that wait for the link; more are lost, as on
// the way they could be.
const outMax = 512

// New makes a machine.
func New(cfg Config) *Machine {
	if cfg.ConnectLimit == 0 {
		cfg.ConnectLimit = 8 * rdma.Second
	}
	if cfg.PendingMax == 0 {
		cfg.PendingMax = 512
	}
	if cfg.PeerPendingMax == 0 {
		cfg.PeerPendingMax = max(cfg.PendingMax/2, 1)
	}
	if cfg.TimeWaitMax == 0 {
		cfg.TimeWaitMax = 8192
	}
	if cfg.Counters == nil {
		cfg.Counters = new(Counters)
	}
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
	ErrState     = errors.New("cm: not possible in this state")
	// ErrEvicted is of connections that never had an RTU. There may be many, as anybody can ask for one.
	ErrEvicted = errors.New("cm: a half-open connection was given up for a newer request")
	ErrAddress = errors.New("cm: the remote address cannot be reached from the local one")
)

// Listen accepts REQs for a port.
func (m *Machine) Listen(port uint16) error {
	if m.listen[port] {
		return ErrPortTaken
	}
	m.listen[port] = true
	m.admit(port)
	return nil
}

// Unlisten refuses further REQs for a port.
func (m *Machine) Unlisten(port uint16) { delete(m.listen, port) }

// Started ends what Config.Starting began: requests for ports that nobody listens on are
// refused from now on, those that wait among them.
func (m *Machine) Started() {
	m.cfg.Starting = false
	early := m.early
	m.early = nil
	for _, e := range early {
		m.request(e.at, e.src, e.dst, e.h, e.req)
	}
}

// Ending has REQs and SIDR REQs for ports that nobody listens on dropped from now on: who asks
// shall ask again, and reach the process that has the socket next.
func (m *Machine) Ending() { m.ending = true }

// earlyREQ is a REQ that came before its port was open, or before there was room for it.
type earlyREQ struct {
	at       rdma.Time
	src, dst netip.Addr
	h        Header
	req      REQ
}

// keep keeps a REQ for a port that nobody listens on, if it may be for one that is about to be.
func (m *Machine) keep(e earlyREQ) bool {
	if m.ending {
		return true
	}
	if !m.cfg.Starting {
		return false
	}
	m.n.Early++
	again := slices.ContainsFunc(m.early, func(k earlyREQ) bool {
		return k.src == e.src && k.req.GUID == e.req.GUID && k.req.LocalID == e.req.LocalID
	})
	if !again && len(m.early) < m.cfg.PeerPendingMax {
		m.early = append(m.early, e)
	}
	return true
}

// admit takes the REQs that waited for a port.
func (m *Machine) admit(port uint16) {
	waits := func(e earlyREQ) bool { p, _ := ServicePort(e.req.ServiceID); return p == port }
	for i := range m.early {
		if e := &m.early[i]; waits(*e) {
			m.request(e.at, e.src, e.dst, e.h, e.req)
		}
	}
	m.early = slices.DeleteFunc(m.early, waits)
}

// Pending is the number of connections being set up, and of those in TIMEWAIT.
func (m *Machine) Pending() (setup, timeWait int) { return m.pending, m.waiting }

// ConnectParams are the fields of a REQ that the consumer chooses.
type ConnectParams struct {
	Remote             netip.AddrPort
	SourcePort         uint16 // RDMA-CM port of ours, for the peer's information
	QPN, PSN           uint32
	MTU                uint8
	PKey               uint16
	ResponderResources uint8
	InitiatorDepth     uint8
	RetryCount         uint8
	RNRRetryCount      uint8
	AckTimeout         uint8
	TrafficClass       uint8
	HopLimit           uint8
	Private            []byte // at most ConnPrivateLen
}

// newCommID draws a communication ID that is not in use. Those of connections in TIMEWAIT are in use.
func (m *Machine) newCommID() uint32 {
	n := m.cfg.Random()
	for n == 0 || m.ids[n] != nil {
		n++ // ends: there are far fewer IDs than numbers
	}
	return n
}

// newID makes an ID with a new communication ID.
func (m *Machine) newID() *ID {
	id := &ID{Local: m.newCommID(), index: -1, record: -1}
	m.ids[id.Local] = id
	return id
}

// newTID draws a transaction ID.
func (m *Machine) newTID() uint64 { return uint64(m.cfg.Random())<<32 | uint64(m.cfg.Random()) }

// Connect sends a REQ, and repeats it until it is answered by Reply or Rejected,
// or Unreachable comes. The QP is in INIT and has its receives posted.
func (m *Machine) Connect(now rdma.Time, p ConnectParams) (*ID, error) {
	if m.pending >= m.cfg.PendingMax {
		return nil, ErrTooMany
	}
	if len(p.Private) > ConnPrivateLen {
		return nil, fmt.Errorf("cm: %d bytes of private data, a REQ carries %d", len(p.Private), ConnPrivateLen)
	}
	to := p.Remote.Addr().Unmap()
	if !to.IsValid() || to.Is4() != m.cfg.Addr.Unmap().Is4() {
		return nil, fmt.Errorf("%w: %v from %v", ErrAddress, p.Remote, m.cfg.Addr)
	}
	id := m.newID()
	id.Active, id.State, id.Peer, id.Service = true, REQSent, netip.AddrPortFrom(to, p.Remote.Port()), p.Remote.Port()
	id.localQPN = p.QPN
	id.tid = m.newTID()
	id.REQ = REQ{
		LocalID: id.Local, ServiceID: ServiceID(p.Remote.Port()), GUID: m.cfg.GUID, QPN: p.QPN, PSN: p.PSN,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RemoteCMTimeout: cmTimeout, LocalCMTimeout: cmTimeout, MaxCMRetries: cmRetries,
		RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount, PKey: p.PKey, MTU: p.MTU,
		Primary: Path{
			LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: m.cfg.Addr, RemoteGID: to,
			FlowLabel:    (uint32(p.SourcePort)*31 + uint32(p.Remote.Port())) & 0xfffff,
			TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, AckTimeout: p.AckTimeout,
		},
	}
	h := IPHeader{Src: netip.AddrPortFrom(m.cfg.Addr, p.SourcePort), Dst: to}
	h.Put(id.REQ.Private[:])
	copy(id.REQ.Private[IPHeaderLen:], p.Private)
	m.pending++ // the address of an active ID is our choice, and not counted
	m.n.TxREQ++
	m.repeat(now, id, id.REQ.Encode(Header{TID: id.tid}), m.cfg.ConnectLimit)
	return id, nil
}

// AcceptParams are the fields of a REP that the consumer chooses.
type AcceptParams struct {
	QPN, PSN           uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	RNRRetryCount      uint8
	TargetAckDelay     uint8
	Private            []byte // at most REPPrivateLen
}

// Accept answers a ConnRequest with a REP. The QP is in RTS by then: the peer
// may send on it before its RTU arrives.
func (m *Machine) Accept(now rdma.Time, id *ID, p AcceptParams) error {
	if id.State != REQReceived {
		return ErrState
	}
	if len(p.Private) > REPPrivateLen {
		return fmt.Errorf("cm: %d bytes of private data, a REP carries %d", len(p.Private), REPPrivateLen)
	}
	id.localQPN = p.QPN
	id.REP = REP{
		LocalID: id.Local, RemoteID: id.Remote, QPN: p.QPN, PSN: p.PSN, GUID: m.cfg.GUID,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		TargetAckDelay: p.TargetAckDelay, RNRRetryCount: p.RNRRetryCount,
	}
	if id.REQ.Alternate {
		id.REP.Failover = FailoverUnsupported
	}
	copy(id.REP.Private[:], p.Private)
	id.State = REPSent
	m.n.TxREP++
	m.waitForRTU(id)
	m.repeat(now, id, id.REP.Encode(Header{TID: id.tid}), max(m.cfg.ConnectLimit, replyLimit))
	return nil
}

// Reject answers a ConnRequest or a Reply with a REJ. The ID is dead.
func (m *Machine) Reject(id *ID, why Reason, private []byte) { m.reject(id, REJ{Reason: why}, private) }

// RejectMTU rejects a ConnRequest because the path MTU of its REQ is too large. The REJ suggests the MTU code most.
func (m *Machine) RejectMTU(id *ID, most uint8) {
	m.reject(id, REJ{Reason: InvalidMTU, InfoLen: 1, Info: [REJInfoLen]byte{most}}, nil)
}

func (m *Machine) reject(id *ID, r REJ, private []byte) {
	r.RemoteID = id.Remote
	switch id.State {
	case REQReceived:
		r.Message = OfREQ
		m.sendREJ(id.Peer.Addr(), id.tid, &r, private)
	case REPReceived:
		r.LocalID, r.Message = id.Local, OfREP
		m.sendREJ(id.Peer.Addr(), id.tid, &r, private)
	default:
		return
	}
	m.Forget(id)
}

// Confirm answers a Reply with an RTU: the QP is in RTS.
func (m *Machine) Confirm(id *ID) error {
	if id.State != REPReceived {
		return ErrState
	}
	m.leavePending(id)
	id.State = Established
	m.replace(id)
	m.remember(id)
	m.sendIDs(id, AttrRTU, id.tid)
	m.n.TxRTU++
	return nil
}

// Traffic says that the QP of id has accepted a packet of its peer, which counts as
// its RTU (IBTA 12.9.6). A packet that the QP dropped does not count: anybody can send one.
func (m *Machine) Traffic(id *ID) {
	if id.State == REPSent {
		m.established(id)
	}
}

func (m *Machine) established(id *ID) {
	m.stop(id)
	m.leavePending(id)
	id.State = Established
	m.replace(id)
	m.remember(id)
	m.event(Event{Kind: ConnEstablished, ID: id})
}

// replace ends the earlier connection with the QP that the peer has id with: the peer
// restarted, or lost that connection. It is called when id is established and not when
// its REQ arrives, as a REQ can come from anybody.
func (m *Machine) replace(id *ID) {
	k := peerQPN{id.Peer.Addr(), id.guid, id.remoteQPN}
	if old := m.qpns[k]; old != nil && old != id && old.State != TimeWait {
		m.n.Stale++
		m.Forget(old)
		m.event(Event{Kind: Disconnected, ID: old, Err: fmt.Errorf("%v connected anew with the same queue pair", old.Peer)})
	}
	m.qpns[k] = id
}

// Disconnect sends a DREQ on an established connection; Gone follows. In other
// states the attempt is abandoned: the peer is told by REJ, and the ID is dead.
func (m *Machine) Disconnect(now rdma.Time, id *ID) {
	switch id.State {
	case Established, REPSent:
		m.leavePending(id)
		id.State = DREQSent
		m.n.TxDREQ++
		d := IDs{LocalID: id.Local, RemoteID: id.Remote, QPN: id.remoteQPN}
		m.repeat(now, id, d.Encode(Header{TID: m.newTID(), Attr: AttrDREQ}), dreqLimit)
	case REQReceived, REPReceived:
		m.Reject(id, ConsumerDefined, nil)
	case REQSent:
		m.sendTimeout(id)
		m.Forget(id)
	}
}

// Forget drops an ID at once, without a message or an event. Its REQ and REP
// remain readable.
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

// Events moves what happened into dst, oldest first.
func (m *Machine) Events(dst []Event) int {
	n := copy(dst, m.events)
	rest := copy(m.events, m.events[n:])
	clear(m.events[rest:])
	m.events = m.events[:rest]
	return n
}

func (m *Machine) event(e Event) { m.events = append(m.events, e) }

// HasWork reports whether Transmit would send something.
func (m *Machine) HasWork() bool { return len(m.out) > 0 }

// Transmit appends waiting datagrams to b and reports whether more wait. What
// it refers to stays in place until the next call.
func (m *Machine) Transmit(b *wire.Batch) (more bool) {
	n := 0
	for n < len(m.out) && !b.Full() {
		o := m.out[n]
		b.Add(&o.flow, &wire.Packet{
			Op: wire.UDSendOnly, MigReq: true, PKey: wire.DefaultPKey, DestQPN: wire.QP1, PSN: m.psn,
			DETH: wire.DETH{QKey: QKey, SrcQPN: wire.QP1},
		}, [][]byte{o.mad})
		m.psn = m.psn.Add(1)
		n++
	}
	// The batch refers to the flows until it is sent, so they are not reused.
	m.out = append([]*outgoing(nil), m.out[n:]...)
	return len(m.out) > 0
}

func (m *Machine) send(to netip.Addr, mad []byte) {
	if len(m.out) >= outMax {
		m.n.DropFull++
		return
	}
	m.out = append(m.out, &outgoing{flow: wire.Flow{Src: m.cfg.Addr, Dst: to.Unmap(), SrcPort: wire.Port}, mad: mad})
}

func (m *Machine) sendIDs(id *ID, a Attr, tid uint64) {
	d := IDs{LocalID: id.Local, RemoteID: id.Remote}
	m.send(id.Peer.Addr(), d.Encode(Header{TID: tid, Attr: a}))
}

func (m *Machine) sendREJ(to netip.Addr, tid uint64, r *REJ, private []byte) {
	copy(r.Private[:], private)
	m.n.TxREJ++
	m.send(to, r.Encode(Header{TID: tid}))
}

// sendTimeout tells the peer that we wait no longer. It may not have answered,
// so it knows the connection by our GUID and communication ID.
func (m *Machine) sendTimeout(id *ID) {
	r := &REJ{LocalID: id.Local, RemoteID: id.Remote, Message: OfOther, Reason: Timeout, InfoLen: guidLen}
	binary.BigEndian.PutUint64(r.Info[:], m.cfg.GUID)
	m.sendREJ(id.Peer.Addr(), id.tid, r, nil)
}

// repeat sends mad now and again until the ID's state changes or limit is over.
func (m *Machine) repeat(now rdma.Time, id *ID, mad []byte, limit rdma.Time) {
	id.msg, id.every, id.since, id.limit = mad, resendFirst, now, now+limit
	m.send(id.Peer.Addr(), mad)
	m.schedule(id, now+id.every)
}

func (m *Machine) schedule(id *ID, at rdma.Time) {
	id.due = at
	if id.index < 0 {
		heap.Push(&m.timers, id)
	} else {
		heap.Fix(&m.timers, id.index)
	}
}

func (m *Machine) stop(id *ID) {
	if id.index >= 0 {
		heap.Remove(&m.timers, id.index)
	}
	id.msg = nil
}

// asker is an address that asks for connections.
type asker struct {
	pending  int
	halfOpen halfOpen
}

// ask enters an ID that a peer asked for into the count of those being set up.
func (m *Machine) ask(id *ID) {
	m.pending++
	a := m.askers[id.Peer.Addr()]
	if a == nil {
		a = new(asker)
		m.askers[id.Peer.Addr()] = a
	}
	a.pending++
}

// leavePending takes an ID out of the count of those being set up, before its
// state changes.
func (m *Machine) leavePending(id *ID) {
	switch id.State {
	case REQSent, REQReceived, REPReceived, REPSent:
	default:
		return
	}
	m.pending--
	if id.Active {
		return
	}
	a := m.askers[id.Peer.Addr()]
	if a.pending--; a.pending == 0 {
		delete(m.askers, id.Peer.Addr())
	}
}

// Deadline is when Expire has to be called, 0 for never.
func (m *Machine) Deadline() rdma.Time {
	var d rdma.Time
	if len(m.queue) > 0 {
		d = m.queueDue
	}
	if len(m.timers) > 0 {
		d = rdma.Earlier(d, m.timers[0].due)
	}
	return d
}

// Expire acts on the deadlines that have passed.
func (m *Machine) Expire(now rdma.Time) {
	if len(m.queue) > 0 && m.queueDue <= now {
		m.takeQueue(now)
	}
	for len(m.timers) > 0 && m.timers[0].due <= now {
		id := m.timers[0]
		switch {
		case id.State == TimeWait:
			m.gone(id)
		case id.State == SIDRREQReceived || id.State == SIDRAnswered:
			m.Forget(id)
		case now < id.limit:
			m.n.Resent++
			m.send(id.Peer.Addr(), id.msg)
			id.every = min(2*id.every, resendMax)
			m.schedule(id, min(now+id.every, id.limit))
		case id.State == DREQSent:
			m.timeWait(now, id)
		case id.State == SIDRREQSent:
			m.unresolved(id)
		default:
			m.giveUp(now, id)
		}
	}
}

// halfOpenMin is how long a half-open connection keeps its place in any case. It takes a
// peer that exists a round trip. The time must be short: who forges REQs in a peer's name
// competes with that peer for PeerPendingMax places in halfOpenMin. It must not be too short, as each place
// costs its owner a queue pair: 12,800 a second are less than a loop can make.
const halfOpenMin = 20 * rdma.Millisecond

// halfOpen lists connections whose REP was sent, oldest first. Some have moved on.
type halfOpen []*ID

// oldest is the one that has waited longest for its RTU, or nil.
func (h *halfOpen) oldest() *ID {
	for len(*h) > 0 && (*h)[0].State != REPSent {
		(*h)[0] = nil
		*h = (*h)[1:]
	}
	if len(*h) == 0 {
		return nil
	}
	return (*h)[0]
}

// add appends an ID. The list is tidied when it is longer than most.
func (h *halfOpen) add(id *ID, most int) {
	if len(*h) >= most {
		*h = slices.DeleteFunc(*h, func(id *ID) bool { return id.State != REPSent })
	}
	*h = append(*h, id)
}

// waitForRTU enters a connection whose REP is sent into the lists of half-open ones.
func (m *Machine) waitForRTU(id *ID) {
	m.halfOpen.add(id, 2*m.cfg.PendingMax)
	m.askers[id.Peer.Addr()].halfOpen.add(id, 2*m.cfg.PeerPendingMax)
}

// makeRoom finds a place among the connections that are being set up for one that src
// asks for. It reports whether there is one, or when there may be, 0 if nobody knows.
func (m *Machine) makeRoom(now rdma.Time, src netip.Addr) (room bool, due rdma.Time) {
	list := &m.halfOpen
	if a := m.askers[src]; a != nil && a.pending >= m.cfg.PeerPendingMax {
		list = &a.halfOpen
	} else if m.pending < m.cfg.PendingMax {
		return true, 0
	}
	if len(m.queue) > 0 && !m.dequeuing {
		return false, m.queueDue // others came first
	}
	old := list.oldest()
	if old == nil {
		return false, 0
	}
	if due = old.since + halfOpenMin; now < due {
		return false, due
	}
	m.n.HalfOpenEvicted++
	if len(m.out) < outMax/2 { // the REPs are more important
		m.sendTimeout(old)
	}
	m.Forget(old)
	m.event(Event{Kind: Unreachable, ID: old, Err: ErrEvicted})
	return true, 0
}

// queueEvery is the least time between two looks at the queue.
const queueEvery = rdma.Millisecond

// droppedMax is how many REQs that were dropped are remembered, a power of two: those of four seconds, after which
// the Linux kernel repeats its REQs, of a flood of 60,000 a second.
const droppedMax = 1 << 18

// dropMark is the place and the mark of a REQ among those that were dropped.
func (m *Machine) dropMark(e *earlyREQ) (place int, mark uint32) {
	a := e.src.As16()
	h := m.dropKey
	for _, w := range [...]uint64{
		binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]), e.req.GUID, uint64(e.req.LocalID)<<32 | uint64(e.req.QPN),
	} {
		h = (h ^ w) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return int(h % droppedMax), uint32(h>>32) | 1
}

// drop drops a REQ that waits, and remembers it.
func (m *Machine) drop(e *earlyREQ) {
	m.n.DropFull++
	if m.dropped == nil {
		m.dropped, m.dropKey = make([]uint32, droppedMax), m.newTID()
	}
	place, mark := m.dropMark(e)
	m.dropped[place] = mark
}

// wasDropped reports whether a REQ was dropped before.
func (m *Machine) wasDropped(e *earlyREQ) bool {
	if m.dropped == nil {
		return false
	}
	place, mark := m.dropMark(e)
	return m.dropped[place] == mark
}

// enqueue has a REQ wait until there may be room for it. Who floods us has no reason to repeat a REQ, and a peer that
// exists has: what was dropped before waits at the front, where nothing takes its place.
func (m *Machine) enqueue(now, due rdma.Time, e earlyREQ) {
	if len(m.queue) == 0 {
		m.queueDue = max(due, now+queueEvery)
	}
	i := len(m.queue)
	if i < m.cfg.PeerPendingMax {
		m.queue = append(m.queue, e)
	} else {
		i = m.repeated + int(m.cfg.Random()>>1)%(i-m.repeated)
		m.drop(&m.queue[i])
		m.queue[i] = e
	}
	if !m.dequeuing && m.repeated < m.cfg.PeerPendingMax/2 && m.wasDropped(&e) {
		m.queue[i], m.queue[m.repeated] = m.queue[m.repeated], m.queue[i]
		m.repeated++
	}
}

// takeMax bounds the REQs that are taken from the queue at once. Each costs its owner a queue pair, and
// established connections have to wait for that.
const takeMax = 32

// takeQueue takes REQs for which there is room by now, in order. The others go on waiting.
func (m *Machine) takeQueue(now rdma.Time) {
	waited, first := m.queue, m.repeated
	m.queue, m.repeated, m.dequeuing = nil, 0, true
	taken := 0
	for i, e := range waited {
		before := len(m.queue)
		if taken == takeMax {
			m.queue = append(m.queue, e)
		} else if m.request(now, e.src, e.dst, e.h, e.req); len(m.queue) == before {
			taken++
		}
		if i < first {
			m.repeated = len(m.queue)
		}
	}
	m.dequeuing = false
	if taken == takeMax {
		m.queueDue = now + queueEvery
	}
}

// giveUp ends the wait for the answer to a REQ or a REP.
func (m *Machine) giveUp(now rdma.Time, id *ID) {
	m.n.Timeouts++
	waited := (now - id.since) / rdma.Second
	err := fmt.Errorf("%v did not answer the CM REQ for %d s: is UDP port %d open on both sides, and does something serve RDMA there?", id.Peer, waited, wire.Port)
	if id.State == REPSent {
		err = fmt.Errorf("%v asked for a connection and did not confirm our REP for %d s: does UDP port %d get through to it?", id.Peer, waited, wire.Port)
	}
	m.sendTimeout(id)
	m.Forget(id)
	m.event(Event{Kind: Unreachable, ID: id, Err: err})
}

func (m *Machine) gone(id *ID) {
	m.Forget(id)
	m.event(Event{Kind: Gone, ID: id})
}

// timeWait keeps the identities of a connection from being used again while
// packets of it may still be under way.
func (m *Machine) timeWait(now rdma.Time, id *ID) {
	m.stop(id)
	m.leavePending(id)
	m.strike(id)
	id.State = TimeWait
	m.waiting++
	d := rdma.Millisecond << max(0, int(id.REQ.Primary.AckTimeout)-8)
	m.schedule(id, now+min(max(d, timeWaitMin), timeWaitMax))
	if m.waiting > m.cfg.TimeWaitMax {
		// Under a flood the oldest goes early; its QP number stays random.
		for _, w := range m.timers {
			if w.State == TimeWait && w != id {
				m.n.TimeWaitEvicted++
				m.gone(w)
				break
			}
		}
	}
}

// bind enters the peer's identities into the tables of known ones.
func (m *Machine) bind(id *ID, guid uint64, comm, qpn uint32) {
	id.guid, id.comm, id.remoteQPN = guid, comm, qpn
	m.comms[peerComm{id.Peer.Addr(), guid, comm}] = id
	k := peerQPN{id.Peer.Addr(), guid, qpn}
	if old := m.qpns[k]; old == nil || old.State == TimeWait || id.State == Established {
		m.qpns[k] = id // else replace decides, when id is established
	}
}

func (m *Machine) unbind(id *ID) {
	if k := (peerComm{id.Peer.Addr(), id.guid, id.comm}); m.comms[k] == id {
		delete(m.comms, k)
	}
	if k := (peerQPN{id.Peer.Addr(), id.guid, id.remoteQPN}); m.qpns[k] == id {
		delete(m.qpns, k)
	}
}

// deadlines is a heap of IDs by time.
type deadlines []*ID

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].due < d[j].due }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

// Push implements heap.Interface.
func (d *deadlines) Push(x any) {
	id := x.(*ID)
	id.index = len(*d)
	*d = append(*d, id)
}

// Pop implements heap.Interface.
func (d *deadlines) Pop() any {
	n := len(*d) - 1
	id := (*d)[n]
	(*d)[n] = nil
	*d = (*d)[:n]
	id.index = -1
	return id
}
