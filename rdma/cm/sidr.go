package cm

import (
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Service ID resolution (IBTA 12.11): one host asks another which queue pair serves datagrams, and
// with which Q_Key. There is no connection. The request is repeated until it is answered. The
// answer is remembered for as long as the request may come again.

// Lengths of private data.
const (
	SIDRREQPrivateLen = 216
	SIDRREPPrivateLen = 136
	SIDRREPInfoLen    = 72
	// ResolvePrivateLen is what RDMA-CM leaves of a SIDR REQ to its user.
	ResolvePrivateLen = SIDRREQPrivateLen - IPHeaderLen
)

// udpServicePrefix is the service ID of the RDMA-CM port space UDP, without port.
const udpServicePrefix = 0x0000000001110000

// UDPServiceID is the service ID of a port for datagrams.
func UDPServiceID(port uint16) uint64 { return udpServicePrefix | uint64(port) }

// UDPServicePort is the port of a service ID; ok is false for other services.
func UDPServicePort(id uint64) (port uint16, ok bool) {
	return uint16(id), id&^0xffff == udpServicePrefix
}

// SIDRStatus is the status of a SIDR REP (IBTA 12.11.2).
type SIDRStatus uint8

// Statuses.
const (
	SIDRValid       SIDRStatus = 0
	SIDRUnsupported SIDRStatus = 1 // nobody listens on the port
	SIDRReject      SIDRStatus = 2 // the service refuses
	SIDRNoQP        SIDRStatus = 3
	SIDRRedirect    SIDRStatus = 4
	SIDRVersion     SIDRStatus = 5
)

func (s SIDRStatus) String() string {
	names := [...]string{
		"valid", "nothing listens there", "rejected by the service", "no queue pair available",
		"redirected", "version not supported",
	}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// SIDRREQ asks for a queue pair (IBTA 12.11.1).
//
//	byte   0 request ID        8 service ID
//	       4 P_Key            16 private data
type SIDRREQ struct {
	RequestID uint32
	PKey      uint16
	ServiceID uint64
	Private   [SIDRREQPrivateLen]byte
}

// fields lists the fields of a SIDR REQ.
func (r *SIDRREQ) fields(c coder) {
	bits(c, 0, 0, 32, &r.RequestID)
	bits(c, 4, 0, 16, &r.PKey)
	bits(c, 8, 0, 64, &r.ServiceID)
	c.bytes(16, r.Private[:])
}

// ParseSIDRREQ reads a SIDR REQ.
func ParseSIDRREQ(b []byte) (r SIDRREQ) { r.fields(decoder(b)); return r }

// Encode makes the MAD of a SIDR REQ.
func (r *SIDRREQ) Encode(h Header) []byte { return encode(AttrSIDRREQ, h, r.fields) }

// SIDRREP answers a SIDR REQ (IBTA 12.11.2).
//
//	byte   0 request ID       12 service ID
//	       4 status           20 Q_Key
//	       5 length of info   24 additional information
//	       8 QPN              96 private data
type SIDRREP struct {
	RequestID uint32
	Status    SIDRStatus
	InfoLen   uint8 // bytes of Info that are used
	QPN       uint32
	ServiceID uint64
	QKey      uint32
	Info      [SIDRREPInfoLen]byte
	Private   [SIDRREPPrivateLen]byte
}

// fields lists the fields of a SIDR REP. The vendor ID is not read.
func (r *SIDRREP) fields(c coder) {
	bits(c, 0, 0, 32, &r.RequestID)
	bits(c, 4, 0, 8, &r.Status)
	bits(c, 5, 0, 8, &r.InfoLen)
	bits(c, 8, 0, 24, &r.QPN)
	bits(c, 12, 0, 64, &r.ServiceID)
	bits(c, 20, 0, 32, &r.QKey)
	c.bytes(24, r.Info[:])
	c.bytes(96, r.Private[:])
}

// ParseSIDRREP reads a SIDR REP.
func ParseSIDRREP(b []byte) (r SIDRREP) { r.fields(decoder(b)); return r }

// Encode makes the MAD of a SIDR REP.
func (r *SIDRREP) Encode(h Header) []byte { return encode(AttrSIDRREP, h, r.fields) }

// Resolution is the part of an ID that is for datagrams.
type Resolution struct {
	REQ SIDRREQ
	REP SIDRREP
}

// peerSIDR is the identity of a peer's SIDR REQ.
type peerSIDR struct {
	from netip.AddrPort
	id   uint32
}

// ListenUD accepts SIDR REQs for a port. The ports are others than those of Listen.
func (m *Machine) ListenUD(port uint16) error {
	if m.listenUD[port] {
		return ErrPortTaken
	}
	m.listenUD[port] = true
	return nil
}

// UnlistenUD refuses further SIDR REQs for a port.
func (m *Machine) UnlistenUD(port uint16) { delete(m.listenUD, port) }

// ResolveParams are the fields of a SIDR REQ that the consumer chooses.
type ResolveParams struct {
	Remote     netip.AddrPort
	SourcePort uint16 // RDMA-CM port of ours, for the peer's information
	PKey       uint16
	Private    []byte // at most ResolvePrivateLen
}

// Resolve sends a SIDR REQ, and repeats it until Resolved, Rejected or Unreachable comes.
// Forget abandons it.
func (m *Machine) Resolve(now rdma.Time, p ResolveParams) (*ID, error) {
	if m.resolving >= m.cfg.PendingMax {
		return nil, ErrTooMany
	}
	to, err := m.checkRequest("SIDR REQ", p.Remote, p.Private, ResolvePrivateLen)
	if err != nil {
		return nil, err
	}
	id := m.newID(SIDRREQSent, to, to.Port())
	id.Active, id.TID = true, m.newTID()
	id.Resolution = &Resolution{REQ: SIDRREQ{RequestID: id.Local, PKey: p.PKey, ServiceID: UDPServiceID(to.Port())}}
	r := &id.Resolution.REQ
	m.putPrivate(r.Private[:], id, p.SourcePort, p.Private)
	m.resolving++
	m.n.TxSIDRREQ++
	m.repeat(now, id, r.Encode(Header{TID: id.TID}), m.cfg.ConnectLimit)
	return id, nil
}

// AnswerParams are the fields of a SIDR REP that the consumer chooses.
type AnswerParams struct {
	Status  SIDRStatus
	QPN     uint32
	QKey    uint32
	Private []byte // at most SIDRREPPrivateLen
}

// Answer answers a ResolveRequest. The ID belongs to the machine from here on. The machine
// repeats the answer for each repetition of the request, and deletes both after replyLimit. A
// user that never answers loses the ID after the same time.
func (m *Machine) Answer(now rdma.Time, id *ID, p AnswerParams) error {
	if id.State != SIDRREQReceived {
		return ErrState
	}
	if len(p.Private) > SIDRREPPrivateLen {
		return fmt.Errorf("cm: the private data has %d bytes; a SIDR REP carries at most %d", len(p.Private),
			SIDRREPPrivateLen)
	}
	q := &id.Resolution.REQ
	r := SIDRREP{RequestID: q.RequestID, ServiceID: q.ServiceID, Status: p.Status, QPN: p.QPN, QKey: p.QKey}
	copy(r.Private[:], p.Private)
	id.State, id.Msg = SIDRAnswered, r.Encode(Header{TID: id.TID})
	m.n.TxSIDRREP++
	m.tidyAnswered()
	m.answered = append(m.answered, id)
	m.send(id.Peer.Addr(), id.Msg)
	m.schedule(id, now+replyLimit)
	return nil
}

// resolveRequest handles a SIDR REQ. The table of requests is bounded. When it is full, the oldest
// answer makes room; if all requests wait for their answers, the request is refused. A known
// request gets the same answer again.
//
//	check                                   answer
//	nobody listens on the port              status 1; none while the process starts or ends
//	addresses are not those of the packet   status 2
//	known, the user has not answered        none
//	known, answered                         the same SIDR REP
//	the table has no place                  status 3
//	else                                    ResolveRequest
func (m *Machine) resolveRequest(now rdma.Time, src, dst netip.Addr, h Header, r SIDRREQ) {
	refuse := func(why SIDRStatus) {
		a := SIDRREP{RequestID: r.RequestID, ServiceID: r.ServiceID, Status: why}
		m.n.TxSIDRREP++
		m.send(src, a.Encode(Header{TID: h.TID}))
	}
	port, ok := UDPServicePort(r.ServiceID)
	if !ok || !m.listenUD[port] {
		switch {
		case ok && m.ending:
		case ok && m.cfg.Starting:
			m.n.Early++
		default:
			refuse(SIDRUnsupported)
		}
		return
	}
	ip, err := ParseIPHeader(r.Private[:])
	if err != nil || ip.Src.Addr() != src || ip.Dst != dst {
		refuse(SIDRReject)
		return
	}
	key := peerSIDR{ip.Src, r.RequestID}
	if known := m.sidrs[key]; known != nil {
		m.n.Duplicates++
		if known.State == SIDRAnswered {
			m.send(src, known.Msg) // it was lost
		}
		return
	}
	if len(m.sidrs) >= m.cfg.PendingMax && !m.forgetAnswer() {
		m.n.DropFull++
		refuse(SIDRNoQP)
		return
	}
	id := m.newID(SIDRREQReceived, ip.Src, port)
	id.Remote, id.TID = r.RequestID, h.TID
	id.Resolution = &Resolution{REQ: r}
	m.sidrs[key] = id
	m.schedule(id, now+replyLimit)
	m.event(Event{Kind: ResolveRequest, ID: id})
}

// forgetAnswer makes room by forgetting the oldest answer, if there is one.
func (m *Machine) forgetAnswer() bool {
	m.tidyAnswered()
	if len(m.answered) == 0 {
		return false
	}
	m.Forget(m.answered[0])
	return true
}

// tidyAnswered removes forgotten IDs from the front of the list. IDs are forgotten in its order.
func (m *Machine) tidyAnswered() {
	for len(m.answered) > 0 && m.answered[0].State != SIDRAnswered {
		m.answered[0] = nil
		m.answered = m.answered[1:]
	}
}

// resolved handles a SIDR REP. A SIDR REP counts only from the host that was asked, with the
// request ID and service ID of the request. QPN 0, QPN 1 and 0xffffff are no queue pairs for
// data: 0 and 1 are for management, 0xffffff is multicast.
func (m *Machine) resolved(src netip.Addr, r SIDRREP) {
	id := m.ofPeer(src, r.RequestID)
	if id == nil || id.State != SIDRREQSent || id.Resolution.REQ.ServiceID != r.ServiceID {
		m.n.DropUnknown++
		return
	}
	id.Resolution.REP = r
	m.Forget(id)
	switch {
	case r.Status != SIDRValid:
		m.event(Event{Kind: Rejected, ID: id, Err: fmt.Errorf("%v has no queue pair for datagrams: %v", id.Peer, r.Status)})
	case r.QPN <= wire.QP1 || r.QPN == wire.PSNMask:
		m.event(Event{
			Kind: Rejected, ID: id,
			Err: fmt.Errorf("%v answered with the impossible queue pair %#x", id.Peer, r.QPN),
		})
	default:
		m.event(Event{Kind: Resolved, ID: id})
	}
}

// leaveSIDR takes an ID out of the counts and tables of resolution.
func (m *Machine) leaveSIDR(id *ID) {
	switch id.State {
	case SIDRREQSent:
		m.resolving--
	case SIDRREQReceived, SIDRAnswered:
		delete(m.sidrs, peerSIDR{id.Peer, id.Remote})
	}
}
