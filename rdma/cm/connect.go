package cm

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

const (
	// cmTimeout and cmRetries tell the peer when to repeat its messages: code 20 is 4 s (4.096 us *
	// 2^20).
	cmTimeout = 20
	cmRetries = 15
	// mraService is the time code that our MRA asks for: 4 s.
	mraService = 20
)

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
	GUID               uint64 // 0: that of the port
	Private            []byte // at most ConnPrivateLen
}

// checkRequest checks a request of ours: its peer, and that its private data fits the room for it.
func (m *Machine) checkRequest(
	message string, remote netip.AddrPort, private []byte, room int,
) (netip.AddrPort, error) {
	if len(private) > room {
		return remote, fmt.Errorf("cm: the private data has %d bytes; a %s carries at most %d", len(private), message, room)
	}
	to := remote.Addr().Unmap()
	if !to.IsValid() || to.Is4() != m.cfg.Addr.Unmap().Is4() {
		return remote, fmt.Errorf("%w: %v from %v", ErrAddress, remote, m.cfg.Addr)
	}
	return netip.AddrPortFrom(to, remote.Port()), nil
}

// putPrivate fills the private data of a request to id's peer.
func (m *Machine) putPrivate(to []byte, id *ID, port uint16, private []byte) {
	h := IPHeader{Src: netip.AddrPortFrom(m.cfg.Addr, port), Dst: id.Peer.Addr()}
	h.Put(to)
	copy(to[IPHeaderLen:], private)
}

// Connect sends a REQ, and repeats it until Reply, Rejected or Unreachable. The QP is in INIT and
// has its receives posted. The machine bounds only the number of attempts. A peer that never
// answers costs one ID and one datagram per repetition until ConnectLimit.
func (m *Machine) Connect(now rdma.Time, p ConnectParams) (*ID, error) {
	if m.pending >= m.cfg.PendingMax {
		return nil, ErrTooMany
	}
	to, err := m.checkRequest("REQ", p.Remote, p.Private, ConnPrivateLen)
	if err != nil {
		return nil, err
	}
	id := m.newID(REQSent, to, to.Port())
	id.Active, id.LocalQPN, id.TID = true, p.QPN, m.newTID()
	id.REQ = REQ{
		LocalID: id.Local, ServiceID: ServiceID(to.Port()), GUID: cmp.Or(p.GUID, m.cfg.GUID), QPN: p.QPN, PSN: p.PSN,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RemoteCMTimeout: cmTimeout, LocalCMTimeout: cmTimeout, MaxCMRetries: cmRetries,
		RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount, PKey: p.PKey, MTU: p.MTU,
		Primary: Path{
			LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: m.cfg.Addr, RemoteGID: to.Addr(),
			FlowLabel:    (uint32(p.SourcePort)*31 + uint32(to.Port())) & 0xfffff, // as Linux does
			TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, AckTimeout: p.AckTimeout,
		},
	}
	m.putPrivate(id.REQ.Private[:], id, p.SourcePort, p.Private)
	m.pending++ // we chose the address, so it is not counted among the askers
	m.n.TxREQ++
	m.repeat(now, id, id.REQ.Encode(Header{TID: id.TID}), m.cfg.ConnectLimit)
	return id, nil
}

// AcceptParams are the fields of a REP that the consumer chooses.
type AcceptParams struct {
	QPN, PSN           uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	RNRRetryCount      uint8
	TargetAckDelay     uint8
	GUID               uint64 // 0: that of the port
	Private            []byte // at most REPPrivateLen
}

