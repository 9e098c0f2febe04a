package roce

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rc"
)

// A device goes from one process to another in these steps. The users of its connections begin nothing more
// and wait until nothing is under way; Hold keeps what is for the connection manager;
// Park stops the loops, so that what comes from now on stays in the sockets; Export describes
// everything. In the other process a device is opened on the same sockets with that
// (Config.From), users take their connections over by Inherit, and Start begins. Until then the second
// device sends and receives nothing, and the first can go on.
//
// What is not handed over: memory regions, and with them connections whose peers read or write our memory;
// queue pairs that the connection manager knows nothing of; datagrams. A connection that nobody
// inherits is ended by Start, so that its peer knows at once.

// Snapshot is a device whose loops are parked.
type Snapshot struct {
	Shards int
	CM     cm.Snapshot
	Conns  []SnapshotConn
	// Datagrams came for the connection manager while it was held.
	Datagrams []SnapshotDatagram
}

// SnapshotConn is a connection on which nothing is under way.
type SnapshotConn struct {
	QPN         uint32
	RC          rc.Snapshot
	CommID      uint32 // of the connection manager
	Local       netip.AddrPort
	Remote      netip.AddrPort
	Established bool
	Active      bool
	Resources   uint8
	Depth       uint8
	MTU         rdma.MTU
	Timeout     uint8
	Retries     uint8
	RQPSN       uint32
	Age         rdma.Time
}

// SnapshotDatagram is a datagram as it came.
type SnapshotDatagram struct {
	Src, Dst netip.Addr
	SrcPort  uint16
	TOS      uint8
	Nth      uint16
	Data     []byte
}

// keptMax bounds the datagrams that are kept for the connection manager; more are lost, counted, and sent again.
const keptMax = 4096

var (
	_ rdma.Quiescer = (*conn)(nil)
	_ rdma.Restorer = (*Device)(nil)
)

// Quiescent implements rdma.Quiescer.
func (c *conn) Quiescent() bool {
	return (c.phase == accepted || c.phase == established) && !c.closed && !c.q.dead && c.q.rc.Quiescent()
}

// Hold keeps what is for the connection manager, or has it done: no connection begins or ends by
// its peer meanwhile. It must not be called on a loop.
func (d *Device) Hold(on bool) {
	s := d.shards[0]
	d.do(s, func() {
		s.holding = on
		if !on {
			s.replay()
		}
	})
}

// do runs fn on a shard and waits for it.
func (d *Device) do(s *shard, fn func()) {
	if d.manual {
		fn()
		return
	}
	done := make(chan struct{})
	if s.Submit(func() { fn(); close(done) }) {
		<-done
	}
}

// keep takes a datagram for the connection manager that has to wait.
func (s *shard) keep(d *link.RxDatagram) {
	if len(s.kept) == keptMax {
		s.stats.CM.DropFull++
		return
	}
	s.kept = append(s.kept, SnapshotDatagram{Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort, TOS: d.TOS, Nth: d.Nth, Data: slices.Clone(d.Data)})
}

// replay takes the datagrams that were kept.
func (s *shard) replay() {
	kept := s.kept
	s.kept = nil
	for i := range kept {
		k := &kept[i]
		s.packet(&link.RxDatagram{Src: k.Src, Dst: k.Dst, SrcPort: k.SrcPort, TOS: k.TOS, Nth: k.Nth, Data: k.Data})
	}
}

// Park stops the loops, each at the end of a turn, and returns when they stand. Calling
// release has them go on. What is submitted meanwhile waits. It must not be called on a loop.
func (d *Device) Park() (release func()) {
	if d.manual {
		return func() {}
	}
	gate := make(chan struct{})
	var standing sync.WaitGroup
	for _, s := range d.shards {
		standing.Add(1)
		taken := s.Submit(func() {
			// The turn's packets are answered, and the answers on their way, before the loop stands.
			s.afterFlush = append(s.afterFlush, func() {
				standing.Done()
				<-gate
			})
		})
		if !taken {
			standing.Done()
		}
	}
	standing.Wait()
	return sync.OnceFunc(func() { close(gate) })
}

