package rc

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wq"
)

// Memory is the memory that a QP may access: the table of regions and windows. Its methods are
// called for every packet and must not block.
type Memory interface {
	// Local checks that buf lies in the region named by lkey in domain pd, and
	// that the region may be written if write is set.
	Local(pd, lkey uint32, buf []byte, write bool) rdma.Status
	// Remote resolves n bytes at va in the region named by rkey. It returns Success, or
	// RemAccessErr if key, domain, rights or range do not allow the access. All of rkey, va and n
	// are the peer's choice. qpn is the queue pair of the request: a window may be bound to one.
	Remote(pd, qpn, rkey uint32, va uint64, n uint32, need rdma.Access) ([]byte, rdma.Status)
	// Invalidate ends remote access through key, for the peer's SEND with invalidate or for an
	// OpLocalInv.
	Invalidate(pd, qpn, key uint32) rdma.Status
	// Bind executes an OpBindMW or OpReg.
	Bind(pd, qpn uint32, w *rdma.SendWR) rdma.Status
}

const (
	// sendWindow bounds the request packets without an acknowledgement, readWindow the bytes of
	// READ requests without a response.
	sendWindow = 256
	readWindow = 2 << 20
	// localWindow is sendWindow within a host, where no port is shared.
	localWindow = 512
	// sgeMax is the number of gather or scatter elements of a work request.
	sgeMax = wire.PartsMax
)

// MessageMax is the longest message (IBTA 9.7.4.1.6).
const MessageMax = 1 << 31

// Config describes a QP to create.
type Config struct {
	Num      uint32 // QP number, 24 bits
	PD       uint32 // protection domain, as Memory knows it
	Mem      Memory
	SRQ      *SRQ // source of receives; nil for a receive queue of the QP's own
	Caps     rdma.QPCaps
	Counters *Counters // may be shared with other QPs of the loop; nil for its own
	// Fixed disables congestion control: the window has its maximum, and packets are sent without
	// ECN. It is for lossless networks, and for comparisons.
	Fixed bool
	// CNPTrafficClass is the traffic class of congestion notifications; 0 means that of the
	// connection. Its ECN bits are ignored.
	CNPTrafficClass uint8
}

// QP is one reliable connection queue pair. It is not safe for concurrent use.
// Its rings grow on demand up to Config.Caps; in the steady state nothing is
// allocated.
type QP struct {
	cfg     Config
	n       *Counters
	state   rdma.QPState
	attr    rdma.QPAttr
	flow    wire.Flow // of packets without data
	data    wire.Flow // of packets with data: their rate can be reduced, so they are ECN-capable
	about   wire.Flow // of congestion notifications
	cnp     notifier
	mtu     int
	noICRC  bool  // see OmitICRC
	err     error // why the QP went to ERR
	summary Summary
	now     rdma.Time // of the current call

	recent recorder

	sq   wq.Ring[sqe]
	rq   wq.Queue
	cur  wq.Recv          // the receive of the message in progress
	send wq.Ring[rdma.WC] // completions that were not polled
	recv wq.Ring[rdma.WC]

	req   requester
	resp  responder
	parts [sgeMax][]byte // scratch: the payload of the packet being sent
	pkt   wire.Packet    // scratch: its headers
}

// sqe is an entry of the send queue. The ring reuses entries, with the memory of sgl and inline.
//
// A request has one PSN for each of its packets, a READ one for each packet of its response.
// The PSNs are assigned when its first packet is sent (started), and stay the same in
// retransmissions.
//
//	posted --begin--> started --sent--> in flight --acknowledged--> completed
//	                     ^                 |
//	                     +---- goBack -----+
type sqe struct {
	wr      rdma.SendWR
	sgl     []rdma.SGE // the user's memory, until the request completes
	inline  []byte     // copy of the data of an inline request
	length  uint32
	started bool
	psn     wire.PSN // first PSN
	count   int      // number of PSNs
	part    int      // READ: PSNs of one READ request packet, see readPart
	got     uint32   // READ: bytes that have arrived
}

// last is the PSN of the last packet of the request, or of its response.
func (e *sqe) last() wire.PSN { return e.psn.Add(e.count - 1) }

// reads reports whether the response to the request has data: READ and atomics. An ACK does not
// complete such a request.
func (e *sqe) reads() bool { return e.wr.Op == rdma.OpRead || e.atomic() }

// local reports whether the request sends nothing.
func (e *sqe) local() bool { return e.wr.Op >= rdma.OpLocalInv }

func (e *sqe) atomic() bool {
	return e.wr.Op == rdma.OpCompareSwap || e.wr.Op == rdma.OpFetchAdd
}

// New makes a QP in RESET.
func New(cfg Config) *QP {
	cfg.Caps.MaxSendSGE = min(max(cfg.Caps.MaxSendSGE, 1), sgeMax)
	cfg.Caps.MaxRecvSGE = min(max(cfg.Caps.MaxRecvSGE, 1), sgeMax)
	cfg.Counters = cmp.Or(cfg.Counters, new(Counters))
	return (&QP{cfg: cfg, n: cfg.Counters}).init()
}

