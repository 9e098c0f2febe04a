package roce

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// phase is where a connection is in its life, as its own shard sees it.
type phase uint8

const (
	requested   phase = iota // active side: the REQ is out
	accepted                 // passive side: the REP is out
	established              //
	down                     // over; the user has been told, or will be
)

// conn is a connection of RDMA-CM and its queue pair. It implements rdma.Conn.
//
// It belongs to the shard of its queue pair, but its id to the first shard,
// where the connection manager is: cmDo takes the way there, and connections
// the way back.
type conn struct {
	s      *shard
	q      *qp
	id     *cm.ID // on the first shard only
	local  netip.AddrPort
	remote netip.AddrPort
	phase  phase
	closed bool // by the user: no callback any more
	on     func(rdma.Conn, rdma.ConnEvent)

	// Negotiated. mtu and the depths are settled by accept or replied.
	resources uint8
	depth     uint8
	mtu       rdma.MTU
	timeout   uint8
	retries   uint8
	rqPSN     uint32

	// For a post-mortem.
	active bool
	since  rdma.Time
	req    *cm.REQ
	note   func() rdma.Note
	tooBig *link.TooBigError
}

var _ rdma.Conn = (*conn)(nil)

var (
	errPeerLeft  = errors.New("the peer disconnected")
	errLocalLeft = errors.New("disconnected")
)

func (c *conn) Loop() rdma.Loop        { return c.s }
func (c *conn) QP() rdma.QP            { return c.q }
func (c *conn) Local() netip.AddrPort  { return c.local }
func (c *conn) Remote() netip.AddrPort { return c.remote }
func (c *conn) PKey() uint16           { return c.q.rc.Attr().PKey }

// cmDo runs fn where the connection manager is.
func (c *conn) cmDo(fn func(s *shard)) {
	first := c.s.dev.shards[0]
	c.s.on(first, func() { fn(first) })
}

// tell reports an event to the user, later in this turn.
func (c *conn) tell(e rdma.ConnEvent) {
	c.s.later = append(c.s.later, func() {
		if !c.closed && c.on != nil {
			c.on(c, e)
		}
	})
}

// Disconnect implements rdma.Conn.
func (c *conn) Disconnect() { c.goDown(rdma.EventDisconnected, 0, nil, errLocalLeft, true) }

// Close implements rdma.Conn.
func (c *conn) Close() {
	if c.closed {
		return
	}
	c.closed = true
	c.goDown(rdma.EventDisconnected, 0, nil, errLocalLeft, true)
	c.q.Destroy()
	delete(c.s.conns, c)
}

// close ends the connection because its device does.
func (c *conn) close(why error) {
	c.goDown(rdma.EventDisconnected, 0, nil, why, true)
}

// failed is called when the queue pair is in ERR; why is nil if its user put
// it there.
func (c *conn) failed(why error) {
	if why == nil {
		return
	}
	c.goDown(rdma.EventDisconnected, 0, nil, fmt.Errorf("the connection to %v failed: %w", c.remote, why), false)
	if n := c.q.rc.Seen().TxNAK; n.Count > 0 && n.Last.Syndrome == wire.NAKRemoteAccess {
		c.cmDo(func(first *shard) { first.suspects.violated(c.remote.Addr(), first.now) })
	}
	// The NAK that says why is still to be sent. A DREQ that overtook it would
	// leave the peer without a reason.
	c.s.afterFlush = append(c.s.afterFlush, c.farewell)
}

// goDown ends the connection: the queue pair's requests are flushed, the user
// is told, and the peer too unless it was the one to end it.
func (c *conn) goDown(kind rdma.ConnEventKind, reason uint16, private []byte, why error, tellPeer bool) {
	if c.phase == down {
		return
	}
	was := c.phase
	c.phase = down
	c.q.quiet = true
	if !c.q.dead {
		_ = c.q.rc.Modify(c.s.now, rdma.QPAttr{State: rdma.StateErr}) // always possible
		c.s.touch(c.q)
	}
	c.tell(rdma.ConnEvent{Kind: kind, Reason: reason, PrivateData: private, Err: why})
	// After the user was told, and the NAK is among the packets that were sent.
	c.s.afterFlush = append(c.s.afterFlush, func() { c.mourn(kind, cm.Reason(reason), why, was) })
	if tellPeer {
		c.farewell()
	}
}

// farewell tells the peer that the connection is over.
func (c *conn) farewell() {
	c.cmDo(func(first *shard) {
		if c.id == nil {
			return
		}
		first.cm.Disconnect(first.now, c.id)
		if first.leaving {
			first.goodbyes = append(first.goodbyes, c.id)
		}
	})
}

