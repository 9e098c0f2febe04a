package roce

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/connstate"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rc"
)

// A process hands a device over to its successor in these steps:
//
//	old process   the users of the connections post no new requests, until none is in flight
//	              PostponeCM   datagrams for the connection manager wait
//	              Pause        the loops stop, and further datagrams wait in the sockets
//	              Export       a description of everything
//	new process   Open with Config.From and the same sockets
//	              RestoreConn  for each connection that its user wants
//	              Start        the loops run
//
// Until Start the new device sends and receives nothing, and the old one can go on.
//
// The snapshot leaves out memory regions, connections whose peers use R_Keys of ours, queue pairs
// that were connected without CM, and UD queue pairs. Start ends connections that were not
// restored, so that their peers know at once.

// Snapshot describes a device whose loops are paused.
type Snapshot struct {
	Shards int
	CM     cm.Snapshot
	Conns  []SnapshotConn
	// Datagrams arrived for the connection manager while it was postponed.
	Datagrams []SnapshotDatagram
}

// SnapshotConn is a connection with nothing in flight.
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

// SnapshotDatagram is a datagram as it was received.
type SnapshotDatagram struct {
	Src, Dst netip.Addr
	SrcPort  uint16
	TOS      uint8
	Nth      uint16
	Data     []byte
}

// postponedMax bounds the datagrams that wait for the connection manager. Datagrams beyond it are
// lost and counted. Peers send them again.
const postponedMax = 4096

var (
	_ rdma.Quiescer = (*conn)(nil)
	_ rdma.Restorer = (*Device)(nil)
)

// Quiescent implements rdma.Quiescer.
func (c *conn) Quiescent() bool {
	return (c.Phase == connstate.Accepted || c.Phase == connstate.Established) && !c.Closed && !c.q.dead &&
		c.q.rc.Quiescent()
}

// PostponeCM makes datagrams for the connection manager wait, so that no peer begins or ends a
// connection. With on false it ends the wait and handles them. It must not be called on a loop.
func (d *Device) PostponeCM(on bool) {
	s := d.shards[0]
	do := func() {
		if s.postponing = on; !on {
			s.replay()
		}
	}
	if d.manual {
		do()
		return
	}
	done := make(chan struct{})
	if s.Submit(func() { do(); close(done) }) {
		<-done
	}
}

// postpone stores a datagram for the connection manager.
func (s *shard) postpone(d *link.RxDatagram) {
	if len(s.postponed) == postponedMax {
		s.stats.CM.DropFull++
		return
	}
	s.postponed = append(s.postponed, SnapshotDatagram{
		Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort, TOS: d.TOS, Nth: d.Nth,
		Data: slices.Clone(d.Data),
	})
}

// replay handles the postponed datagrams.
func (s *shard) replay() {
	postponed := s.postponed
	s.postponed = nil
	for _, k := range postponed {
		s.packet(&link.RxDatagram{Src: k.Src, Dst: k.Dst, SrcPort: k.SrcPort, TOS: k.TOS, Nth: k.Nth, Data: k.Data})
	}
}

// Pause stops the loops, each at the end of a turn, and returns when all have stopped. Functions
// that are submitted meanwhile wait. resume makes the loops go on. Pause must not be called on a
// loop.
func (d *Device) Pause() (resume func()) {
	if d.manual {
		return func() {}
	}
	gate := make(chan struct{})
	var stopped sync.WaitGroup
	for _, s := range d.shards {
		stopped.Add(1)
		if !s.Submit(func() {
			// After flush, the answers to the packets of the turn have been sent.
			s.afterFlush.Add(func() {
				stopped.Done()
				<-gate
			})
		}) {
			stopped.Done()
		}
	}
	stopped.Wait()
	return sync.OnceFunc(func() { close(gate) })
}

