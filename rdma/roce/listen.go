package roce

import (
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
)

// listener answers on one port: for connections, or for datagrams. It implements
// rdma.Listener.
type listener[R any] struct {
	d      *Device
	port   uint16
	accept func(R)
	among  map[uint16]*listener[R] // of the device, under its mu
	close  func(m *cm.Machine, port uint16)
}

// listen enters a listener into its table, and tells the connection manager.
func listen[R any](l *listener[R], open func(m *cm.Machine, port uint16) error) (rdma.Listener, error) {
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, rdma.ErrClosed
	}
	for l.port == 0 {
		if p := d.ephemeral(); l.among[p] == nil {
			l.port = p
		}
	}
	if l.among[l.port] != nil {
		return nil, fmt.Errorf("RDMA port %d of %v is listened on already", l.port, d.addr)
	}
	first := d.shards[0]
	if !first.Submit(func() { _ = open(first.cm, l.port) }) { // ours is the only table of what is taken
		return nil, rdma.ErrClosed
	}
	l.among[l.port] = l
	return l, nil
}

// Listen implements rdma.Device. Port 0 means any free port.
func (d *Device) Listen(port uint16, accept func(rdma.ConnRequest)) (rdma.Listener, error) {
	return listen(&listener[rdma.ConnRequest]{d, port, accept, d.listeners, (*cm.Machine).Unlisten}, (*cm.Machine).Listen)
}

// ListenUD implements rdma.Device. Port 0 means any free port.
func (d *Device) ListenUD(port uint16, accept func(rdma.UDRequest)) (rdma.Listener, error) {
	return listen(&listener[rdma.UDRequest]{d, port, accept, d.services, (*cm.Machine).UnlistenUD}, (*cm.Machine).ListenUD)
}

// Addr implements rdma.Listener.
func (l *listener[R]) Addr() netip.AddrPort { return netip.AddrPortFrom(l.d.addr, l.port) }

// Close implements rdma.Listener.
func (l *listener[R]) Close() error {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	if l.among[l.port] != l {
		return rdma.ErrClosed
	}
	delete(l.among, l.port)
	first := l.d.shards[0]
	first.Submit(func() { l.close(first.cm, l.port) })
	return nil
}

// request is an incoming REQ. It implements rdma.ConnRequest.
type request struct {
	s        *shard // that would own the connection
	id       *cm.ID // on the first shard only
	req      cm.REQ
	remote   netip.AddrPort
	port     uint16
	answered bool
	note     func() rdma.Note
}

var _ rdma.ConnRequest = (*request)(nil)

// request takes a REQ to its listener, on the shard that the connection is
// going to live on. It runs on the first shard.
func (s *shard) request(id *cm.ID) {
	d := s.dev
	d.mu.Lock()
	l := d.listeners[id.Service]
	d.mu.Unlock()
	mtu := int(rdma.MTUFromCode(id.REQ.MTU))
	around := headersRC4
	if d.addr.Is6() {
		around = headersRC6
	}
	r := &request{id: id, req: id.REQ, remote: id.Peer, port: id.Service}
	reject := func(why cm.Reason) {
		r.s = s
		r.reportFailure(s, why, nil)
		s.cm.Reject(id, why, nil)
	}
	switch {
	case (l == nil || s.leaving) && d.ending.Load():
		s.cm.Forget(id)
		return
	case l == nil || s.leaving:
		reject(cm.InvalidServiceID)
		return
	case d.pkeys.Load().hears(id.REQ.PKey) == 0:
		// Who is not in the partition need not know what is in it.
		s.stats.RefusedPKey++
		reject(cm.InvalidServiceID)
		return
	case s.suspects.refused(id.Peer.Addr(), s.now):
		s.stats.RefusedSuspects++
		reject(cm.NoResources)
		return
	case mtu+around > s.link.MTU():
		d.cfg.Logger.Warn("an RDMA connection was refused: its path MTU does not fit our interface",
			"peer", id.Peer, "path_mtu", mtu, "interface_mtu", s.link.MTU())
		r.s = s
		r.reportFailure(s, cm.InvalidMTU, nil)
		s.cm.RejectMTU(id, d.mtu.Code())
		return
	}
	home := d.shards[d.next.Add(1)%uint32(len(d.shards))]
	r.s = home
	if !s.on(home, func() { l.accept(r) }) {
		reject(cm.NoResources)
	}
}

