package rc

import (
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wq"
)

// Placement returns the memory for the payload of a packet whose ICRC was not checked yet, so that
// the caller can copy and check in one pass. It changes nothing. It returns nil for packets whose
// payload Receive copies.
//
// If the caller has copied the payload, and the ICRC is right, it sets p.Placed and calls Receive
// next. If the ICRC is wrong, it drops the packet. The memory then has wrong bytes until the peer
// has sent the packet again. Nobody may read it before: its message is not complete.
//
// So memory is returned for middle packets of READ responses only, and only for the packet that is
// due: its place follows from the packets before it, whose ICRC was right, and not from its own
// headers. The packet that completes a READ is checked before it is copied. RDMA WRITEs have no
// place: the peer could see wrong bytes in its region, by a READ or after the connection has ended.
func (q *QP) Placement(p *wire.Packet) []byte {
	if p.Op != wire.ReadRespMiddle || len(p.Payload) != q.mtu || p.Pad != 0 || !q.serving() ||
		q.state == rdma.StateRTR || !q.fromPeer(p) || !wire.PKeysMatch(p.PKey, q.attr.PKey) ||
		p.PSN != q.req.una || q.sq.Len() == 0 {
		return nil
	}
	n, e := uint32(q.mtu), q.sq.Front()
	if !e.started || e.wr.Op != rdma.OpRead || p.PSN.Before(e.psn) || p.PSN.After(e.last()) || n > e.length-e.got {
		return nil
	}
	return wq.At(e.sgl, e.got, n)
}

// serving reports whether packets of the peer are handled in the state of the QP.
func (q *QP) serving() bool {
	return q.state == rdma.StateRTR || q.state == rdma.StateRTS || q.state == rdma.StateSQD
}

// fromPeer reports whether the addresses of p are those of the connection.
func (q *QP) fromPeer(p *wire.Packet) bool { return p.Src == q.flow.Dst && p.Dst == q.flow.Src }