// proven reports whether the queue pair has accepted a request of its peer. That takes the queue pair
// number and the PSN of our REP, which nobody knows who forged the REQ in another host's name.
// (Our own PSNs are those that the REQ named, so that an acknowledgement proves nothing.)
func (c *conn) proven() bool {
	_, _, expected, _ := c.q.rc.Cursor()
	return expected != wire.PSN(c.q.rc.Attr().RQPSN)
}

// traffic is called when a passive connection whose peer has not said RTU yet has
// accepted a packet: the packet says it too (IBTA 12.9.6).
func (c *conn) traffic() {
	c.up(nil)
	c.cmDo(func(first *shard) { first.cm.Traffic(c.id) })
}

// up says that the connection is established.
func (c *conn) up(private []byte) {
	if c.phase == established || c.phase == down {
		return
	}
	c.phase = established
	c.tell(rdma.ConnEvent{
		Kind: rdma.EventEstablished, PrivateData: private,
		ResponderResources: c.resources, InitiatorDepth: c.depth, PathMTU: c.mtu,
	})
}

// start takes the queue pair from INIT to RTS.
func (c *conn) start(destQPN, sqPSN uint32, tclass, rnrRetries uint8) error {
	now := c.s.now
	err := c.q.rc.Modify(now, rdma.QPAttr{
		State: rdma.StateRTR, LocalAddr: c.local.Addr(), RemoteAddr: c.remote.Addr(), TrafficClass: tclass,
		PathMTU: c.mtu, DestQPN: destQPN, RQPSN: c.rqPSN, MaxDestRd: c.resources, MinRNRTimer: minRNRTimer,
	})
	if err != nil {
		return err
	}
	return c.q.rc.Modify(now, rdma.QPAttr{
		State: rdma.StateRTS, SQPSN: sqPSN, MaxRdAtomic: c.depth,
		AckTimeout: c.timeout, RetryCount: c.retries, RNRRetryCount: rnrRetries,
	})
}

// newConn makes a connection and its queue pair in INIT.
func (s *shard) newConn(c rdma.QPConfig, remote netip.AddrPort, localPort, pkey uint16) (*conn, error) {
	if s.leaving {
		return nil, rdma.ErrClosed
	}
	q, err := s.newQP(c)
	if err != nil {
		return nil, err
	}
	k := &conn{
		s: s, q: q, since: s.now, remote: netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port()),
		local: netip.AddrPortFrom(s.dev.ip, localPort),
		rqPSN: s.dev.random.uint32() & wire.PSNMask,
	}
	err = q.rc.Modify(s.now, rdma.QPAttr{
		State: rdma.StateInit, PKey: pkey,
		Access: rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic,
	})
	if err != nil {
		q.Destroy()
		return nil, err
	}
	q.conn = k
	s.conns[k] = struct{}{}
	return k, nil
}

// discard undoes newConn.
func (c *conn) discard() {
	c.closed, c.phase = true, down
	c.q.Destroy()
	delete(c.s.conns, c)
}

// Dial implements rdma.Device.
func (d *Device) Dial(l rdma.Loop, p rdma.DialParams) (rdma.Conn, error) {
	s, err := d.shardOf(l)
	if err != nil {
		return nil, err
	}
	if !p.Remote.Addr().IsValid() || p.Remote.Addr().Unmap().Is4() != d.addr.Is4() {
		return nil, fmt.Errorf("%w: %v cannot be reached from %v", rdma.ErrInvalidWR, p.Remote, d.addr)
	}
	if len(p.Params.PrivateData) > cm.ConnPrivateLen {
		return nil, fmt.Errorf("%w: %d bytes of private data; a REQ carries %d", rdma.ErrInvalidWR, len(p.Params.PrivateData), cm.ConnPrivateLen)
	}
	if p.DSCP > rdma.DSCPMax {
		return nil, fmt.Errorf("%w: a DSCP is at most %d, not %d", rdma.ErrInvalidWR, rdma.DSCPMax, p.DSCP)
	}
	pkey, err := d.partition(p.PKey)
	if err != nil {
		return nil, err
	}
	c, err := s.newConn(p.QP, p.Remote, d.ephemeral(), pkey)
	if err != nil {
		return nil, err
	}
	c.on, c.phase, c.active = p.On, requested, true
	c.mtu = d.mtu
	c.resources, c.depth = min(p.Params.ResponderResources, MaxRdAtomic), min(p.Params.InitiatorDepth, MaxRdAtomic)
	c.retries = p.Params.RetryCount
	if c.retries == 0 {
		c.retries = defaultRetries
	}
	rnr := p.Params.RNRRetryCount
	if rnr == 0 {
		rnr = rnrForever
	}
	if p.Prepare != nil {
		if err := p.Prepare(c); err != nil {
			c.discard()
			return nil, err
		}
	}
	req := cm.ConnectParams{
		Remote: c.remote, SourcePort: c.local.Port(), QPN: c.q.num, PSN: c.rqPSN, MTU: c.mtu.Code(), PKey: pkey,
		ResponderResources: c.resources, InitiatorDepth: c.depth, RetryCount: c.retries & 7, RNRRetryCount: rnr & 7,
		AckTimeout: d.cfg.AckTimeout, HopLimit: hopLimit, TrafficClass: p.DSCP << dscpShift, Private: append([]byte(nil), p.Params.PrivateData...),
	}
	c.cmDo(func(first *shard) {
		id, err := first.cm.Connect(first.now, req)
		if err != nil {
			first.on(s, func() { c.goDown(rdma.EventUnreachable, 0, nil, err, false) })
			return
		}
		id.User = c
		c.id = id
		sent := id.REQ
		first.on(s, func() { c.req = &sent })
	})
	return c, nil
}