func (q *QP) init() *QP {
	q.rq.Most, q.rq.SGEs = q.cfg.Caps.MaxRecvWR, q.cfg.Caps.MaxRecvSGE
	return q
}

// Num is the QP number.
func (q *QP) Num() uint32 { return q.cfg.Num }

// State is the current state.
func (q *QP) State() rdma.QPState { return q.state }

// Attr returns the attributes that Modify has set.
func (q *QP) Attr() rdma.QPAttr { return q.attr }

// Err is why the QP went to ERR; nil if it did not, or if Modify requested it.
func (q *QP) Err() error { return q.err }

// Counters returns the counters of the QP.
func (q *QP) Counters() *Counters { return q.n }

// Cursor describes the progress of the QP: the PSN of its next request, its oldest PSN without
// acknowledgement, the PSN that it expects from the peer, and the smoothed round-trip time of its
// requests in nanoseconds (0 before the first measurement).
func (q *QP) Cursor() (next, acked, expected wire.PSN, rtt rdma.Time) {
	return q.req.next, q.req.una, q.resp.epsn, q.req.srtt
}

// Modify makes a state transition (IBTA 10.3.1) and sets the attributes that belong to it
// (11.2.4.2). If it returns an error the QP is unchanged.
//
//	RESET -> INIT -> RTR -> RTS <-> SQD     any -> ERR, RESET
//
// What a QP does in its states:
//
//	state   PostRecv   requests of the peer   PostSend   our requests
//	RESET   error      dropped                error      none
//	INIT    queued     dropped                error      none
//	RTR     queued     executed, answered     error      none
//	RTS     queued     executed, answered     queued     sent
//	SQD     queued     executed, answered     queued     started requests are finished
//	ERR     flushed    dropped                flushed    none
func (q *QP) Modify(now rdma.Time, a rdma.QPAttr) error {
	switch {
	case a.State == rdma.StateReset:
		*q = QP{cfg: q.cfg, n: q.n}
		q.init()
		return nil
	case a.State == rdma.StateErr:
		q.fail(nil)
		return nil
	case a.State == rdma.StateInit && (q.state == rdma.StateReset || q.state == rdma.StateInit):
		q.attr.Access, q.attr.PKey = a.Access, a.PKey
	case a.State == rdma.StateRTR && q.state == rdma.StateInit:
		if a.PathMTU.Code() == 0 {
			return fmt.Errorf("%w: the path MTU %d is not one of 256, 512, 1024, 2048 and 4096", rdma.ErrInvalidWR, a.PathMTU)
		}
		if !sameFamily(a.LocalAddr, a.RemoteAddr) {
			return fmt.Errorf("%w: addresses %v and %v", rdma.ErrInvalidWR, a.LocalAddr, a.RemoteAddr)
		}
		access, pkey := q.attr.Access, q.attr.PKey
		if a.Access == 0 {
			a.Access = access
		}
		if a.PKey == 0 {
			a.PKey = pkey
		}
		q.attr = a
		q.mtu = int(a.PathMTU)
		q.flows()
		q.resp.start(wire.PSN(a.RQPSN&wire.PSNMask), int(a.MaxDestRd))
		q.resp.rate.start(now, q.mtu, q.cfg.Fixed)
	case a.State == rdma.StateRTS && q.state == rdma.StateRTR:
		q.attr.SQPSN, q.attr.MaxRdAtomic = a.SQPSN, a.MaxRdAtomic
		q.attr.AckTimeout, q.attr.RetryCount, q.attr.RNRRetryCount = a.AckTimeout, a.RetryCount, a.RNRRetryCount
		if a.Access != 0 {
			q.attr.Access = a.Access
		}
		q.req.start(now, wire.PSN(a.SQPSN&wire.PSNMask), q.ackTimeout(),
			sendWindow, readWindow/q.mtu, q.cfg.Fixed)
	case a.State == rdma.StateRTS && (q.state == rdma.StateRTS || q.state == rdma.StateSQD):
		if a.Access != 0 {
			q.attr.Access = a.Access
		}
	case a.State == rdma.StateSQD && q.state == rdma.StateRTS:
		q.state = a.State
		q.endAckDelay(now)
	default:
		return fmt.Errorf("%w: %v to %v", rdma.ErrBadTransition, q.state, a.State)
	}
	q.state = a.State
	return nil
}

func sameFamily(a, b netip.Addr) bool {
	return a.IsValid() && b.IsValid() && a.Unmap().Is4() == b.Unmap().Is4()
}

// ackTimeout is the local ACK timeout of the connection, 4.096 us * 2^code (IBTA 9.7.6.1.3);
// 0 for none.
func (q *QP) ackTimeout() rdma.Time {
	if q.attr.AckTimeout == 0 {
		return 0
	}
	return rdma.Time(4096) << min(q.attr.AckTimeout, 31)
}

