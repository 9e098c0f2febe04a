package cm

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// Receive takes the payload of a datagram to QP1 whose Q_Key and ICRC were
// checked, from src to dst.
func (m *Machine) Receive(now rdma.Time, src, dst netip.Addr, mad []byte) {
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
			d := IDs{LocalID: id.Local, RemoteID: id.Remote}
			m.send(src, d.apr(Header{TID: h.TID}))
		}
	default:
		m.n.Unsupported++
	}
}

// find looks a connection up by both communication IDs and the peer's address.
func (m *Machine) find(src netip.Addr, d IDs) *ID {
	id := m.ids[d.RemoteID]
	if id == nil || id.Remote != d.LocalID || id.Peer.Addr() != src.Unmap() {
		m.n.DropUnknown++
		return nil
	}
	return id
}

// request takes a REQ (spec: IBTA 12.9.7.1, passive side).
func (m *Machine) request(now rdma.Time, src, dst netip.Addr, h Header, r REQ) {
	src, dst = src.Unmap(), dst.Unmap()
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
			m.send(src, known.msg)
		case TimeWait:
			m.n.Stale++
			reject(StaleConnection)
		}
		return
	}
	port, ok := ServicePort(r.ServiceID)
	if !ok || !m.listen[port] {
		if !ok || !m.keep(earlyREQ{now, src, dst, h, r}) {
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
			m.enqueue(now, due, earlyREQ{now, src, dst, h, r})
			return
		}
		m.n.DropFull++
		reject(NoResources)
		return
	}
	id := m.newID()
	id.State, id.Remote, id.Peer, id.Service, id.REQ, id.tid = REQReceived, r.LocalID, ip.Src, port, r, h.TID
	m.ask(id)
	m.bind(id, r.GUID, r.LocalID, r.QPN)
	m.event(Event{Kind: ConnRequest, ID: id})
}

// reply takes a REP (active side).
func (m *Machine) reply(src netip.Addr, h Header, r REP) {
	src = src.Unmap()
	id := m.ids[r.RemoteID]
	if id == nil || id.Peer.Addr() != src || !id.Active {
		// We gave up, or this is from before a restart. The peer would repeat
		// its REP for a minute and hold its queue pair for so long.
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
		id.State, id.Remote, id.REP, id.tid = REPReceived, r.LocalID, r, h.TID
		m.bind(id, r.GUID, r.LocalID, r.QPN)
		m.event(Event{Kind: Reply, ID: id})
	case REPReceived:
		m.n.Duplicates++
		m.sendMRA(id, h.TID, OfREP)
	case Established:
		m.n.Duplicates++
		m.n.TxRTU++
		m.sendIDs(id, AttrRTU, id.tid) // our RTU was lost
	default:
		m.n.DropState++
	}
}

// rejectedID finds the connection that a REJ is about. A REJ of a REQ may come
// without an ID of the peer's. One of a peer that waited in vain for our REP comes without
// ours, and says by its GUID whose communication ID it gives. It ends attempts only: a peer that
// has our REP knows our ID.
func (m *Machine) rejectedID(src netip.Addr, r *REJ) *ID {
	if r.Reason == Timeout && r.InfoLen >= guidLen {
		if id := m.comms[peerComm{src, binary.BigEndian.Uint64(r.Info[:]), r.LocalID}]; id != nil && (id.State == REQReceived || id.State == REPSent) {
			return id
		}
	}
	id := m.ids[r.RemoteID]
	if id == nil || id.Peer.Addr() != src {
		return nil
	}
	if id.State == REQSent || id.Remote == r.LocalID {
		return id
	}
	return nil
}

// rejected takes a REJ: of our REQ, of our REP, or because the peer gave up.
func (m *Machine) rejected(now rdma.Time, src netip.Addr, r REJ) {
	id := m.rejectedID(src.Unmap(), &r)
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

// retryMTU sends a new REQ with a smaller path MTU if the REJ says that the peer's interface does not carry the
// MTU of the last REQ. It reports whether it did. The new MTU is what the REJ suggests in its additional
// information (IBTA 12.6.7), or the next smaller one. CM has no other way to negotiate the path MTU: the
// passive side of a connection takes the MTU of the REQ, or refuses. The new REQ has a new communication ID,
// because the peer may still remember the old one.
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
	id.Local, id.tid, id.mra = m.newCommID(), m.newTID(), false
	m.ids[id.Local] = id
	id.REQ.LocalID, id.REQ.MTU = id.Local, code
	m.n.TxREQ++
	m.repeat(now, id, id.REQ.Encode(Header{TID: id.tid}), m.cfg.ConnectLimit)
	return true
}

// moreTime takes an MRA: the peer has our REQ or REP and needs longer.
func (m *Machine) moreTime(now rdma.Time, src netip.Addr, a MRA) {
	id := m.ids[a.RemoteID]
	if id == nil || id.Peer.Addr() != src.Unmap() {
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
		m.n.Duplicates++ // once: a peer cannot hold our resources for ever
		return
	}
	id.mra = true
	wait := min(max(rdma.Time(4096)<<a.Timeout, id.every), mraMax)
	id.limit = max(id.limit, now+wait+m.cfg.ConnectLimit)
	m.schedule(id, now+wait)
}

// sendMRA tells a peer that repeats itself that our consumer is still busy with
// what it sent.
func (m *Machine) sendMRA(id *ID, tid uint64, of uint8) {
	a := MRA{LocalID: id.Local, RemoteID: id.Remote, Message: of, Timeout: mraService}
	m.n.TxMRA++
	m.send(id.Peer.Addr(), a.Encode(Header{TID: tid}))
}

// disconnect takes a DREQ. One for a connection that is unknown is answered
// all the same, so that its sender can forget it.
func (m *Machine) disconnect(now rdma.Time, src netip.Addr, h Header, d IDs) {
	id := m.ids[d.RemoteID]
	if id == nil || id.Remote != d.LocalID || id.Peer.Addr() != src.Unmap() {
		m.n.DropUnknown++
		m.n.TxDREP++
		a := IDs{LocalID: d.RemoteID, RemoteID: d.LocalID}
		m.send(src, a.Encode(Header{TID: h.TID, Attr: AttrDREP}))
		return
	}
	if d.QPN != id.localQPN {
		m.n.DropState++ // not meant for this connection
		return
	}
	switch id.State {
	case REPSent, Established, DREQSent:
		told := id.State == DREQSent
		m.timeWait(now, id)
		if !told {
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
