package cm

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// Receive handles the payload of a datagram to QP1 from src to dst. The caller has checked Q_Key
// and ICRC. A message that fits no connection and no state is counted and dropped, unless its
// sender would repeat it for long.
func (m *Machine) Receive(now rdma.Time, src, dst netip.Addr, mad []byte) {
	src, dst = src.Unmap(), dst.Unmap()
	h, err := ParseHeader(mad)
	if err != nil {
		m.n.DropMalformed++
		return
	}
	switch h.Attr {
	case AttrREQ:
		m.n.RxREQ++
		m.request(now, src, dst, h, ParseREQ(mad))
	case AttrREP:
		m.n.RxREP++
		m.reply(src, h, ParseREP(mad))
	case AttrRTU:
		m.n.RxRTU++
		if id := m.find(src, ParseIDs(mad)); id != nil && id.State == REPSent {
			m.established(id)
		}
	case AttrREJ:
		m.n.RxREJ++
		m.rejected(now, src, ParseREJ(mad))
	case AttrMRA:
		m.n.RxMRA++
		m.moreTime(now, src, ParseMRA(mad))
	case AttrDREQ:
		m.n.RxDREQ++
		m.disconnect(now, src, h, ParseIDs(mad))
	case AttrDREP:
		m.n.RxDREP++
		if id := m.find(src, ParseIDs(mad)); id != nil && id.State == DREQSent {
			m.timeWait(now, id)
		}
	case AttrSIDRREQ:
		m.n.RxSIDRREQ++
		m.resolveRequest(now, src, dst, h, ParseSIDRREQ(mad))
	case AttrSIDRREP:
		m.n.RxSIDRREP++
		m.resolved(src, ParseSIDRREP(mad))
	case AttrLAP:
		m.n.Unsupported++
		if id := m.find(src, ParseIDs(mad)); id != nil && id.State == Established {
			m.send(src, IDs{LocalID: id.Local, RemoteID: id.Remote}.apr(Header{TID: h.TID}))
		}
	default:
		m.n.Unsupported++
	}
}

// ofPeer is the connection with our communication ID local if it is one with src, or nil.
func (m *Machine) ofPeer(src netip.Addr, local uint32) *ID {
	if id := m.ids[local]; id != nil && id.Peer.Addr() == src {
		return id
	}
	return nil
}

// find is ofPeer for a message with both communication IDs. It counts the messages of none.
func (m *Machine) find(src netip.Addr, d IDs) *ID {
	if id := m.ofPeer(src, d.RemoteID); id != nil && id.Remote == d.LocalID {
		return id
	}
	m.n.DropUnknown++
	return nil
}

// request handles a REQ. A REQ that is known already is a repetition: it gets the same answer
// again. The addresses in the REQ must be those of the packet, because everything is sent to them.
//
//	check                                      REJ
//	known: REQReceived                         none: an MRA
//	known: REPSent                             none: the REP again
//	known: TimeWait                            stale connection
//	known: another state                       none: the peer has the REP
//	nobody listens on the service ID           invalid service ID
//	transport is RC                            invalid transport
//	private data has an IPHeader               unsupported request
//	addresses are those of the packet          invalid GID
//	path MTU is a code                         invalid MTU
//	there is a place                           none: the REQ waits; no resources
func (m *Machine) request(now rdma.Time, src, dst netip.Addr, h Header, r REQ) {
	reject := func(why Reason) {
		m.sendREJ(src, h.TID, &REJ{RemoteID: r.LocalID, Message: OfREQ, Reason: why}, nil)
		if m.cfg.Refused != nil {
			m.cfg.Refused(src, &r, why)
		}
	}
	if known := m.comms[peerComm{src, r.GUID, r.LocalID}]; known != nil {
		m.n.Duplicates++
		switch known.State {
		case REQReceived:
			m.sendMRA(known, h.TID, OfREQ)
		case REPSent:
			m.send(src, known.Msg)
		case TimeWait:
			m.n.Stale++
			reject(StaleConnection)
		}
		return
	}
	port, ok := ServicePort(r.ServiceID)
	if !ok || !m.listen[port] {
		if !ok || !m.postpone(waitingREQ{now, src, dst, h, r}) {
			reject(InvalidServiceID)
		}
		return
	}
	if r.Transport != 0 || r.ExtendedTransport != 0 {
		reject(InvalidTransport)
		return
	}
	ip, err := ParseIPHeader(r.Private[:])
	if err != nil {
		reject(UnsupportedRequest)
		return
	}
	if ip.Src.Addr() != src || r.Primary.LocalGID != src || ip.Dst != dst || r.Primary.RemoteGID != dst {
		reject(InvalidGID)
		return
	}
	if rdma.MTUFromCode(r.MTU) == 0 {
		reject(InvalidMTU)
		return
	}
	if room, due := m.makeRoom(now, src); !room {
		if due != 0 {
			m.enqueue(now, due, waitingREQ{now, src, dst, h, r})
			return
		}
		m.n.DropFull++
		reject(NoResources)
		return
	}
	id := m.newID(REQReceived, ip.Src, port)
	id.Remote, id.REQ, id.TID = r.LocalID, r, h.TID
	m.ask(id)
	m.bind(id, r.GUID, r.LocalID, r.QPN)
	m.event(Event{Kind: ConnRequest, ID: id})
}