func (r *request) Loop() rdma.Loop        { return r.s }
func (r *request) Remote() netip.AddrPort { return r.remote }
func (r *request) Local() netip.AddrPort  { return netip.AddrPortFrom(r.s.dev.ip, r.port) }
func (r *request) PrivateData() []byte    { return r.req.Private[cm.IPHeaderLen:] }

func (r *request) ResponderResources() uint8 { return r.req.ResponderResources }
func (r *request) InitiatorDepth() uint8     { return r.req.InitiatorDepth }
func (r *request) PKey() uint16              { return r.s.dev.pkeys.Load().of(r.req.PKey) }
func (r *request) PathMTU() rdma.MTU         { return rdma.MTUFromCode(r.req.MTU) }

// Reject implements rdma.ConnRequest.
func (r *request) Reject(reason uint16, private []byte) { r.reject(cm.Reason(reason), private, nil) }

func (r *request) reject(reason cm.Reason, private []byte, why error) {
	if r.answered {
		return
	}
	r.answered = true
	private = append([]byte(nil), private[:min(len(private), cm.REJPrivateLen)]...)
	first := r.s.dev.shards[0]
	r.s.on(first, func() { first.cm.Reject(r.id, reason, private) })
	r.reportFailure(r.s, reason, why)
}

// Accept implements rdma.ConnRequest.
func (r *request) Accept(qc rdma.QPConfig, p rdma.ConnParams, prepare func(rdma.Conn) error, on func(rdma.Conn, rdma.ConnEvent)) (rdma.Conn, error) {
	if r.answered {
		return nil, fmt.Errorf("%w: the request was answered already", rdma.ErrInvalidWR)
	}
	if len(p.PrivateData) > cm.REPPrivateLen {
		return nil, fmt.Errorf("%w: %d bytes of private data; a REP carries %d", rdma.ErrInvalidWR, len(p.PrivateData), cm.REPPrivateLen)
	}
	pkey := r.s.dev.pkeys.Load().hears(r.req.PKey)
	if pkey == 0 {
		r.reject(cm.InvalidServiceID, nil, errPartition)
		return nil, errPartition
	}
	c, err := r.s.newConn(qc, r.remote, r.port, pkey)
	if err != nil {
		r.reject(cm.NoResources, nil, err)
		return nil, err
	}
	c.on, c.phase, c.id, c.req, c.note = on, accepted, r.id, &r.req, r.note
	c.mtu = r.PathMTU()
	// What one side can serve bounds what the other starts.
	c.depth = min(p.InitiatorDepth, r.req.ResponderResources, MaxRdAtomic)
	c.resources = min(p.ResponderResources, r.req.InitiatorDepth, MaxRdAtomic)
	c.timeout, c.retries = boundAckTimeout(r.req.Primary.AckTimeout), r.req.RetryCount
	if err = c.start(r.req.QPN, r.req.PSN, r.req.Primary.TrafficClass, r.req.RNRRetryCount); err == nil && prepare != nil {
		err = prepare(c)
	}
	if err != nil {
		c.discard()
		r.reject(cm.ConsumerDefined, nil, err)
		return nil, err
	}
	r.answered = true
	rnr := p.RNRRetryCount
	if rnr == 0 {
		rnr = rnrForever
	}
	rep := cm.AcceptParams{
		QPN: c.q.num, PSN: c.rqPSN, ResponderResources: c.resources, InitiatorDepth: c.depth,
		RNRRetryCount: rnr & 7, TargetAckDelay: targetAckDelay, Private: append([]byte(nil), p.PrivateData...),
	}
	c.cmDo(func(first *shard) {
		r.id.User = c
		if err := first.cm.Accept(first.now, r.id, rep); err != nil {
			first.on(c.s, func() {
				c.goDown(rdma.EventUnreachable, 0, nil, fmt.Errorf("%v gave up before we answered", c.remote), false)
			})
		}
	})
	return c, nil
}
