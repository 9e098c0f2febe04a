package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/link/udp"
)

// Device is a software RDMA device. It implements rdma.Device.
type Device struct {
	cfg    Config
	addr   netip.Addr
	ip     netip.Addr // addr without the zone of an IPv6 link-local address, as packets have it
	shards []*shard
	mem    table
	random source
	mtu    rdma.MTU // the largest path MTU that the interface carries
	host   uint32   // link.Host's ID; 0 if it is not known, or with Config.LocalICRC
	guid   uint64   // CA GUID
	pds    atomic.Uint32
	qps    atomic.Int64
	pkeys  atomic.Pointer[partitions]
	next   atomic.Uint32 // shard of the next incoming connection
	manual bool          // driven by Turn
	ending atomic.Bool   // see Ending
	// restorable are the connections of the process before this one that were not restored yet, by
	// QP number. Until Start only.
	restorable map[uint32]*SnapshotConn

	// mu guards the rest but ended. No goroutine waits for a loop while it holds mu.
	mu        sync.Mutex
	listeners map[uint16]*listener[rdma.ConnRequest]
	services  map[uint16]*listener[rdma.UDRequest]
	closed    bool
	ended     sync.WaitGroup // the goroutines of the loops
}

var (
	_ rdma.Device         = (*Device)(nil)
	_ rdma.VolatileSender = (*Device)(nil)
)

// SendsVolatile implements rdma.VolatileSender.
func (d *Device) SendsVolatile() bool {
	l, ok := d.shards[0].link.(link.VolatileSender)
	return ok && l.SendsVolatile()
}

// Open opens a device on UDP sockets and starts its loops. With Config.From, Start does the latter.
//
// All sockets of a device have the same address. The first one decides it, if Config leaves it
// open.
func Open(cfg Config) (*Device, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	var links []link.Link
	fail := func(err error) (*Device, error) {
		for _, l := range links {
			_ = l.Close()
		}
		return nil, err
	}
	addr := cfg.Addr
	for i := range cfg.Shards {
		l, err := udp.Open(udp.Config{
			Addr: addr, NoGSO: cfg.NoGSO, NoGRO: cfg.NoGRO, Shard: i, Shards: cfg.Shards,
			ReceiveBuffer: cfg.ReceiveBuffer, SendBuffer: cfg.SendBuffer, Sockets: cfg.Sockets,
		})
		if err != nil {
			return fail(err)
		}
		addr = l.LocalAddr()
		links = append(links, l)
	}
	d, err := newDevice(cfg, links)
	if err != nil {
		return fail(err)
	}
	if cfg.From == nil {
		d.run()
	}
	return d, nil
}

// NewWithLink makes a device of one shard on a link, without a goroutine: its owner calls Turn. A
// simulation so runs many devices in one goroutine, which calls all methods of the devices and
// their objects.
func NewWithLink(l link.Link, cfg Config) (*Device, error) {
	cfg.Shards = 1
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	d, err := newDevice(cfg, []link.Link{l})
	if err != nil {
		return nil, err
	}
	d.manual = true
	return d, nil
}

// newDevice makes a device on its links. The loops do not run yet, so the caller owns everything.
func newDevice(cfg Config, links []link.Link) (*Device, error) {
	d := &Device{
		cfg: cfg, addr: links[0].LocalAddr(), ip: links[0].LocalAddr().WithZone(""),
		listeners: map[uint16]*listener[rdma.ConnRequest]{}, services: map[uint16]*listener[rdma.UDRequest]{},
	}
	table := partitions(slices.Clone(cfg.PKeys))
	d.pkeys.Store(&table)
	d.random.f = cfg.Random
	d.mem.init(&d.random)
	if d.mtu = d.pathMTU(links[0].MTU()); d.mtu == 0 {
		return nil, fmt.Errorf("the interface of %v has an MTU of %d bytes, too small for RDMA: the least is %d", d.addr,
			links[0].MTU(), 256+headersMax)
	}
	for i, l := range links {
		inner := l
		if cfg.Wrap != nil {
			l = cfg.Wrap(i, l)
		}
		s := newShard(d, i, l)
		s.inner = inner
		d.shards = append(d.shards, s)
	}
	s := d.shards[0]
	if h, ok := s.inner.(link.Host); ok && !cfg.LocalICRC {
		d.host = h.HostID()
	}
	d.guid = d.newGUID()
	s.cm = cm.New(cm.Config{
		Addr: d.ip, GUID: d.guid, Random: d.random.uint32, ConnectLimit: cfg.ConnectLimit, Starting: cfg.Starting,
		Ledger: cfg.Ledger, Refused: s.refused, Counters: &s.stats.CM,
	})
	if cfg.From != nil {
		return d, d.restore(cfg.From)
	}
	if n := s.cm.Resume(s.link.Now()); n > 0 {
		cfg.Logger.Info("ending the connections of an earlier run, so that their peers connect anew at once", "device",
			d.addr.String(), "connections", n)
	}
	return d, nil
}