// reply handles a REP. A REP of a connection that does not exist is rejected: its sender would
// otherwise repeat it for a minute, and retain its queue pair for so long. We may have given up, or
// restarted.
//
//	state          answer
//	REQSent        Reply
//	REPReceived    MRA: our user has not confirmed yet
//	Established    RTU again: ours was lost
//	other states   none
func (m *Machine) reply(src netip.Addr, h Header, r REP) {
	id := m.ofPeer(src, r.RemoteID)
	if id == nil || !id.Active {
		m.n.DropUnknown++
		m.sendREJ(src, h.TID, &REJ{LocalID: r.RemoteID, RemoteID: r.LocalID, Message: OfREP, Reason: InvalidCommID}, nil)
		return
	}
	if id.State != REQSent && id.Remote != r.LocalID {
		m.n.DropUnknown++
		return
	}
	switch id.State {
	case REQSent:
		m.stop(id)
		id.State, id.Remote, id.REP, id.TID = REPReceived, r.LocalID, r, h.TID
		m.bind(id, r.GUID, r.LocalID, r.QPN)
		m.event(Event{Kind: Reply, ID: id})
	case REPReceived:
		m.n.Duplicates++
		m.sendMRA(id, h.TID, OfREP)
	case Established:
		m.n.Duplicates++
		m.n.TxRTU++
		m.sendIDs(id, AttrRTU, id.TID) // our RTU was lost
	default:
		m.n.DropState++
	}
}

// rejectedID finds the connection that a REJ is about, or nil. Usually both communication IDs name
// it.
//
//   - A REJ of a REQ may come without an ID of the peer.
//   - A peer that waited in vain for our REP does not know our ID. Its REJ for a timeout has its
//     GUID and its own ID. Such a REJ ends attempts only: a peer that has our REP knows our ID.
func (m *Machine) rejectedID(src netip.Addr, r *REJ) *ID {
	if r.Reason == Timeout && r.InfoLen >= guidLen {
		id := m.comms[peerComm{src, binary.BigEndian.Uint64(r.Info[:]), r.LocalID}]
		if id != nil && (id.State == REQReceived || id.State == REPSent) {
			return id
		}
	}
	if id := m.ofPeer(src, r.RemoteID); id != nil && (id.State == REQSent || id.Remote == r.LocalID) {
		return id
	}
	return nil
}

// rejected handles a REJ: of our REQ, of our REP, or because the peer gave up.
//
//	state                               result
//	REQSent, and the MTU was refused    a new REQ with a smaller MTU (retryMTU)
//	REQSent, REPReceived                Rejected
//	REQReceived, REPSent                Rejected: the peer gave up, or refused our REP
//	Established                         Disconnected, TimeWait
//	DREQSent, TimeWait                  dropped: the connection ends anyway
func (m *Machine) rejected(now rdma.Time, src netip.Addr, r REJ) {
	id := m.rejectedID(src, &r)
	if id == nil {
		m.n.DropUnknown++
		return
	}
	if m.retryMTU(now, id, &r) {
		return
	}
	e := Event{
		ID: id, Kind: Rejected, Reason: r.Reason, Private: append([]byte(nil), r.Private[:]...),
		Err: fmt.Errorf("%v rejected the connection: %v", id.Peer, r.Reason),
	}
	switch id.State {
	case REQSent, REQReceived, REPSent, REPReceived:
		m.Forget(id)
	case Established:
		// Our RTU was lost and the peer gave up, or it finds the connection stale.
		m.timeWait(now, id)
		e.Kind = Disconnected
	default:
		m.n.DropState++
		return
	}
	m.event(e)
}