// Export describes the device, whose loops are paused, with the connections that have nothing in
// flight. It does not change the device.
func (d *Device) Export() (*Snapshot, error) {
	first := d.shards[0]
	out := &Snapshot{
		Shards: len(d.shards), CM: first.cm.Export(first.link.Now()),
		Datagrams: slices.Clone(first.postponed),
	}
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
				QPN: c.q.num, RC: state, CommID: c.id.Local, Local: c.LocalAddr, Remote: c.RemoteAddr,
				Established: c.Phase == connstate.Established, Active: c.Active,
				Resources: c.Params.ResponderResources, Depth: c.Params.InitiatorDepth, MTU: c.MTU, Timeout: c.timeout,
				Retries: c.Params.RetryCount, RQPSN: c.rqPSN, Age: s.now - c.since,
			})
		}
	}
	slices.SortFunc(out.Conns, func(a, b SnapshotConn) int { return cmp.Compare(a.QPN, b.QPN) })
	return out, nil
}

// restore gives a new device, whose loops do not run yet, the state of a snapshot.
func (d *Device) restore(s *Snapshot) error {
	if s.Shards != len(d.shards) {
		return fmt.Errorf("%w: a device of %d shards cannot take over from one of %d", rdma.ErrInvalidWR, len(d.shards),
			s.Shards)
	}
	first := d.shards[0]
	if err := first.cm.Import(first.now, &s.CM); err != nil {
		return err
	}
	first.postponed = slices.Clone(s.Datagrams)
	d.restorable = make(map[uint32]*SnapshotConn)
	for i := range s.Conns {
		c := &s.Conns[i]
		if c.QPN < qpnMin || c.QPN >= 1<<24 || first.cm.Lookup(c.CommID) == nil || d.restorable[c.QPN] != nil {
			return fmt.Errorf("%w: connection with queue pair %d", rdma.ErrInvalidWR, c.QPN)
		}
		d.restorable[c.QPN] = c
	}
	return nil
}

// Restorable implements rdma.Restorer.
func (d *Device) Restorable(qpn uint32) rdma.Loop {
	if d.restorable[qpn] == nil {
		return nil
	}
	return d.shardOfQPN(qpn)
}

// shardOfQPN is the shard of a queue pair: the low bits of the number name it.
func (d *Device) shardOfQPN(qpn uint32) *shard { return d.shards[qpn&uint32(len(d.shards)-1)] }

// RestoreConn implements rdma.Restorer.
func (d *Device) RestoreConn(qpn uint32, qc rdma.QPConfig, prepare func(rdma.Conn) error,
	on func(rdma.Conn, rdma.ConnEvent),
) (rdma.Conn, error) {
	k := d.restorable[qpn]
	if k == nil {
		return nil, fmt.Errorf("%w: no connection with queue pair %d was handed over", rdma.ErrInvalidWR, qpn)
	}
	s := d.shardOfQPN(qpn)
	id := d.shards[0].cm.Lookup(k.CommID)
	q, err := s.newQPNumbered(qc, qpn)
	if err != nil {
		return nil, err
	}
	if err := q.rc.Import(s.now, &k.RC); err != nil {
		q.Destroy()
		return nil, err
	}
	c := &conn{s: s, q: q, id: id, timeout: k.Timeout, rqPSN: k.RQPSN, since: s.now - k.Age, req: &id.REQ}
	if k.RC.NoICRC {
		c.widen()
	}
	c.Conn = connstate.Conn{
		Phase: connstate.Accepted, Active: k.Active, LocalAddr: k.Local, RemoteAddr: k.Remote, MTU: k.MTU, On: on,
		Params: rdma.ConnParams{ResponderResources: k.Resources, InitiatorDepth: k.Depth, RetryCount: k.Retries},
	}
	if k.Established {
		c.Phase = connstate.Established
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
	delete(d.restorable, qpn)
	id.User = c
	s.touch(q)
	return c, nil
}

// Start runs the loops of a device that was opened with Config.From. Connections that were not
// restored end.
func (d *Device) Start() {
	first := d.shards[0]
	for _, s := range d.shards {
		s.now = s.link.Now()
	}
	for _, id := range first.cm.Orphans() {
		first.cm.Disconnect(first.now, id)
	}
	d.restorable = nil
	first.replay()
	d.run()
}

// run starts the goroutines of the loops.
func (d *Device) run() {
	if d.manual {
		return
	}
	for _, s := range d.shards {
		d.ended.Add(1)
		go s.run()
	}
}
