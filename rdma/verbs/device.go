//go:build rdmacore && linux && cgo

package verbs

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/sysfs"
)

// Available reports why the provider cannot be used: nil if the libraries are there.
func Available() error {
	libraries.Lock()
	defer libraries.Unlock()
	return load()
}

// libraries keeps the use of the libraries in order: they are loaded and unloaded by one goroutine at a time.
var libraries struct {
	sync.Mutex
	users int // devices that are open, or being opened
	hcas  map[*C.struct_ibv_context]*hca
}

func load() error {
	if why := C.rs_load(); why != nil {
		return fmt.Errorf("verbs: rdma-core cannot be loaded: %s", C.GoString(why))
	}
	return nil
}

// use counts a device in; drop counts it out.
func use() error {
	libraries.Lock()
	defer libraries.Unlock()
	if err := load(); err != nil {
		return err
	}
	libraries.users++
	return nil
}

func drop() {
	libraries.Lock()
	defer libraries.Unlock()
	if libraries.users--; libraries.users > 0 {
		return
	}
	for ctx, h := range libraries.hcas {
		h.end()
		C.rs_close_device(ctx)
	}
	clear(libraries.hcas)
	C.rs_unload_cm()
}

// Device is an open device with one of its addresses. It implements rdma.Device.
type Device struct {
	cfg      Config
	addr     netip.Addr
	name     string
	log      *slog.Logger
	anchor   *C.struct_rdma_cm_id // bound to the address: keeps the context
	events   *C.struct_rdma_event_channel
	hca      *hca
	ctx      *C.struct_ibv_context
	port     int
	gid      int // index of the address, negative if the device has none
	mtu      rdma.MTU
	iwarp    bool
	software bool
	rxe      bool
	siw      bool
	ib       bool // InfiniBand, whose peers have no address that can be found from IP's
	kind     Transport
	limits   rdma.Limits
	readSGEs int // elements of a READ
	numa     int // node of the device, -1 if it is on none
	loops    []*loop
	next     atomic.Uint32 // loop of the next incoming connection

	removed chan struct{}
	// gone is why the device can be used no more: it was removed, or its address moved.
	gone atomic.Pointer[error]

	mu     sync.Mutex
	closed bool
	// listeners are open.
	listeners map[*listener]struct{}
	mrs       map[*mr]struct{}
	mws       map[*mw]struct{}
	pds       map[*pd]struct{}
	ended     sync.WaitGroup
	ways      ways
	// lastAsync is the last event of the device or of its port.
	lastAsync atomic.Pointer[asyncEvent]
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
	if cfg.Loops <= 0 {
		cfg.Loops = 1
	}
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
	if err := use(); err != nil {
		return nil, err
	}
	err := d.open()
	if errors.Is(err, errStale) {
		// The device was removed, and there is one in its place.
		d.release()
		d.hca, d.anchor, d.events = nil, nil, nil
		if e := resync(); e != nil {
			drop()
			return nil, e
		}
		err = d.open()
	}
	if err != nil {
		d.release()
		drop()
		return nil, err
	}
	devices.add(d)
	for _, l := range d.loops {
		d.ended.Add(1)
		go l.run()
	}
	return d, nil
}