// retryMTU sends a new REQ with a smaller path MTU if a REJ says that the peer's interface does not
// carry the MTU of the last REQ, and reports whether it did. The new MTU is the suggestion of the
// REJ's additional information (IBTA 12.6.7), or the next smaller one. CM has no other negotiation
// of the path MTU: the passive side uses the MTU of the REQ, or refuses it. The new REQ has a new
// communication ID, because the peer may still know the old one.
func (m *Machine) retryMTU(now rdma.Time, id *ID, r *REJ) bool {
	code := id.REQ.MTU
	if id.State != REQSent || r.Reason != InvalidMTU || code <= 1 || rdma.MTUFromCode(code) == 0 {
		return false
	}
	code--
	if most := r.mtu(); most != 0 {
		code = min(code, most)
	}
	delete(m.ids, id.Local)
	id.Local, id.TID, id.mra = m.newCommID(), m.newTID(), false
	m.ids[id.Local] = id
	id.REQ.LocalID, id.REQ.MTU = id.Local, code
	m.n.TxREQ++
	m.repeat(now, id, id.REQ.Encode(Header{TID: id.TID}), m.cfg.ConnectLimit)
	return true
}

// mraMax bounds the time that an MRA of a peer is granted.
const mraMax = 60 * rdma.Second

// moreTime handles an MRA: the peer has our REQ or REP and needs longer. It is granted once for
// each message, so that a peer cannot retain our resources for ever. The timeout of an MRA is a
// code of 5 bits, 4.096 us * 2^n: up to 2.4 hours. The machine caps the time at mraMax.
func (m *Machine) moreTime(now rdma.Time, src netip.Addr, a MRA) {
	id := m.ofPeer(src, a.RemoteID)
	if id == nil {
		m.n.DropUnknown++
		return
	}
	switch {
	case id.State == REQSent && a.Message == OfREQ:
	case id.State == REPSent && a.Message == OfREP && id.Remote == a.LocalID:
	default:
		m.n.DropState++
		return
	}
	if id.mra {
		m.n.Duplicates++
		return
	}
	id.mra = true
	wait := min(max(rdma.Time(4096)<<a.Timeout, id.Every), mraMax)
	id.Limit = max(id.Limit, now+wait+m.cfg.ConnectLimit)
	m.schedule(id, now+wait)
}

// disconnect handles a DREQ. A DREQ of an unknown connection is answered too, so that its sender
// can end the connection. The DREQ has the QPN of its receiver. A DREQ with another QPN is of an
// earlier connection, or forged, and is dropped, as Linux drops it.
//
//	state                    result
//	unknown connection       DREP
//	another QPN              dropped
//	REPSent, Established     DREP, TimeWait, Disconnected
//	DREQSent                 DREP, TimeWait: both sides disconnect; Gone follows
//	TimeWait                 DREP again: the first one was lost
//	other states             dropped
func (m *Machine) disconnect(now rdma.Time, src netip.Addr, h Header, d IDs) {
	id := m.find(src, d)
	if id == nil {
		m.n.TxDREP++
		m.send(src, IDs{LocalID: d.RemoteID, RemoteID: d.LocalID}.Encode(Header{TID: h.TID, Attr: AttrDREP}))
		return
	}
	if d.QPN != id.LocalQPN {
		m.n.DropState++ // not meant for this connection
		return
	}
	switch id.State {
	case REPSent, Established, DREQSent:
		crossed := id.State == DREQSent // both sides sent a DREQ
		m.timeWait(now, id)
		if !crossed {
			m.event(Event{Kind: Disconnected, ID: id})
		}
	case TimeWait:
	default:
		m.n.DropState++
		return
	}
	m.n.TxDREP++
	m.sendIDs(id, AttrDREP, h.TID)
}
