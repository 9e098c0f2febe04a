package cm

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Times of our own repetitions. Linux waits for seconds, because its times are made for a fabric
// with a subnet manager. A lost datagram need not cost that much.
const (
	resendFirst = 200 * rdma.Millisecond
	resendMax   = 4 * rdma.Second
	dreqLimit   = 4 * rdma.Second

	timeWaitMin = 500 * rdma.Millisecond
	timeWaitMax = 4 * rdma.Second

	// replyLimit bounds how long an unanswered REP is repeated. It is longer than a kernel takes to
	// give up its REQ, which it repeats every six seconds.
	replyLimit = 30 * rdma.Second

	// outMax bounds the datagrams that wait for the link. More are lost, as the network loses them.
	outMax = 512
)

// outgoing is a datagram to be sent.
type outgoing struct {
	flow wire.Flow
	mad  []byte
}

// HasWork reports whether Transmit would send something.
func (m *Machine) HasWork() bool { return len(m.out) > 0 }

// Transmit appends waiting datagrams to b and reports whether more wait. b refers to their memory
// until it is sent; the machine does not use that memory again.
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
	m.out = append([]*outgoing(nil), m.out[n:]...)
	return len(m.out) > 0
}

// send queues a datagram for Transmit. It is lost if too many wait. The machine encodes a new MAD
// for each message or reuses ID.Msg, which nobody changes after repeat. So a datagram in out and
// an ID can share their bytes.
func (m *Machine) send(to netip.Addr, mad []byte) {
	if len(m.out) >= outMax {
		m.n.DropFull++
		return
	}
	m.out = append(m.out, &outgoing{flow: wire.Flow{Src: m.cfg.Addr, Dst: to.Unmap(), SrcPort: wire.Port}, mad: mad})
}

func (m *Machine) sendIDs(id *ID, a Attr, tid uint64) {
	m.send(id.Peer.Addr(), IDs{LocalID: id.Local, RemoteID: id.Remote}.Encode(Header{TID: tid, Attr: a}))
}

func (m *Machine) sendREJ(to netip.Addr, tid uint64, r *REJ, private []byte) {
	copy(r.Private[:], private)
	m.n.TxREJ++
	m.send(to, r.Encode(Header{TID: tid}))
}

// sendTimeout tells the peer that we have given up (REJ 4). The peer may not have answered yet, so
// the REJ names the connection by our GUID and communication ID.
func (m *Machine) sendTimeout(id *ID) {
	r := &REJ{LocalID: id.Local, RemoteID: id.Remote, Message: OfOther, Reason: Timeout, InfoLen: guidLen}
	binary.BigEndian.PutUint64(r.Info[:], m.cfg.GUID)
	m.sendREJ(id.Peer.Addr(), id.TID, r, nil)
}

// sendMRA answers a repeated message whose consumer has not answered it yet.
func (m *Machine) sendMRA(id *ID, tid uint64, of uint8) {
	a := MRA{LocalID: id.Local, RemoteID: id.Remote, Message: of, Timeout: mraService}
	m.n.TxMRA++
	m.send(id.Peer.Addr(), a.Encode(Header{TID: tid}))
}

// repeat sends mad now, and again until the ID's state changes or limit is over.
//
//	sent at   0   0.2   0.6   1.4   3.0   6.2   10.2   14.2 ...  seconds, until limit
func (m *Machine) repeat(now rdma.Time, id *ID, mad []byte, limit rdma.Time) {
	id.Msg, id.Every, id.since, id.Limit = mad, resendFirst, now, now+limit
	m.send(id.Peer.Addr(), mad)
	m.schedule(id, now+id.Every)
}

// schedule sets the deadline of an ID.
func (m *Machine) schedule(id *ID, at rdma.Time) {
	id.Due = at
	if id.index < 0 {
		heap.Push(&m.timers, id)
	} else {
		heap.Fix(&m.timers, id.index)
	}
}

