//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/sysfs"
)

// Device is an open device with one of its addresses. It implements rdma.Device.
type Device struct {
	cfg      Config
	addr     netip.Addr
	name     string
	log      *slog.Logger
	anchor   *C.struct_rdma_cm_id // bound to the address: librdmacm keeps the context open for it
	events   *C.struct_rdma_event_channel
	hca      *hca
	ctx      *C.struct_ibv_context
	port     int
	gid      int // index of the address in the port's table, negative if it is not there
	mtu      rdma.MTU
	iwarp    bool
	ib       bool // InfiniBand: the path to a peer does not follow from its IP address
	quirks   quirks
	kind     Transport
	limits   rdma.Limits
	readSGEs int // most elements of a READ
	numa     int // node of the device, -1 if it is on none
	loops    []*loop
	next     atomic.Uint32 // loop of the next incoming connection
	ended    sync.WaitGroup
	paths    paths
	// lastAsync is the last event of the device or of its port.
	lastAsync atomic.Pointer[asyncEvent]

	removed chan struct{}
	// gone is why the device cannot be used any more: it was removed, or its address moved.
	gone atomic.Pointer[error]

	// mu guards the rest. It is locked after the mutex of a region, and before that of a window.
	mu        sync.Mutex
	closed    bool
	listeners map[*listener]struct{}
	mrs       map[*mr]struct{}
	mws       map[*mw]struct{}
	pds       map[*pd]struct{}
}

var (
	_ rdma.Device  = (*Device)(nil)
	_ rdma.Limited = (*Device)(nil)
)

// Open opens the device that has an address, and starts its loops.
func Open(cfg Config) (*Device, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Loops = max(cfg.Loops, 1)
	if !cfg.Addr.IsValid() {
		a, err := addressOf(cfg.Device)
		if err != nil {
			return nil, err
		}
		cfg.Addr = a
	}
	cfg.Addr = cfg.Addr.Unmap()
	d := &Device{
		cfg: cfg, addr: cfg.Addr, log: cfg.Logger, removed: make(chan struct{}),
		listeners: map[*listener]struct{}{}, mrs: map[*mr]struct{}{}, mws: map[*mw]struct{}{}, pds: map[*pd]struct{}{},
	}
	if err := acquire(); err != nil {
		return nil, err
	}
	err := d.open()
	if errors.Is(err, errStale) {
		// The device was removed, and another has its name.
		d.free()
		d.hca, d.anchor, d.events = nil, nil, nil
		if err = resync(); err == nil {
			err = d.open()
		}
	}
	if err != nil {
		d.free()
		release()
		return nil, err
	}
	devices.Store(d, nil)
	for _, l := range d.loops {
		d.ended.Add(1)
		go l.run()
	}
	return d, nil
}

// open finds the device that has the address, and makes the loops. After an error the caller calls
// free.
func (d *Device) open() error {
	var err error
	if d.events, err = C.rs_create_event_channel(); d.events == nil {
		return fmt.Errorf("verbs: the RDMA connection manager of the kernel cannot be used "+
			"(is the module rdma_ucm loaded, and /dev/infiniband/rdma_cm there?): %w", cause(err))
	}
	if d.anchor, err = C.rs_create_id(d.events, 0, C.RDMA_PS_TCP); d.anchor == nil {
		return fmt.Errorf("verbs: rdma_create_id: %w", cause(err))
	}
	sa := toSockaddr(netip.AddrPortFrom(d.addr, 0))
	if e := C.rs_bind(d.anchor, unsafe.Pointer(&sa)); e != 0 {
		return fmt.Errorf("verbs: %w: %v belongs to none: %w (see 'rdma link show')",
			ErrNoDevice, d.addr, errno(e))
	}
	var r C.struct_rs_route
	C.rs_route(d.anchor, &r)
	if r.ctx == nil {
		return fmt.Errorf("verbs: %w: %v belongs to none (see 'rdma link show')",
			ErrNoDevice, d.addr)
	}
	d.ctx, d.port = r.ctx, int(r.port)
	d.name = C.GoString(&d.ctx.device.name[0])
	if d.cfg.Device != "" && d.cfg.Device != d.name {
		return fmt.Errorf("verbs: %v is an address of the RDMA device %s, not of %s", d.addr, d.name, d.cfg.Device)
	}
	d.iwarp = d.ctx.device.transport_type == C.IBV_TRANSPORT_IWARP
	_, err = os.Stat(filepath.Join("/sys/class/infiniband", d.name, "device/driver"))
	d.quirks = quirksOf(err != nil, d.iwarp)
	var layer, state C.int
	d.mtu = cmp.Or(rdma.MTUFromCode(uint8(C.rs_port_mtu(d.ctx, C.int(d.port), &layer, &state))), 1024)
	d.ib = layer == C.IBV_LINK_LAYER_INFINIBAND && !d.iwarp
	a16 := d.addr.As16()
	d.gid = int(C.rs_gid_index(d.ctx, C.int(d.port), (*C.uint8_t)(&a16[0])))
	d.kind = d.transport()
	if err := d.queryLimits(); err != nil {
		return err
	}
	d.numa = numaNode(d.name)
	if d.hca, err = shareHCA(d.ctx, d.quirks.siw); err != nil {
		return err
	}
	// It makes completion queues, so it comes after the first queue of siw (occupy).
	if d.limits.Inline, err = d.inline(); err != nil {
		return err
	}
	for i := range d.cfg.Loops {
		l, err := newLoop(d, i)
		if err != nil {
			return err
		}
		d.loops = append(d.loops, l)
	}
	return nil
}

