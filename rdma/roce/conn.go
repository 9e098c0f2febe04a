package roce

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/connstate"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// conn is a connection of RDMA-CM and its queue pair. It implements rdma.Conn.
//
// It belongs to the shard of its queue pair. Its cm.ID belongs to the first shard, where the
// connection manager is: cmDo goes there, and report comes back.
type conn struct {
	connstate.Conn
	s       *shard
	q       *qp
	id      *cm.ID // first shard only
	timeout uint8  // code of the local ACK timeout
	rqPSN   uint32 // where the peer's packets begin
	local   bool   // the packets never leave the host; active side only

	// For the failure record.
	since  rdma.Time
	req    *cm.REQ
	tooBig *link.TooBigError
}

var (
	_ rdma.Conn      = (*conn)(nil)
	_ rdma.Annotated = (*conn)(nil)
)

func (c *conn) Loop() rdma.Loop { return c.s }
func (c *conn) QP() rdma.QP     { return c.q }
func (c *conn) PKey() uint16    { return c.q.rc.Attr().PKey }

// cmDo runs fn on the first shard.
func (c *conn) cmDo(fn func(first *shard)) {
	first := c.s.dev.shards[0]
	c.s.on(first, func() { fn(first) })
}

// tell queues an event for the user, for the callbacks of this turn.
func (c *conn) tell(e rdma.ConnEvent) { c.s.later.Add(func() { c.Deliver(c, e) }) }

// Disconnect implements rdma.Conn.
func (c *conn) Disconnect() {
	c.goDown(rdma.EventDisconnected, 0, nil, connstate.ErrLocalLeft, true)
}

// Close implements rdma.Conn.
func (c *conn) Close() {
	if c.Closed {
		return
	}
	c.Closed = true
	c.Disconnect()
	c.discard()
}

// discard destroys the queue pair, without an event for the user or the peer.
func (c *conn) discard() {
	c.Closed, c.Phase = true, connstate.Down
	c.q.Destroy()
	delete(c.s.conns, c)
}

// failed is called when the queue pair is in ERR. why is nil if its user put it there.
func (c *conn) failed(why error) {
	if why == nil {
		return
	}
	c.goDown(rdma.EventDisconnected, 0, nil, fmt.Errorf("the connection to %v failed: %w", c.RemoteAddr, why), false)
	if n := c.q.rc.Summary().TxNAK; n.Count > 0 && n.Last.Syndrome == wire.NAKRemoteAccess {
		c.cmDo(func(first *shard) { first.penalties.violated(c.RemoteAddr.Addr(), first.now) })
	}
	// The DREQ must not overtake the NAK that says why.
	c.s.afterFlush.Add(c.sendDREQ)
}

// goDown ends the connection: the requests of the queue pair are flushed, the user gets an event,
// and the peer gets a DREQ unless it ended the connection itself.
func (c *conn) goDown(kind rdma.ConnEventKind, reason uint16, private []byte, why error, tellPeer bool) {
	if c.Phase == connstate.Down {
		return
	}
	was := c.Phase
	c.Phase = connstate.Down
	c.q.quiet = true
	if !c.q.dead {
		c.q.fail()
	}
	c.tell(rdma.ConnEvent{Kind: kind, Reason: reason, PrivateData: private, Err: why})
	// The record is made after the event, because the user may add to it, and when the final NAK
	// is among the packets that were sent.
	c.s.afterFlush.Add(func() { c.recordEnd(kind, cm.Reason(reason), why, was) })
	if tellPeer {
		c.sendDREQ()
	}
}

// sendDREQ makes the connection manager end the connection.
func (c *conn) sendDREQ() {
	c.cmDo(func(first *shard) {
		if c.id == nil {
			return
		}
		first.cm.Disconnect(first.now, c.id)
		if first.leaving {
			first.dreqs = append(first.dreqs, c.id)
		}
	})
}

// proven reports whether the queue pair has accepted a request of its peer. Such a request needs
// the queue pair number and the PSN of our REP, which a host that forged the REQ in the name of
// another never saw. (The PSNs of our own packets come from the REQ, so an acknowledgement proves
// nothing.)
func (c *conn) proven() bool {
	_, _, expected, _ := c.q.rc.Cursor()
	return expected != wire.PSN(c.q.rc.Attr().RQPSN)
}

// traffic is called when the queue pair of a connection without an RTU has accepted a packet, which
// counts as an RTU (IBTA 12.9.6).
func (c *conn) traffic() {
	c.up(nil)
	c.cmDo(func(first *shard) { first.cm.Traffic(c.id) })
}

// up makes the connection established.
func (c *conn) up(private []byte) {
	if c.Establish() {
		c.tell(c.EstablishedEvent(private))
	}
}

// start takes the queue pair from INIT to RTS. local omits the ICRC, see agrees.
func (c *conn) start(local bool, destQPN, sqPSN uint32, tclass, rnrRetries uint8) error {
	now := c.s.now
	err := c.q.rc.Modify(now, rdma.QPAttr{
		State: rdma.StateRTR, LocalAddr: c.LocalAddr.Addr(), RemoteAddr: c.RemoteAddr.Addr(), TrafficClass: tclass,
		PathMTU: c.MTU, DestQPN: destQPN, RQPSN: c.rqPSN, MaxDestRd: c.Params.ResponderResources, MinRNRTimer: minRNRTimer,
	})
	if err != nil {
		return err
	}
	err = c.q.rc.Modify(now, rdma.QPAttr{
		State: rdma.StateRTS, SQPSN: sqPSN, MaxRdAtomic: c.Params.InitiatorDepth,
		AckTimeout: c.timeout, RetryCount: c.Params.RetryCount, RNRRetryCount: rnrRetries,
	})
	if local && err == nil {
		c.q.rc.OmitICRC()
		c.widen()
	}
	return err
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
	k := &conn{s: s, q: q, since: s.now, rqPSN: s.dev.random.uint32() & wire.PSNMask}
	k.RemoteAddr = netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())
	k.LocalAddr = netip.AddrPortFrom(s.dev.ip, localPort)
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