// pathMTU is the largest path MTU for an interface MTU, chosen as the Linux CM
// does.
func (d *Device) pathMTU(mtu int) rdma.MTU {
	for m := d.cfg.PathMTUMax; m >= 256; m /= 2 {
		if int(m) <= mtu-headersMax {
			return m
		}
	}
	return 0
}

// newGUID returns the CA GUID. Its upper half is the same whenever a device is opened on an address
// of a host, and different on other hosts. For its lower half see hostMask. A peer distinguishes
// our connections by GUID, communication ID and QP number. The last two start at random.
func (d *Device) newGUID() uint64 {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil || d.addr.IsLoopback() {
		// Clients that come and go take loopback addresses at random.
		id = binary.BigEndian.AppendUint64(nil, d.random.uint64())
	}
	h, a := fnv.New64a(), d.addr.As16()
	_, _ = h.Write(append(id, a[:]...)) // does not fail
	const local = 1 << 57               // locally administered, as in an EUI-64
	g := h.Sum64() | local
	if from := d.cfg.From; from != nil {
		g = from.CM.GUID&^hostMask | g&hostMask
	}
	if d.host != 0 {
		g = g&^hostMask | uint64(d.host)
	}
	return g
}

// Loops lists the shards.
func (d *Device) Loops() []rdma.Loop {
	l := make([]rdma.Loop, len(d.shards))
	for i, s := range d.shards {
		l[i] = s
	}
	return l
}

// Started says that all listeners are open, see Config.Starting. From now on, requests for closed
// ports are rejected.
func (d *Device) Started() {
	first := d.shards[0]
	first.Submit(func() { first.cm.Started() })
}

// Ending says that another process gets the sockets of the device. From now on, requests for closed
// ports are dropped: their senders send them again, and that process answers.
func (d *Device) Ending() {
	d.ending.Store(true)
	first := d.shards[0]
	first.Submit(func() { first.cm.Ending() })
}

// Addr is the address that the device sends from.
func (d *Device) Addr() netip.Addr { return d.addr }

// MTU is the largest path MTU that the device's interface carries.
func (d *Device) MTU() rdma.MTU { return d.mtu }

// InterfaceMTU is the MTU of the device's interface in bytes, as it was when the
// device was opened.
func (d *Device) InterfaceMTU() int { return d.shards[0].link.MTU() }

// Turn runs one turn of a device of NewWithLink.
func (d *Device) Turn() error { return d.shards[0].turn() }

// Deadline is when the next Turn of a device of NewWithLink is due if nothing arrives: 0 for never,
// negative for at once.
func (d *Device) Deadline() rdma.Time {
	s := d.shards[0]
	if s.inbox.Waits() {
		return link.NoWait
	}
	return s.deadline()
}

// Close ends the device and all connections: peers get a DREQ, and users EventDisconnected with
// rdma.ErrClosed. Close returns when the loops have ended. It must not be called on a loop.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return rdma.ErrClosed
	}
	d.closed = true
	clear(d.listeners)
	clear(d.services)
	d.mu.Unlock()
	// The first shard ends last, because the DREQs of the others go through its connection manager.
	var left sync.WaitGroup
	for _, s := range d.shards[1:] {
		left.Add(1)
		if !s.Submit(func() { s.leave(); left.Done() }) {
			left.Done()
		}
	}
	left.Wait()
	d.shards[0].Submit(d.shards[0].leave)
	if d.manual {
		var err error
		for range manualTurns {
			if err = d.Turn(); err != nil {
				break
			}
		}
		d.shards[0].end()
		if errors.Is(err, rdma.ErrClosed) {
			err = nil
		}
		return err
	}
	d.ended.Wait()
	return nil
}

// manualTurns is how many turns a closed device without a goroutine makes to send its DREQs.
const manualTurns = 4

func (d *Device) shardOf(l rdma.Loop) (*shard, error) {
	s, ok := l.(*shard)
	if !ok || s.dev != d {
		return nil, fmt.Errorf("%w: the loop belongs to another device", rdma.ErrInvalidWR)
	}
	return s, nil
}

// CreateCQ makes a completion queue on the loop.
func (d *Device) CreateCQ(l rdma.Loop, o rdma.CQOptions) (rdma.CQ, error) {
	s, err := d.shardOf(l)
	if err != nil {
		return nil, err
	}
	if err := checkDepth(o.Depth); err != nil {
		return nil, err
	}
	c := &cq{s: s, depth: o.Depth, onEvent: o.OnEvent}
	if !o.Armed {
		c.armed = always
	}
	return c, nil
}

// CreateQP makes an unconnected queue pair in RESET.
func (d *Device) CreateQP(l rdma.Loop, c rdma.QPConfig) (rdma.QP, error) {
	s, err := d.shardOf(l)
	if err != nil {
		return nil, err
	}
	if c.Type == rdma.UD {
		q, err := s.newUD(c)
		if err != nil {
			return nil, err
		}
		return q, nil
	}
	q, err := s.newQP(c)
	if err != nil {
		return nil, err
	}
	return q, nil
}