// ephemeral is a port number for the active side to be known by.
func (d *Device) ephemeral() uint16 {
	const first = 1 << 15
	return uint16(first | d.random.uint32()%first)
}

// connections handles what the connection manager reports. It runs on the
// first shard.
func (s *shard) connections() {
	for {
		n := s.cm.Events(s.cmEvents[:])
		if n == 0 {
			return
		}
		for i := range n {
			e := s.cmEvents[i]
			s.cmEvents[i] = cm.Event{}
			switch e.Kind {
			case cm.ConnRequest:
				s.request(e.ID)
				continue
			case cm.ResolveRequest:
				s.question(e.ID)
				continue
			}
			switch u := e.ID.User.(type) {
			case *conn:
				s.report(u, e)
			case *resolution:
				u.report(e)
			}
		}
	}
}

// report takes an event of a connection to its shard.
func (s *shard) report(c *conn, e cm.Event) {
	switch e.Kind {
	case cm.Reply:
		req, rep := e.ID.REQ, e.ID.REP
		if !s.on(c.s, func() { c.replied(&req, &rep) }) {
			s.cm.Reject(e.ID, cm.ConsumerDefined, nil)
		}
	case cm.ConnEstablished:
		s.on(c.s, func() { c.up(nil) })
	case cm.Rejected:
		private := append([]byte(nil), e.Private...)
		s.on(c.s, func() { c.goDown(rdma.EventRejected, uint16(e.Reason), private, e.Err, false) })
	case cm.Unreachable:
		s.on(c.s, func() { c.goDown(rdma.EventUnreachable, 0, nil, e.Err, false) })
	case cm.Disconnected:
		reason := uint16(e.Reason)
		why := e.Err
		if why == nil {
			why = errPeerLeft
		}
		s.on(c.s, func() { c.goDown(rdma.EventDisconnected, reason, nil, why, false) })
	}
}

// replied takes the REP to req, the last REQ that we sent. Its path MTU may be smaller than that of the first.
func (c *conn) replied(req *cm.REQ, rep *cm.REP) {
	if c.phase != requested {
		return // given up meanwhile; the connection manager was told
	}
	c.req, c.mtu = req, rdma.MTUFromCode(req.MTU)
	c.depth = min(c.depth, rep.ResponderResources)
	c.resources = min(c.resources, rep.InitiatorDepth)
	c.timeout = min(ackTimeout(rep.TargetAckDelay, c.s.dev.cfg.AckTimeout-1), max(ackTimeoutMax, c.s.dev.cfg.AckTimeout))
	if err := c.start(rep.QPN, rep.PSN, req.Primary.TrafficClass, rep.RNRRetryCount); err != nil {
		c.cmDo(func(first *shard) { first.cm.Reject(c.id, cm.ConsumerDefined, nil) })
		c.goDown(rdma.EventUnreachable, 0, nil, fmt.Errorf("the reply of %v cannot be used: %w", c.remote, err), false)
		return
	}
	c.cmDo(func(first *shard) { _ = first.cm.Confirm(c.id) }) // it fails if the peer has left again, of which it will report
	c.up(append([]byte(nil), rep.Private[:]...))
}

// Bounds of the ACK timeout code that a peer's REQ names, 1 ms and 17 s. A peer that names 0, no
// timeout, or 31, 2.4 hours, would hold its connection for ever after it has vanished.
const (
	ackTimeoutMin = 8
	ackTimeoutMax = 22
)

// boundAckTimeout is the ACK timeout code for a connection whose REQ names code.
func boundAckTimeout(code uint8) uint8 {
	if code == 0 {
		return DefaultAckTimeout
	}
	return min(max(code, ackTimeoutMin), ackTimeoutMax)
}

// ackTimeout is the ACK timeout code for a peer's ACK delay and the packet's
// life on the way, both as codes, as the Linux CM adds them up.
func ackTimeout(delay, life uint8) uint8 {
	x := life + 1
	if x >= delay {
		if delay >= life {
			x++
		}
		return min(x, 31)
	}
	if x >= delay-1 {
		delay++
	}
	return min(delay, 31)
}
