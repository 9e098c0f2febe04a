package cm

import (
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
		m.request(src, dst, h, ParseREQ(mad))
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
		m.n.Unsupported++
		m.refuseSIDR(src, h, mad)
	default:
		m.n.Unsupported++ // a LAP times out at its sender, which stays on its path
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
func (m *Machine) request(src, dst netip.Addr, h Header, r REQ) {
	src, dst = src.Unmap(), dst.Unmap()
	if known := m.comms[peerComm{r.GUID, r.LocalID}]; known != nil && known.Peer.Addr() == src {
		m.n.Duplicates++
		switch known.State {
		case REQReceived:
			a := MRA{LocalID: known.Local, RemoteID: known.Remote, Timeout: mraService}
			m.n.TxMRA++
			m.send(src, a.Encode(Header{TID: h.TID}))
		case REPSent:
			m.send(src, known.msg)
		case TimeWait:
			m.n.Stale++
			m.sendREJ(src, h.TID, 0, r.LocalID, 0, StaleConnection, nil)
		}
		return
	}
	reject := func(why Reason) { m.sendREJ(src, h.TID, 0, r.LocalID, 0, why, nil) }
	port, ok := ServicePort(r.ServiceID)
	if !ok || !m.listen[port] {
		reject(InvalidServiceID)
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
	if m.pending >= m.cfg.PendingMax {
		m.n.DropFull++
		reject(NoResources)
		return
	}
	if old := m.qpns[peerQPN{r.GUID, r.QPN}]; old != nil && old.Peer.Addr() == src && old.State != TimeWait {
		// The peer has made a new connection with a QP that we still hold one
		// to: it restarted, or lost the old one. It is gone.
		m.n.Stale++
		was := old.State
		m.Forget(old)
		if was != Idle {
			m.event(Event{Kind: Disconnected, ID: old, Err: fmt.Errorf("%v connected anew with the same queue pair", old.Peer)})
		}
	}
	id := m.newID()
	id.State, id.Remote, id.Peer, id.Service, id.REQ, id.tid = REQReceived, r.LocalID, ip.Src, port, r, h.TID
	m.pending++
	m.bind(id, r.GUID, r.LocalID, r.QPN)
	m.event(Event{Kind: ConnRequest, ID: id})
}

// reply takes a REP (active side).
func (m *Machine) reply(src netip.Addr, h Header, r REP) {
	id := m.ids[r.RemoteID]
	if id == nil || id.Peer.Addr() != src.Unmap() || !id.Active {
		m.n.DropUnknown++
		return
	}
	switch id.State {
	case REQSent:
	case Established:
		m.n.Duplicates++
		if id.Remote == r.LocalID {
			m.sendIDs(id, AttrRTU, id.tid) // our RTU was lost
			m.n.TxRTU++
		}
		return
	default:
		m.n.DropState++
		return
	}
	m.stop(id)
	id.State, id.Remote, id.REP, id.tid = REPReceived, r.LocalID, r, h.TID
	m.bind(id, r.GUID, r.LocalID, r.QPN)
	m.event(Event{Kind: Reply, ID: id})
}

func (m *Machine) rejected(now rdma.Time, src netip.Addr, r REJ) {
	id := m.ids[r.RemoteID]
	if id == nil && r.RemoteID == 0 {
		// A REJ by timeout names its sender's ID alone.
		for _, c := range m.timers {
			if c.Remote == r.LocalID && c.Peer.Addr() == src.Unmap() && c.State == REPSent {
				id = c
				break
			}
		}
	}
	if id == nil || id.Peer.Addr() != src.Unmap() {
		m.n.DropUnknown++
		return
	}
	e := Event{
		ID: id, Kind: Rejected, Reason: r.Reason, Private: append([]byte(nil), r.Private[:]...),
		Err: fmt.Errorf("%v rejected the connection: %v", id.Peer, r.Reason),
	}
	switch id.State {
	case REQSent, REPSent:
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

// moreTime takes an MRA: the peer has our REQ or REP and needs longer.
func (m *Machine) moreTime(now rdma.Time, src netip.Addr, a MRA) {
	id := m.ids[a.RemoteID]
	if id == nil || id.Peer.Addr() != src.Unmap() || id.mra {
		m.n.DropUnknown++
		return
	}
	if id.State == REQSent && a.Message == 0 || id.State == REPSent && a.Message == 1 {
		id.mra = true // once: a peer cannot hold our resources for ever
		wait := min(rdma.Time(4096)<<a.Timeout, 60*rdma.Second)
		id.limit = max(id.limit, now+wait+m.cfg.ConnectLimit)
		m.schedule(id, now+wait)
	}
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

// SIDR_REP offsets and status.
const sidrUnsupported = 1

func (m *Machine) refuseSIDR(src netip.Addr, h Header, mad []byte) {
	b := newMAD(Header{TID: h.TID, Attr: AttrSIDRREP})
	copy(b[bodyAt:bodyAt+4], mad[bodyAt:bodyAt+4])        // request ID
	b[bodyAt+4] = sidrUnsupported                         //
	copy(b[bodyAt+12:bodyAt+20], mad[bodyAt+8:bodyAt+16]) // service ID
	m.send(src, b)
}