// free releases everything that open made.
func (d *Device) free() {
	for _, l := range d.loops {
		l.free()
	}
	if d.anchor != nil {
		C.rs_destroy_id(d.anchor)
	}
	if d.events != nil {
		C.rs_destroy_event_channel(d.events)
	}
	if d.hca != nil {
		d.hca.leave(d.lost() != nil)
	}
}

// addressOf is the first address by which RDMA-CM finds a device. IPv4 goes before IPv6.
func addressOf(device string) (netip.Addr, error) {
	if device == "" {
		return netip.Addr{}, errors.New("verbs: neither an address nor a device is given")
	}
	sys := os.DirFS("/sys")
	x, ok := sysfs.Named(sys, device)
	if !ok {
		return netip.Addr{}, fmt.Errorf("verbs: %w: %s (see 'rdma link show')", ErrNoDevice, device)
	}
	ifs, err := sysfs.Interfaces()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("verbs: reading the addresses of %s: %w", device, err)
	}
	addrs := sysfs.Addrs(sys, &x, ifs)
	if len(addrs) == 0 {
		return netip.Addr{}, fmt.Errorf("verbs: %w with an IP address: that of %s has none", ErrNoDevice, device)
	}
	if i := slices.IndexFunc(addrs, netip.Addr.Is4); i >= 0 {
		return addrs[i], nil
	}
	return addrs[0], nil
}

// Name is the kernel's name of the device.
func (d *Device) Name() string { return d.name }

// Addr is the address that the device sends from.
func (d *Device) Addr() netip.Addr { return d.addr }

// MTU is the largest path MTU of the device's port.
func (d *Device) MTU() rdma.MTU { return d.mtu }

// Removed is closed when the kernel has removed the device, or when a bond that has the address
// uses another interface. The connections of the device end. The user then calls Close, which lets
// the kernel finish, and opens a device by the address again.
func (d *Device) Removed() <-chan struct{} { return d.removed }

// Limits are those that the driver reports.
func (d *Device) Limits() rdma.Limits { return d.limits }

// Loops lists the loops.
func (d *Device) Loops() []rdma.Loop {
	out := make([]rdma.Loop, len(d.loops))
	for i, l := range d.loops {
		out[i] = l
	}
	return out
}

// lost is why the device cannot be used any more, or nil.
func (d *Device) lost() error {
	if why := d.gone.Load(); why != nil {
		return *why
	}
	return nil
}

// removedByKernel handles the removal of the device. Any goroutine may call it.
func (d *Device) removedByKernel() {
	if d.abandon(rdma.ErrRemoved) {
		d.log.Error("the kernel has removed the RDMA device", "device", d.name, "address", d.addr.String())
	}
}

// moved handles RDMA_CM_EVENT_ADDR_CHANGE: the bond that has the address uses another interface,
// which may belong to another RDMA device. So all connections end, and the user opens the device
// again, as after a removal. Any goroutine may call it.
func (d *Device) moved() {
	if d.abandon(rdma.ErrAddrChanged) {
		d.log.Warn("a bond has changed its active interface; connections over RDMA are made again",
			"device", d.name, "address", d.addr.String())
	}
}

// abandon ends the use of the device. It reports whether why is the first reason to.
func (d *Device) abandon(why error) bool {
	if !d.gone.CompareAndSwap(nil, &why) {
		return false
	}
	close(d.removed)
	for _, l := range d.loops {
		l.Submit(func() { l.abandon(why) })
	}
	return true
}

// leaving reports whether the kernel is removing the device. It waits for the users of software
// devices without an event for them.
func (d *Device) leaving() bool {
	return d.lost() != nil || d.quirks.software && C.rs_being_removed(d.ctx) != 0
}

// Close ends the device and all connections: peers are disconnected, and users get
// EventDisconnected with rdma.ErrClosed. Close returns when the loops have ended and all objects
// are destroyed. It must not be called on a loop.
//
//	listeners --> loops: connections, queue pairs, queues --> windows --> regions --> domains
//	  --> loops' descriptors --> context
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return rdma.ErrClosed
	}
	d.closed = true
	open := d.listeners
	d.listeners = nil
	d.mu.Unlock()
	for s := range open {
		s.once.Do(s.free)
	}
	devices.Delete(d)
	for _, l := range d.loops {
		l.Submit(l.leave)
	}
	d.ended.Wait()
	d.mu.Lock()
	mrs, mws, pds := d.mrs, d.mws, d.pds
	d.mrs, d.mws, d.pds = nil, nil, nil
	d.mu.Unlock()
	for w := range mws {
		w.free()
	}
	for m := range mrs { // and their Windows, which are regions too
		m.free()
		m.dma.close()
	}
	for p := range pds {
		p.ahs.close()
		C.rs_dealloc_pd(p.pd)
	}
	d.free()
	release()
	return nil
}

func (d *Device) loopOf(l rdma.Loop) (*loop, error) {
	x, ok := l.(*loop)
	if !ok || x.dev != d {
		return nil, fmt.Errorf("%w: the loop belongs to another device", rdma.ErrInvalidWR)
	}
	if x.over {
		return nil, rdma.ErrClosed
	}
	return x, nil
}