func (d *Device) open() error {
	var err error
	if d.events, err = C.rs_create_event_channel(); d.events == nil {
		return fmt.Errorf("verbs: the RDMA connection manager of the kernel cannot be used (is the module rdma_ucm loaded, and /dev/infiniband/rdma_cm there?): %w", cause(err))
	}
	if d.anchor, err = C.rs_create_id(d.events, 0, C.RDMA_PS_TCP); d.anchor == nil {
		return fmt.Errorf("verbs: rdma_create_id: %w", cause(err))
	}
	sa := sockaddr(netip.AddrPortFrom(d.addr, 0))
	if e := C.rs_bind(d.anchor, unsafe.Pointer(&sa)); e != 0 {
		return fmt.Errorf("verbs: %w: %v belongs to none: %w ('rdma link show' lists those that there are)", ErrNoDevice, d.addr, syscall.Errno(e))
	}
	var r C.struct_rs_route
	C.rs_route(d.anchor, &r)
	if r.ctx == nil {
		return fmt.Errorf("verbs: %w: %v belongs to none ('rdma link show' lists those that there are)", ErrNoDevice, d.addr)
	}
	d.ctx, d.port = r.ctx, int(r.port)
	d.name = C.GoString(&d.ctx.device.name[0])
	if d.cfg.Device != "" && d.cfg.Device != d.name {
		return fmt.Errorf("verbs: %v is an address of the RDMA device %s, not of %s", d.addr, d.name, d.cfg.Device)
	}
	_, err = os.Stat(filepath.Join("/sys/class/infiniband", d.name, "device/driver"))
	d.software = err != nil
	d.iwarp = d.ctx.device.transport_type == C.IBV_TRANSPORT_IWARP
	d.rxe, d.siw = d.software && !d.iwarp, d.software && d.iwarp
	var layer, state C.int
	d.mtu = rdma.MTUFromCode(uint8(C.rs_port_mtu(d.ctx, C.int(d.port), &layer, &state)))
	if d.mtu == 0 {
		d.mtu = 1024
	}
	d.ib = layer == C.IBV_LINK_LAYER_INFINIBAND && !d.iwarp
	a16 := d.addr.As16()
	d.gid = int(C.rs_gid_index(d.ctx, C.int(d.port), (*C.uint8_t)(&a16[0])))
	d.kind = d.transport()
	var lim C.struct_rs_limits
	if e := C.rs_query_device(d.ctx, &lim); e != 0 {
		return fmt.Errorf("verbs: asking %s for its limits: %w", d.name, syscall.Errno(e))
	}
	d.limits = rdma.Limits{
		QPs: int(lim.max_qp), CQs: int(lim.max_cq), SRQs: int(lim.max_srq), MRs: int(lim.max_mr), PDs: int(lim.max_pd), MWs: int(lim.max_mw),
		WRs: int(lim.max_qp_wr), SGEs: int(lim.max_sge), CQEs: int(lim.max_cqe),
		RdAtomic: min(int(lim.max_qp_rd_atom), int(lim.max_qp_init_rd_atom), 255), RegionBytes: uint64(lim.max_mr_size),
		Atomics:   lim.atomic_cap != C.IBV_ATOMIC_NONE,
		Datagrams: !d.iwarp, Immediate: !d.iwarp,
		Windows:      lim.max_mw > 0 && lim.cap_flags&(C.IBV_DEVICE_MEM_WINDOW_TYPE_2A|C.IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0,
		SendErrors:   !d.software,
		Acknowledged: !d.iwarp, NotReady: !d.iwarp, Unconnected: !d.iwarp && !d.ib, Solicited: !d.iwarp,
		Drains:       !d.software && !d.iwarp,
		ResizableCQs: !d.siw,
		ReadRights:   !d.siw, // it looks whether there is a region, and not whether it may be read
	}
	d.numa = numaNode(d.name)
	d.readSGEs = max(int(lim.max_sge_rd), 1)
	if d.hca, err = shareHCA(d.ctx, d.siw, d.log); err != nil {
		return err
	}
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

// inlineMax is how much data of a request may be given inline, if the device has as much.
const inlineMax = 512

// inline is how much data of a request the device takes inline. It does not say: a queue pair can be made that has as much, or cannot.
func (d *Device) inline() (int, error) {
	p, err := C.rs_alloc_pd(d.ctx)
	if p == nil {
		return 0, fmt.Errorf("verbs: a protection domain of %s: %w", d.name, cause(err))
	}
	defer C.rs_dealloc_pd(p)
	c, err := C.rs_create_cq(d.ctx, 1, 0, nil)
	if c == nil {
		return 0, fmt.Errorf("verbs: a completion queue of %s: %w", d.name, cause(err))
	}
	defer C.rs_destroy_cq(c)
	has := func(n int) bool {
		init := C.struct_rs_qp_init{
			pd: p, send_cq: c, recv_cq: c, _type: C.IBV_QPT_RC, send_wr: 1, recv_wr: 1, send_sge: 1, recv_sge: 1, inline_data: C.int(n),
		}
		q := C.rs_create_qp(nil, &init)
		if q == nil {
			return false
		}
		C.rs_destroy_qp(nil, q)
		return int(init.inline_data) >= n
	}
	if has(inlineMax) {
		return inlineMax, nil
	}
	return sort.Search(inlineMax-1, func(n int) bool { return !has(n + 1) }), nil
}

// release frees what open took.
func (d *Device) release() {
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

// addressOf is the first address that RDMA-CM finds a device by, version 4 before 6.
func addressOf(device string) (netip.Addr, error) {
	if device == "" {
		return netip.Addr{}, errors.New("verbs: neither an address nor a device is given")
	}
	sys := os.DirFS("/sys")
	x, ok := sysfs.Named(sys, device)
	if !ok {
		return netip.Addr{}, fmt.Errorf("verbs: %w: %s ('rdma link show' lists those that there are)", ErrNoDevice, device)
	}
	ifs, err := sysfs.Interfaces()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("verbs: the addresses of %s: %w", device, err)
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

// soft reports whether the device is one of the kernel's software devices, which belong to no bus.
func (d *Device) soft() bool { return d.software }

// Name is the kernel's name of the device.
func (d *Device) Name() string { return d.name }

// Addr is the address that the device sends from.
func (d *Device) Addr() netip.Addr { return d.addr }

// MTU is the path MTU that the device's port carries.
func (d *Device) MTU() rdma.MTU { return d.mtu }

// Removed is closed when the kernel has taken the device away, or when a bond that has the address uses another
// interface. The connections of the device have ended by then, or are about to. Close it, so that the kernel can
// finish, and open a device by the address again.
func (d *Device) Removed() <-chan struct{} { return d.removed }

// Limits is what the device offers, as its driver says.
func (d *Device) Limits() rdma.Limits { return d.limits }

// Loops lists the loops.
func (d *Device) Loops() []rdma.Loop {
	out := make([]rdma.Loop, len(d.loops))
	for i, l := range d.loops {
		out[i] = l
	}
	return out
}

// lost is why the device can be used no more, or nil.
func (d *Device) lost() error {
	if why := d.gone.Load(); why != nil {
		return *why
	}
	return nil
}

// taken is called when the kernel takes the device away, on any goroutine.
func (d *Device) taken() {
	if d.lose(rdma.ErrRemoved) {
		d.log.Error("the kernel has removed the RDMA device", "device", d.name, "address", d.addr.String())
	}
}

// moved is called on RDMA_CM_EVENT_ADDR_CHANGE, on any goroutine: the bond that has the address uses another of its
// interfaces. The address may belong to another RDMA device now. So all connections end, and the device is opened
// again by its address, as when it was removed.
func (d *Device) moved() {
	if d.lose(rdma.ErrAddrChanged) {
		d.log.Warn("a bond has changed its active interface; connections over RDMA are made again",
			"device", d.name, "address", d.addr.String())
	}
}

// lose ends the use of the device. It reports whether this is the first reason to.
func (d *Device) lose(why error) bool {
	if !d.gone.CompareAndSwap(nil, &why) {
		return false
	}
	close(d.removed)
	for _, l := range d.loops {
		l.Submit(func() { l.abandon(why) })
	}
	return true
}

// leaving reports whether the kernel takes the device away. Of soft devices it waits for their users, and tells
// them nothing.
func (d *Device) leaving() bool {
	return d.lost() != nil || d.software && C.rs_being_removed(d.ctx) != 0
}

// Close ends the device. Connections are told to their peers as disconnected, and to their users with
// rdma.ErrClosed; Close returns when the loops have ended and everything is released. It must not be called on a loop.
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
	devices.remove(d)
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
	// Windows of regions are regions too.
	for m := range mrs {
		m.free()
		if m.dma != nil {
			m.dma.close()
		}
	}
	for p := range pds {
		p.ahs.close()
		C.rs_dealloc_pd(p.pd)
	}
	d.release()
	drop()
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

// hca is a context of a device, which librdmacm opens once for all addresses in a process,
// and the goroutine that reads its asynchronous events.
type hca struct {
	ctx   *C.struct_ibv_context
	users int
	dead  bool // the device was removed, and the context has no descriptor any more
	ended bool
	file  *os.File
	raw   syscall.RawConn
	stop  atomic.Bool
	done  chan struct{}
	log   *slog.Logger
	first *C.struct_ibv_cq // of siw, see occupy
}

// The kernel gives each queue of siw an offset at which the program maps it, the first that is free. libsiw takes one
// of them for the word that there is none (SIW_INVAL_UOBJ_KEY), so that the queue that begins there fails, without a
// reason, and all after it, which are given the same.
const (
	siwNoOffset = 0x90000
	siwCQE      = 32 // bytes of an entry of a completion queue
)

// occupy makes the first queue of a context of siw, which lies from 0 to beyond that offset: no other begins there. It takes a MiB.
func (h *hca) occupy() error {
	var err error
	if h.first, err = C.rs_create_cq(h.ctx, siwNoOffset/siwCQE+1, 0, nil); h.first == nil {
		return fmt.Errorf("verbs: the first completion queue of siw: %w", cause(err))
	}
	return nil
}

// errStale says that librdmacm's context is of a device that was removed.
var errStale = errors.New("verbs: the device was removed")

func shareHCA(ctx *C.struct_ibv_context, siw bool, log *slog.Logger) (*hca, error) {
	libraries.Lock()
	defer libraries.Unlock()
	if h := libraries.hcas[ctx]; h != nil {
		if h.dead {
			return nil, errStale
		}
		h.users++
		return h, nil
	}
	if e := C.rs_nonblock(ctx.async_fd); e != 0 {
		return nil, fmt.Errorf("verbs: the events of the device: %w", syscall.Errno(e))
	}
	fd, err := unix.FcntlInt(uintptr(ctx.async_fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("verbs: the events of the device: %w", err)
	}
	h := &hca{ctx: ctx, users: 1, file: os.NewFile(uintptr(fd), "async events"), done: make(chan struct{}), log: log}
	if h.raw, err = h.file.SyscallConn(); err == nil && siw {
		err = h.occupy()
	}
	if err != nil {
		_ = h.file.Close()
		return nil, err
	}
	if libraries.hcas == nil {
		libraries.hcas = map[*C.struct_ibv_context]*hca{}
	}
	libraries.hcas[ctx] = h
	go h.run()
	return h, nil
}

// leave ends the use of a context. Of a device that is being removed the kernel waits for it.
func (h *hca) leave(removed bool) {
	libraries.Lock()
	defer libraries.Unlock()
	if h.users--; h.users == 0 && (removed || C.rs_being_removed(h.ctx) != 0) {
		h.end()
		h.dead = true
		C.rs_abandon_device(h.ctx)
	}
}

// end stops the reader of events. With libraries locked.
func (h *hca) end() {
	if h.ended {
		return
	}
	h.ended = true
	h.stop.Store(true)
	_ = h.file.Close() // which wakes the reader
	<-h.done
	if h.first != nil {
		C.rs_destroy_cq(h.first)
	}
}

// resync has librdmacm let go of devices that were removed.
func resync() error {
	libraries.Lock()
	defer libraries.Unlock()
	if e := C.rs_resync(); e != 0 {
		return fmt.Errorf("verbs: looking for the RDMA devices: %w", errno(e))
	}
	for ctx, h := range libraries.hcas {
		if h.dead {
			delete(libraries.hcas, ctx)
		}
	}
	return nil
}

func (h *hca) run() {
	defer close(h.done)
	for {
		var e C.struct_rs_async
		got := false
		err := h.raw.Read(func(uintptr) bool {
			if h.stop.Load() {
				return true
			}
			got = C.rs_async_event(h.ctx, &e) == 0
			return got
		})
		if err != nil || h.stop.Load() {
			return
		}
		if got {
			h.event(&e)
		}
	}
}

// event hands an event to whom it concerns.
func (h *hca) event(e *C.struct_rs_async) {
	kind := e._type
	switch kind {
	case C.IBV_EVENT_DEVICE_FATAL:
		for _, d := range devices.of(h.ctx) {
			d.lastAsync.Store(&asyncEvent{int(kind), clock()})
			d.taken()
		}
		return
	case C.IBV_EVENT_PORT_ERR, C.IBV_EVENT_PORT_ACTIVE:
		for _, d := range devices.of(h.ctx) {
			if d.port == int(e.port) {
				d.lastAsync.Store(&asyncEvent{int(kind), clock()})
				d.log.Info("the port of the RDMA device has changed", "device", d.name, "port", d.port, "active", kind == C.IBV_EVENT_PORT_ACTIVE)
			}
		}
		return
	}
	o := cookies.get(uint64(e.cookie))
	if o == nil {
		return // it is gone
	}
	l := o.home()
	l.n.async.Add(1)
	l.Submit(func() { o.async(int(kind)) })
}

// eventful is what asynchronous events and completion events are about.
type eventful interface {
	home() *loop
	// async is called on the loop.
	async(kind int)
}

// cookies tell the libraries' objects apart. Numbers are not used again, so that an event that was
// under way when its object was destroyed reaches nobody.
var cookies registry

type registry struct {
	mu   sync.Mutex
	last uint64
	m    map[uint64]eventful
}

func (r *registry) add(o eventful) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = map[uint64]eventful{}
	}
	r.last++
	r.m[r.last] = o
	return r.last
}

func (r *registry) get(n uint64) eventful {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m[n]
}

func (r *registry) remove(n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, n)
}

// devices are those that are open.
var devices deviceSet

type deviceSet struct {
	mu sync.Mutex
	m  map[*Device]struct{}
}

func (s *deviceSet) add(d *Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[*Device]struct{}{}
	}
	s.m[d] = struct{}{}
}

func (s *deviceSet) remove(d *Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, d)
}