// stop ends the repetitions and the deadline of an ID.
func (m *Machine) stop(id *ID) {
	if id.index >= 0 {
		heap.Remove(&m.timers, id.index)
	}
	id.Msg = nil
}

// Deadline is when Expire has to be called, 0 for never.
func (m *Machine) Deadline() (d rdma.Time) {
	if len(m.queue.reqs) > 0 {
		d = m.queue.due
	}
	if len(m.timers) > 0 {
		d = rdma.Earlier(d, m.timers[0].Due)
	}
	return d
}

// Expire handles the deadlines that have passed.
//
//	state                            deadline
//	REQSent, REPSent, SIDRREQSent    repeat, or give up: Unreachable
//	DREQSent                         repeat, or TimeWait: the peer may be gone
//	TimeWait                         Gone
//	SIDRREQReceived, SIDRAnswered    the entry is deleted
func (m *Machine) Expire(now rdma.Time) {
	if len(m.queue.reqs) > 0 && m.queue.due <= now {
		m.takeQueue(now)
	}
	for len(m.timers) > 0 && m.timers[0].Due <= now {
		id := m.timers[0]
		switch {
		case id.State == TimeWait:
			m.gone(id)
		case id.State == SIDRREQReceived || id.State == SIDRAnswered:
			m.Forget(id)
		case now < id.Limit:
			m.n.Resent++
			m.send(id.Peer.Addr(), id.Msg)
			id.Every = min(2*id.Every, resendMax)
			m.schedule(id, min(now+id.Every, id.Limit))
		case id.State == DREQSent:
			m.timeWait(now, id)
		default:
			m.giveUp(now, id)
		}
	}
}

// giveUp ends the wait for the answer to a REQ, a REP or a SIDR REQ.
func (m *Machine) giveUp(now rdma.Time, id *ID) {
	m.n.Timeouts++
	waited := (now - id.since) / rdma.Second
	var err error
	switch id.State {
	case SIDRREQSent:
		err = fmt.Errorf("%v did not answer the SIDR REQ: is UDP port %d open on both sides?", id.Peer, wire.Port)
	case REPSent:
		err = fmt.Errorf("%v asked for a connection and did not confirm our REP for %d s: "+
			"does UDP port %d get through to it?", id.Peer, waited, wire.Port)
	default:
		err = fmt.Errorf("%v did not answer the CM REQ for %d s: "+
			"is UDP port %d open on both sides, and does something serve RDMA there?", id.Peer, waited, wire.Port)
	}
	if id.State != SIDRREQSent {
		m.sendTimeout(id)
	}
	m.Forget(id)
	m.event(Event{Kind: Unreachable, ID: id, Err: err})
}

// gone ends TimeWait. The owner may use the QPN again.
func (m *Machine) gone(id *ID) {
	m.Forget(id)
	m.event(Event{Kind: Gone, ID: id})
}

// timeWait prevents that the identities of a connection are used again while packets of it may
// still be on their way. The time is about the ACK timeout of the REQ, 4.096 us * 2^n or 1 ms *
// 2^(n-8), within timeWaitMin and timeWaitMax. The record in the ledger ends here, because the
// peer has ended the connection too, or does not answer.
func (m *Machine) timeWait(now rdma.Time, id *ID) {
	m.stop(id)
	m.leavePending(id)
	m.strike(id)
	id.State = TimeWait
	m.waiting++
	d := rdma.Millisecond << max(0, int(id.REQ.Primary.AckTimeout)-8)
	m.schedule(id, now+min(max(d, timeWaitMin), timeWaitMax))
	if m.waiting > m.cfg.TimeWaitMax {
		// In a flood the oldest leaves early; its QP number stays random.
		for _, w := range m.timers {
			if w.State == TimeWait && w != id {
				m.n.TimeWaitEvicted++
				m.gone(w)
				break
			}
		}
	}
}

// deadlines is a heap of IDs by time.
type deadlines []*ID

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].Due < d[j].Due }
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