// Export describes the device, whose loops are parked: of its connections those on
// which nothing is under way. The device stays as it is.
func (d *Device) Export() (*Snapshot, error) {
	first := d.shards[0]
	out := &Snapshot{Shards: len(d.shards), CM: first.cm.Export(first.link.Now()), Datagrams: slices.Clone(first.kept)}
	for _, s := range d.shards {
		for c := range s.conns {
			if c.id == nil || !c.Quiescent() {
				continue
			}
			state, err := c.q.rc.Export()
			if err != nil {
				return nil, err
			}
			out.Conns = append(out.Conns, SnapshotConn{
				QPN: c.q.num, RC: state, CommID: c.id.Local, Local: c.local, Remote: c.remote, Established: c.phase == established, Active: c.active,
				Resources: c.resources, Depth: c.depth, MTU: c.mtu, Timeout: c.timeout, Retries: c.retries, RQPSN: c.rqPSN, Age: s.now - c.since,
			})
		}
	}
	slices.SortFunc(out.Conns, func(a, b SnapshotConn) int { return int(a.QPN) - int(b.QPN) })
	return out, nil
}

// restore makes a new device, whose loops do not run, what s was.
func (d *Device) restore(s *Snapshot) error {
	if s.Shards != len(d.shards) {
		return fmt.Errorf("%w: a device of %d shards cannot go on where one of %d stood", rdma.ErrInvalidWR, len(d.shards), s.Shards)
	}
	first := d.shards[0]
	if err := first.cm.Import(first.now, &s.CM); err != nil {
		return err
	}
	first.kept = slices.Clone(s.Datagrams)
	d.inherited = make(map[uint32]*SnapshotConn)
	for i := range s.Conns {
		c := &s.Conns[i]
		if c.QPN < qpnMin || c.QPN >= 1<<24 || first.cm.Lookup(c.CommID) == nil || d.inherited[c.QPN] != nil {
			return fmt.Errorf("%w: connection with queue pair %d", rdma.ErrInvalidWR, c.QPN)
		}
		d.inherited[c.QPN] = c
	}
	return nil
}

// Restorable implements rdma.Restorer.
func (d *Device) Restorable(qpn uint32) rdma.Loop {
	if d.inherited[qpn] == nil {
		return nil
	}
	return d.shards[qpn&uint32(len(d.shards)-1)]
}

// RestoreConn implements rdma.Restorer.
func (d *Device) RestoreConn(qpn uint32, qc rdma.QPConfig, prepare func(rdma.Conn) error, on func(rdma.Conn, rdma.ConnEvent)) (rdma.Conn, error) {
	k := d.inherited[qpn]
	if k == nil {
		return nil, fmt.Errorf("%w: no connection with queue pair %d was handed over", rdma.ErrInvalidWR, qpn)
	}
	s := d.shards[qpn&uint32(len(d.shards)-1)]
	id := d.shards[0].cm.Lookup(k.CommID)
	q, err := s.newQPNumbered(qc, qpn)
	if err != nil {
		return nil, err
	}
	if err := q.rc.Import(s.now, &k.RC); err != nil {
		q.Destroy()
		return nil, err
	}
	c := &conn{
		s: s, q: q, id: id, local: k.Local, remote: k.Remote, phase: accepted, on: on, resources: k.Resources, depth: k.Depth, mtu: k.MTU,
		timeout: k.Timeout, retries: k.Retries, rqPSN: k.RQPSN, active: k.Active, since: s.now - k.Age, req: &id.REQ,
	}
	if k.Established {
		c.phase = established
	}
	q.conn = c
	q.since = c.since
	s.conns[c] = struct{}{}
	if prepare != nil {
		if err := prepare(c); err != nil {
			c.discard()
			return nil, err
		}
	}
	delete(d.inherited, qpn)
	id.User = c
	s.touch(q)
	return c, nil
}

// Start begins the loops of a device that was opened with Config.From. What nobody has inherited ends.
func (d *Device) Start() {
	first := d.shards[0]
	for _, s := range d.shards {
		s.now = s.link.Now()
	}
	for _, id := range first.cm.Orphans() {
		first.cm.Disconnect(first.now, id)
	}
	d.inherited = nil
	first.replay()
	d.run()
}

// run begins the loops.
func (d *Device) run() {
	if d.manual {
		return
	}
	for _, s := range d.shards {
		d.ended.Add(1)
		go s.run()
	}
}