func (s *deviceSet) of(ctx *C.struct_ibv_context) (out []*Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.m {
		if d.ctx == ctx {
			out = append(out, d)
		}
	}
	return out
}

// sockaddr is an address as the connection manager takes it.
func sockaddr(a netip.AddrPort) (out [28]byte) {
	port := a.Port()
	if x := a.Addr().Unmap(); x.Is4() {
		*(*uint16)(unsafe.Pointer(&out[0])) = syscall.AF_INET
		out[2], out[3] = byte(port>>8), byte(port)
		b := x.As4()
		copy(out[4:], b[:])
		return out
	}
	*(*uint16)(unsafe.Pointer(&out[0])) = syscall.AF_INET6
	out[2], out[3] = byte(port>>8), byte(port)
	b := a.Addr().As16()
	copy(out[8:], b[:])
	if z := a.Addr().Zone(); z != "" {
		if i, err := net.InterfaceByName(z); err == nil {
			*(*uint32)(unsafe.Pointer(&out[24])) = uint32(i.Index)
		}
	}
	return out
}

// addrPort is the other way.
func addrPort(b []byte) netip.AddrPort {
	port := uint16(b[2])<<8 | uint16(b[3])
	switch *(*uint16)(unsafe.Pointer(&b[0])) {
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case syscall.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port)
	}
	return netip.AddrPort{}
}