// Dial implements rdma.Device.
func (d *Device) Dial(l rdma.Loop, p rdma.DialParams) (rdma.Conn, error) {
	s, err := d.shardOf(l)
	if err != nil {
		return nil, err
	}
	if err := connstate.CheckDial(d.addr, &p, cm.ConnPrivateLen); err != nil {
		return nil, err
	}
	pkey, err := d.partition(p.PKey)
	if err != nil {
		return nil, err
	}
	c, err := s.newConn(p.QP, p.Remote, d.ephemeral(), pkey)
	if err != nil {
		return nil, err
	}
	c.On, c.Active, c.MTU = p.On, true, d.mtu
	c.Params = connstate.Bound(p.Params, MaxRdAtomic)
	if p.Prepare != nil {
		if err := p.Prepare(c); err != nil {
			c.discard()
			return nil, err
		}
	}
	c.local = d.host != 0 && s.loopback(c.RemoteAddr.Addr())
	req := cm.ConnectParams{
		Remote: c.RemoteAddr, SourcePort: c.LocalAddr.Port(), QPN: c.q.num, PSN: c.rqPSN, MTU: c.MTU.Code(), PKey: pkey,
		ResponderResources: c.Params.ResponderResources, InitiatorDepth: c.Params.InitiatorDepth,
		RetryCount: c.Params.RetryCount & 7, RNRRetryCount: c.Params.RNRRetryCount & 7, AckTimeout: d.cfg.AckTimeout,
		HopLimit: hopLimit, TrafficClass: p.DSCP << dscpShift, GUID: d.guidFor(c.local),
		Private: slices.Clone(p.Params.PrivateData),
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

// ephemeral draws a port number for the active side.
func (d *Device) ephemeral() uint16 {
	const first = 1 << 15
	return uint16(first | d.random.uint32()%first)
}

// connections handles the events of the connection manager. First shard only.
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
				s.sidrRequest(e.ID)
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

// report takes an event of a connection from the first shard to the shard of the connection.
func (s *shard) report(c *conn, e cm.Event) {
	down := func(kind rdma.ConnEventKind, why error) {
		reason, private := uint16(e.Reason), slices.Clone(e.Private)
		s.on(c.s, func() { c.goDown(kind, reason, private, why, false) })
	}
	switch e.Kind {
	case cm.Reply:
		req, rep := e.ID.REQ, e.ID.REP
		if !s.on(c.s, func() { c.replied(&req, &rep) }) {
			s.cm.Reject(e.ID, cm.ConsumerDefined, nil)
		}
	case cm.ConnEstablished:
		s.on(c.s, func() { c.up(nil) })
	case cm.Rejected:
		down(rdma.EventRejected, e.Err)
	case cm.Unreachable:
		down(rdma.EventUnreachable, e.Err)
	case cm.Disconnected:
		down(rdma.EventDisconnected, cmp.Or(e.Err, connstate.ErrPeerLeft))
	}
}

// replied handles the REP to req, the last REQ that we sent. The path MTU of that REQ may be
// smaller than that of the first.
func (c *conn) replied(req *cm.REQ, rep *cm.REP) {
	if c.Phase != connstate.Requested {
		return // the user gave up meanwhile, and the connection manager knows
	}
	c.req, c.MTU = req, rdma.MTUFromCode(req.MTU)
	c.Params.InitiatorDepth = min(c.Params.InitiatorDepth, rep.ResponderResources)
	c.Params.ResponderResources = min(c.Params.ResponderResources, rep.InitiatorDepth)
	c.timeout = min(ackTimeout(rep.TargetAckDelay, c.s.dev.cfg.AckTimeout-1), max(ackTimeoutMax, c.s.dev.cfg.AckTimeout))
	local := c.local && c.s.dev.agrees(rep.GUID)
	if err := c.start(local, rep.QPN, rep.PSN, req.Primary.TrafficClass, rep.RNRRetryCount); err != nil {
		c.cmDo(func(first *shard) { first.cm.Reject(c.id, cm.ConsumerDefined, nil) })
		c.goDown(rdma.EventUnreachable, 0, nil, fmt.Errorf("the reply of %v cannot be used: %w", c.RemoteAddr, err), false)
		return
	}
	// Confirm fails if the peer has disconnected again. The connection manager then reports that.
	c.cmDo(func(first *shard) { _ = first.cm.Confirm(c.id) })
	c.up(slices.Clone(rep.Private[:]))
}

// Bounds of the ACK timeout code that a peer's REQ names: 1 ms and 17 s. A peer that names 0 (no
// timeout) or 31 (2.4 hours) would keep its connection for ever after it has vanished.
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

// ackTimeout is the code of the local ACK timeout, from the peer's ACK delay and the packet life
// time, both as codes. It adds them as the Linux CM does.
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