// Accept answers a ConnRequest with a REP. The QP is in RTS by then: the peer may send on it
// before its RTU arrives. The REP is repeated for at least replyLimit: a peer whose RTU was lost
// has an established connection, and its first packet confirms the connection here (Traffic).
func (m *Machine) Accept(now rdma.Time, id *ID, p AcceptParams) error {
	if id.State != REQReceived {
		return ErrState
	}
	if len(p.Private) > REPPrivateLen {
		return fmt.Errorf("cm: the private data has %d bytes; a REP carries at most %d", len(p.Private), REPPrivateLen)
	}
	id.LocalQPN = p.QPN
	id.REP = REP{
		LocalID: id.Local, RemoteID: id.Remote, QPN: p.QPN, PSN: p.PSN, GUID: cmp.Or(p.GUID, m.cfg.GUID),
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
	m.repeat(now, id, id.REP.Encode(Header{TID: id.TID}), max(m.cfg.ConnectLimit, replyLimit))
	return nil
}

// Reject answers a ConnRequest or a Reply with a REJ. The ID is no longer valid.
func (m *Machine) Reject(id *ID, why Reason, private []byte) { m.reject(id, REJ{Reason: why}, private) }

// RejectMTU rejects a ConnRequest because the path MTU of its REQ is too large. The REJ suggests
// the MTU code most in its additional information (IBTA 12.6.7).
func (m *Machine) RejectMTU(id *ID, most uint8) {
	m.reject(id, REJ{Reason: InvalidMTU, InfoLen: 1, Info: [REJInfoLen]byte{most}}, nil)
}

// reject sends a REJ of the message that waits for an answer. Nothing repeats a REJ: if it is lost,
// the peer repeats its message, which then belongs to no connection and is rejected again.
func (m *Machine) reject(id *ID, r REJ, private []byte) {
	switch id.State {
	case REQReceived:
		r.Message = OfREQ
	case REPReceived:
		r.LocalID, r.Message = id.Local, OfREP
	default:
		return
	}
	r.RemoteID = id.Remote
	m.sendREJ(id.Peer.Addr(), id.TID, &r, private)
	m.Forget(id)
}

// Confirm answers a Reply with an RTU: the QP is in RTS.
func (m *Machine) Confirm(id *ID) error {
	if id.State != REPReceived {
		return ErrState
	}
	m.establish(id)
	m.n.TxRTU++
	m.sendIDs(id, AttrRTU, id.TID)
	return nil
}

// Traffic reports that the QP of id has accepted a packet of its peer, which counts as its RTU. A
// packet that the QP dropped does not count: anybody can send one.
func (m *Machine) Traffic(id *ID) {
	if id.State == REPSent {
		m.established(id)
	}
}

// established ends the wait for the RTU.
func (m *Machine) established(id *ID) {
	m.establish(id)
	m.event(Event{Kind: ConnEstablished, ID: id})
}

// establish makes id an established connection.
//
// It ends the earlier connection with the same queue pair of the peer: the peer restarted, or lost
// that connection. This is not done when the REQ arrives, because anybody can send a REQ.
func (m *Machine) establish(id *ID) {
	m.stop(id)
	m.leavePending(id)
	id.State = Established
	k := peerQPN{id.Peer.Addr(), id.GUID, id.RemoteQPN}
	if old := m.qpns[k]; old != nil && old != id && old.State != TimeWait {
		m.n.Stale++
		m.Forget(old)
		m.event(Event{Kind: Disconnected, ID: old, Err: fmt.Errorf("%v connected anew with the same queue pair", old.Peer)})
	}
	m.qpns[k] = id
	m.remember(id)
}

// Disconnect sends a DREQ on an established connection; Gone follows. In other states it abandons
// the attempt: the peer gets a REJ, and the ID is dead.
func (m *Machine) Disconnect(now rdma.Time, id *ID) {
	switch id.State {
	case Established, REPSent:
		m.leavePending(id)
		id.State = DREQSent
		m.n.TxDREQ++
		d := IDs{LocalID: id.Local, RemoteID: id.Remote, QPN: id.RemoteQPN}
		m.repeat(now, id, d.Encode(Header{TID: m.newTID(), Attr: AttrDREQ}), dreqLimit)
	case REQReceived, REPReceived:
		m.Reject(id, ConsumerDefined, nil)
	case REQSent:
		m.sendTimeout(id)
		m.Forget(id)
	}
}