// OmitICRC makes the QP, which is in RTR or RTS, send 0 in the place of the ICRC. The owner then
// accepts packets of the peer with 0 unchecked. Both ends must have agreed, and no network card may
// be between them.
func (q *QP) OmitICRC() {
	q.noICRC = true
	for _, f := range []*wire.Flow{&q.flow, &q.data, &q.about} {
		f.NoICRC = true
	}
}

// Widen lets the window of a QP in RTS grow up to localWindow. A window without congestion control
// (Config.Fixed) stays as it is.
func (q *QP) Widen() {
	if !q.cfg.Fixed {
		q.req.window.widen(localWindow)
	}
}

// OmitsICRC reports whether OmitICRC was called.
func (q *QP) OmitsICRC() bool { return q.noICRC }

// Receive handles a packet for this QP, whose ICRC was checked or omitted. It copies the payload
// before it returns, unless the caller has done so (Placement). It drops packets that fail the
// checks of IBTA 9.6.1: class of the opcode, state of the QP, addresses and P_Key. A peer can send
// anything at any time, so all drops are silent and counted.
//
//	check                                     counter of the dropped packets
//	opcode of RC, reserved one, or CNP        DropOpcode
//	state RTR, RTS or SQD                     DropState
//	source and destination of the connection  DropPeer
//	P_Key of the connection                   DropPKey
func (q *QP) Receive(now rdma.Time, p *wire.Packet) {
	q.n.RxPackets++
	q.summary.RxPackets++
	if !p.Op.IsRC() && !p.Op.ReservedRC() && p.Op != wire.CNP {
		q.n.DropOpcode++
		return
	}
	if !q.serving() {
		q.n.DropState++
		return
	}
	if !q.fromPeer(p) {
		q.n.DropPeer++
		return
	}
	// NICs send CNPs with the default P_Key, whatever the partition of the connection.
	if !wire.PKeysMatch(p.PKey, q.attr.PKey) && (p.Op != wire.CNP || p.PKey != wire.DefaultPKey) {
		q.n.DropPKey++
		return
	}
	q.recent.add(now, false, p, len(p.Payload))
	if p.Op == wire.CNP {
		q.congested(now)
		return
	}
	if p.Op.ReservedRC() {
		q.reserved(now, p)
		return
	}
	if p.ECN == ecnCE {
		q.marked(now)
	}
	if p.Op.Is(wire.Request) {
		q.serve(now, p)
	} else if q.state == rdma.StateRTR {
		q.n.DropState++
	} else {
		q.answer(now, p)
	}
}

// Transmit appends packets to b until b is full, until transmitBudget is used up, or until there is
// nothing to send now. Responses precede requests. It reports whether there is more to send.
func (q *QP) Transmit(now rdma.Time, b *wire.Batch) (more bool) {
	q.now = now
	budget := transmitBudget
	budget = q.transmitResponses(now, b, budget)
	if q.state == rdma.StateRTS || q.state == rdma.StateSQD {
		q.transmitRequests(now, b, budget)
	}
	return q.HasWork(now)
}

// transmitBudget bounds the packets of one Transmit, so that a busy QP does not delay the others of
// its loop.
const transmitBudget = 64

// HasWork reports whether Transmit would send something now.
func (q *QP) HasWork(now rdma.Time) bool {
	return q.answers(now) || (q.state == rdma.StateRTS || q.state == rdma.StateSQD) && q.canSend(now)
}

// Parting reports whether the QP is in ERR and has not yet sent the NAK with the reason. The NAK
// needs no resource of the owner, so Transmit may send it while the QP is being destroyed.
func (q *QP) Parting() bool {
	return q.state == rdma.StateErr && q.resp.nakDue && q.resp.active == 0
}

// Deadline is when Expire has to be called; 0 for never. It can change with each call of Receive,
// Transmit, Expire, Modify and PostSend. Calling Expire early is harmless.
func (q *QP) Deadline() rdma.Time {
	switch q.state {
	case rdma.StateRTS, rdma.StateSQD:
	case rdma.StateRTR:
		d := q.resp.repeat.at
		if q.resp.active > 0 {
			d = rdma.Earlier(d, q.resp.rate.until)
		}
		return d
	default:
		return 0
	}
	d := rdma.Earlier(q.req.deadline(), q.resp.repeat.at)
	if q.resp.active > 0 {
		d = rdma.Earlier(d, q.resp.rate.until)
	}
	if q.req.cur < q.sq.Len() {
		d = rdma.Earlier(d, q.req.until)
	}
	return d
}

// packet prepares the scratch packet with the fields that all packets of the QP share.
func (q *QP) packet(op wire.Opcode, psn wire.PSN) *wire.Packet {
	q.pkt = wire.Packet{Op: op, MigReq: true, PKey: q.attr.PKey, DestQPN: q.attr.DestQPN, PSN: psn}
	return &q.pkt
}

// fail moves the QP to ERR. why is nil if the owner requested it.
// All work requests complete as flushed. After that the QP accesses no memory of the user.
func (q *QP) fail(why error) {
	if q.state == rdma.StateErr {
		return
	}
	if q.err == nil {
		q.err = why
	}
	q.state = rdma.StateErr
	q.flush()
}
