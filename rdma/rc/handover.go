package rc

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Quiescent reports whether nothing is in flight: no request of ours, no message of the peer, no
// response to it, and no completion that was not polled. Only then can the QP be exported.
func (q *QP) Quiescent() bool {
	return q.state == rdma.StateRTS && q.sq.Len() == 0 && q.req.una == q.req.next && q.resp.in == noMessage &&
		q.resp.active == 0 && q.send.Len() == 0 && q.recv.Len() == 0
}

// Snapshot is the state of a quiescent QP, from which another process can continue. It does not
// have the answered READs and atomics: their memory is not handed over, so a late duplicate of them
// gets no response. The window of the network, the round-trip times and the repeated NAKs are
// estimates: without them the connection is slower at first, and still correct.
type Snapshot struct {
	Attr     rdma.QPAttr
	Next     wire.PSN // of our next request
	Expected wire.PSN // of the peer's next request
	MSN      uint32
	OwesAck  bool // or a NAK
	NoICRC   bool // see QP.OmitICRC

	// Missing says that the peer sent requests up to Known, and that the first of them was lost.
	// ACKs is the number of acknowledgements to repeat if nothing is missing. See nakRepeat.
	Missing bool
	Known   wire.PSN
	ACKs    int

	// Measurements of the network, in nanoseconds and in packets.
	RTT, RTTVar, Timeout   rdma.Time
	MinRTT                 [2]rdma.Time
	SendWindow, ReadWindow SnapshotWindow
}

// SnapshotWindow is a congestion window.
type SnapshotWindow struct{ Size, Threshold int }

// Export describes the QP, which must be quiescent. The QP does not change. The owner has stopped
// the loop: no packet arrives between Export and the end of this QP. The peer notices nothing,
// because both processes use the same addresses, QPN and PSNs.
func (q *QP) Export() (Snapshot, error) {
	if !q.Quiescent() {
		return Snapshot{}, fmt.Errorf("%w: queue pair %d in %v is not quiescent", rdma.ErrBadTransition, q.cfg.Num, q.state)
	}
	r, m := &q.req, &q.resp.repeat
	return Snapshot{
		Attr: q.attr, Next: r.next, Expected: q.resp.epsn, MSN: q.resp.msn,
		OwesAck: q.resp.ackDue || q.resp.nakDue, NoICRC: q.noICRC,
		Missing: m.on, Known: m.known, ACKs: m.acks,
		RTT: r.srtt, RTTVar: r.rttvar, Timeout: r.rto, MinRTT: r.minRTT,
		SendWindow: SnapshotWindow{r.window.size, r.window.threshold},
		ReadWindow: SnapshotWindow{r.readWindow.size, r.readWindow.threshold},
	}, nil
}

// Import brings a QP in RESET to the state of s.
func (q *QP) Import(now rdma.Time, s *Snapshot) error {
	a := s.Attr
	a.RQPSN, a.SQPSN = uint32(s.Expected), uint32(s.Next)
	for _, state := range []rdma.QPState{rdma.StateInit, rdma.StateRTR, rdma.StateRTS} {
		a.State = state
		if err := q.Modify(now, a); err != nil {
			return err
		}
	}
	q.attr = s.Attr
	q.attr.State = rdma.StateRTS
	if s.NoICRC {
		q.OmitICRC()
	}
	q.resp.msn = s.MSN & wire.PSNMask
	q.resp.ackDue = s.OwesAck
	r := &q.req
	if s.RTT > 0 {
		r.srtt, r.rttvar, r.minRTT, r.minRTTSince = s.RTT, max(s.RTTVar, 0), s.MinRTT, now
		r.rto = min(max(s.Timeout, rtoFloor), max(r.ceiling, rtoInitial))
	}
	switch {
	case s.Missing:
		q.missing(now, s.Known&wire.PSNMask)
	case s.ACKs > 0:
		q.resp.repeat.acks = min(s.ACKs, ackRepeats)
		q.armRepeat(now)
	}
	r.window.resume(s.SendWindow)
	r.readWindow.resume(s.ReadWindow)
	q.pace(now)
	return nil
}

// resume restores a window, bounded by the maximum of this one.
func (w *window) resume(s SnapshotWindow) {
	if w.fixed || s.Size <= 0 {
		return
	}
	w.size = min(max(s.Size, sizeMin), w.most)
	w.threshold = min(max(s.Threshold, sizeMin), w.most)
}
