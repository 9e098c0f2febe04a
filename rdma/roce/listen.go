package roce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/connstate"
)

// listener serves one port: for connections, or for datagrams. It implements rdma.Listener.
type listener[R any] struct {
	d      *Device
	port   uint16
	accept func(R)
	among  map[uint16]*listener[R] // all listeners of the kind, under Device.mu
	close  func(m *cm.Machine, port uint16)
}

// listen enters a listener into its table and opens the port at the connection manager.
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
	if !first.Submit(func() { _ = open(first.cm, l.port) }) { // open fails only for a port in among
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

// incoming is what a REQ and a SIDR REQ have in common.
type incoming struct {
	s        *shard // whose loop answers
	id       *cm.ID // first shard only
	remote   netip.AddrPort
	port     uint16
	answered bool
}

func (r *incoming) Loop() rdma.Loop        { return r.s }
func (r *incoming) Remote() netip.AddrPort { return r.remote }
func (r *incoming) Local() netip.AddrPort  { return netip.AddrPortFrom(r.s.dev.ip, r.port) }

var errAnswered = fmt.Errorf("%w: the request was answered already", rdma.ErrInvalidWR)

// admit decides about a request for a port with a partition key. listening reports whether a
// listener has the port. It returns the reason to reject the request, 0 for none. First shard
// only.
//
//	nobody listens, or the device closes    invalid service ID
//	another partition                       invalid service ID
//	a penalty for guessed keys runs         no resources
func (s *shard) admit(id *cm.ID, listening bool, pkey uint16) cm.Reason {
	switch {
	case !listening || s.leaving:
		return cm.InvalidServiceID
	case s.dev.pkeys.Load().match(pkey) == 0:
		// A host outside of a partition gets the answer for a closed port, so that it does not
		// learn what is in the partition.
		s.stats.RefusedPKey++
		return cm.InvalidServiceID
	case s.penalties.refused(id.Peer.Addr(), s.now):
		s.stats.RefusedAfterAccessErrors++
		return cm.NoResources
	}
	return 0
}

// request is a REQ that was received. It implements rdma.ConnRequest. The connection manager
// remembers the ID until the answer, and bounds the number of those without one.
type request struct {
	incoming
	req  cm.REQ
	note func() rdma.Note
	// local: the ICRC is omitted.
	local bool
}

var (
	_ rdma.ConnRequest = (*request)(nil)
	_ rdma.Annotated   = (*request)(nil)
)

// request gives a REQ to its listener, on the shard that the connection is going to live on. First
// shard only.
func (s *shard) request(id *cm.ID) {
	d := s.dev
	d.mu.Lock()
	l := d.listeners[id.Service]
	d.mu.Unlock()
	if (l == nil || s.leaving) && d.ending.Load() {
		s.cm.Forget(id) // the next process on the sockets answers the repetition
		return
	}
	r := &request{incoming: incoming{s: s, id: id, remote: id.Peer, port: id.Service}, req: id.REQ}
	reject := func(why cm.Reason) {
		r.s = s
		r.recordRefusal(why, nil)
		s.cm.Reject(id, why, nil)
	}
	if why := s.admit(id, l != nil, id.REQ.PKey); why != 0 {
		reject(why)
		return
	}
	mtu, headers := int(r.PathMTU()), headersRC4
	if d.addr.Is6() {
		headers = headersRC6
	}
	// The peer chooses the path MTU. Its packets would not fit our interface, and would be lost one
	// by one: the REJ names the MTU that fits, and a peer of ours tries again with it.
	if mtu+headers > s.link.MTU() {
		d.cfg.Logger.Warn("an RDMA connection was refused: its path MTU does not fit our interface",
			"peer", id.Peer, "path_mtu", mtu, "interface_mtu", s.link.MTU())
		r.recordRefusal(cm.InvalidMTU, nil)
		s.cm.RejectMTU(id, d.mtu.Code())
		return
	}
	r.local = d.agrees(id.REQ.GUID) && s.hosts.loopback(s, id.Peer.Addr())
	r.s = d.nextShard()
	if !s.on(r.s, func() { l.accept(r) }) {
		reject(cm.NoResources)
	}
}

// nextShard is the shard of the next incoming connection.
func (d *Device) nextShard() *shard { return d.shards[d.next.Add(1)%uint32(len(d.shards))] }

func (r *request) PrivateData() []byte       { return r.req.Private[cm.IPHeaderLen:] }
func (r *request) ResponderResources() uint8 { return r.req.ResponderResources }
func (r *request) InitiatorDepth() uint8     { return r.req.InitiatorDepth }
func (r *request) PKey() uint16              { return r.s.dev.pkeys.Load().of(r.req.PKey) }
func (r *request) PathMTU() rdma.MTU         { return rdma.MTUFromCode(r.req.MTU) }

// Annotate implements rdma.Annotated.
func (r *request) Annotate(note func() rdma.Note) { r.note = note }

// Reject implements rdma.ConnRequest.
func (r *request) Reject(reason uint16, private []byte) { r.reject(cm.Reason(reason), private, nil) }

func (r *request) reject(reason cm.Reason, private []byte, why error) {
	if r.answered {
		return
	}
	r.answered = true
	private = slices.Clone(private[:min(len(private), cm.REJPrivateLen)])
	first := r.s.dev.shards[0]
	r.s.on(first, func() { first.cm.Reject(r.id, reason, private) })
	r.recordRefusal(reason, why)
}

// Accept implements rdma.ConnRequest.
func (r *request) Accept(qc rdma.QPConfig, p rdma.ConnParams, prepare func(rdma.Conn) error,
	on func(rdma.Conn, rdma.ConnEvent),
) (rdma.Conn, error) {
	if r.answered {
		return nil, errAnswered
	}
	if err := connstate.CheckPrivate(p.PrivateData, cm.REPPrivateLen, "a REP"); err != nil {
		return nil, err
	}
	pkey := r.s.dev.pkeys.Load().match(r.req.PKey)
	if pkey == 0 {
		r.reject(cm.InvalidServiceID, nil, errPartition)
		return nil, errPartition
	}
	c, err := r.s.newConn(qc, r.remote, r.port, pkey)
	if err != nil {
		r.reject(cm.NoResources, nil, err)
		return nil, err
	}
	c.On, c.Phase, c.id, c.req, c.Note = on, connstate.Accepted, r.id, &r.req, r.note
	c.MTU = r.PathMTU()
	c.Params = connstate.BoundAccept(p, MaxRdAtomic, r)
	rnr := c.Params.RNRRetryCount
	// The retry counts of our own requests are those that the peer asks for.
	c.Params.RetryCount, c.timeout = r.req.RetryCount, boundAckTimeout(r.req.Primary.AckTimeout)
	err = c.start(r.local, r.req.QPN, r.req.PSN, r.req.Primary.TrafficClass, r.req.RNRRetryCount)
	if err == nil && prepare != nil {
		err = prepare(c)
	}
	if err != nil {
		c.discard()
		r.reject(cm.ConsumerDefined, nil, err)
		return nil, err
	}
	r.answered = true
	rep := cm.AcceptParams{
		QPN: c.q.num, PSN: c.rqPSN, ResponderResources: c.Params.ResponderResources, InitiatorDepth: c.Params.InitiatorDepth,
		RNRRetryCount: rnr & 7, TargetAckDelay: targetAckDelay, GUID: r.s.dev.guidFor(r.local),
		Private: slices.Clone(p.PrivateData),
	}
	// The REP leaves after the queue pair is in RTS and has its receives: the peer may send at
	// once.
	c.cmDo(func(first *shard) {
		r.id.User = c
		if first.cm.Accept(first.now, r.id, rep) != nil {
			why := errors.New(c.RemoteAddr.String() + " gave up before we answered")
			first.on(c.s, func() { c.goDown(rdma.EventUnreachable, 0, nil, why, false) })
		}
	})
	return c, nil
}
