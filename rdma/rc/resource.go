package rc

import (
	"encoding/binary"
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// newResource replaces the oldest resource by one for a new READ or atomic. A peer with more
// READs and atomics in flight than negotiated gets a NAK "invalid request" (IBTA 9.7.4.1).
func (q *QP) newResource(p *wire.Packet, need rdma.Access) *resource {
	r := &q.resp
	if len(r.resources) == 0 || q.attr.Access&need == 0 {
		q.refuse(p, wire.NAKInvalidRequest, fmt.Sprintf("%v is not allowed on the queue pair", p.Op))
		return nil
	}
	h := &r.resources[r.oldest]
	if h.active && h.answered {
		// The response is being repeated for a late duplicate. The peer has all of it, or it
		// could not send a new request.
		r.active--
	} else if h.active {
		q.refuse(p, wire.NAKInvalidRequest, fmt.Sprintf("more than %d READs and atomics at once", len(r.resources)))
		return nil
	}
	r.oldest = (r.oldest + 1) % len(r.resources)
	*h = resource{used: true}
	return h
}

// serveRead starts the response to a READ request. It is sent by transmitResponses.
func (q *QP) serveRead(p *wire.Packet) {
	r := &q.resp
	if p.RETH.Len > MessageMax {
		q.refuse(p, wire.NAKInvalidRequest, "a READ of more than 2^31 bytes")
		return
	}
	if q.attr.Access&rdma.RemoteRead != 0 && p.RETH.Len > 0 {
		_, st := q.cfg.Mem.Remote(q.cfg.PD, q.cfg.Num, p.RETH.RKey, p.RETH.VA, p.RETH.Len, rdma.RemoteRead)
		if st != rdma.Success {
			q.refuse(p, wire.NAKRemoteAccess, "a READ outside of memory it may read")
			return
		}
	}
	h := q.newResource(p, rdma.RemoteRead)
	if h == nil {
		return
	}
	h.psn, h.va, h.rkey, h.length = p.PSN, p.RETH.VA, p.RETH.RKey, p.RETH.Len
	h.count = q.packets(h.length)
	ask := p.AckReq
	p.AckReq = false // the response is the acknowledgement
	q.executed(p, h.count)
	p.AckReq = ask
	r.activate(h, h.psn, h.psn.Add(h.count))
}

// activate makes the response packets from to end-1 of a resource due.
func (r *responder) activate(h *resource, from, end wire.PSN) {
	if !h.active {
		h.active = true
		r.active++
	}
	h.start, h.at, h.end = from, from, end
}

// serveAtomic executes a CompareSwap or FetchAdd and remembers its result. Atomics are atomic with
// respect to other requests of the same loop only, not to the processor.
func (q *QP) serveAtomic(p *wire.Packet) {
	r := &q.resp
	if p.Atomic.VA&7 != 0 {
		q.refuse(p, wire.NAKInvalidRequest, "an atomic on an unaligned address")
		return
	}
	b, st := q.cfg.Mem.Remote(q.cfg.PD, q.cfg.Num, p.Atomic.RKey, p.Atomic.VA, 8, rdma.RemoteAtomic)
	if q.attr.Access&rdma.RemoteAtomic != 0 && st != rdma.Success {
		q.refuse(p, wire.NAKRemoteAccess, "an atomic on memory it may not change")
		return
	}
	h := q.newResource(p, rdma.RemoteAtomic)
	if h == nil {
		return
	}
	old := binary.NativeEndian.Uint64(b)
	if p.Op == wire.FetchAdd {
		binary.NativeEndian.PutUint64(b, old+p.Atomic.SwapAdd)
	} else if old == p.Atomic.Compare {
		binary.NativeEndian.PutUint64(b, p.Atomic.SwapAdd)
	}
	h.atomic, h.psn, h.count, h.value = true, p.PSN, 1, old
	ask := p.AckReq
	p.AckReq = false
	q.executed(p, 1)
	p.AckReq = ask
	r.activate(h, h.psn, h.psn.Add(1))
}
