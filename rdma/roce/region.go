package roce

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rc"
)

// region is a memory region. It implements rdma.MR.
//
//	state                  L_Key     R_Key     place
//	Register               valid     valid     memory, access
//	Reregister(nil, 0)     valid     0         empty: no access is granted
//	Reregister(buf, ...)   valid     new slot  new memory
//	Invalidate             valid     new key   unchanged
//	a peer's invalidate    valid     refused   unchanged
//	Close                  refused   refused   unchanged, for packets that have read it already
//
// The user owns the memory. It must stay mapped until Close, and until the loop that serves its
// peers has finished the current packet (see table).
type region struct {
	t      *table
	place  place
	pd     uint32
	lkey   uint32
	rkey   atomic.Uint32 // 0 while there is no memory
	lslot  uint32
	rslot  uint32 // under table.mu, except in a bindable, where it never changes
	closed atomic.Bool

	// parent is the region that a memory window is bound to, and qpn the queue pair that alone may
	// use the window. nil and 0 for a region.
	parent *region
	qpn    uint32
	fast   bool // registered by OpReg: the L_Key ends with the R_Key
}

// place is the memory of a region. It is a sequence lock: Reregister may replace the memory while
// the packet path reads it, and the reader gets all of one memory or nothing.
type place struct {
	seq    atomic.Uint64 // odd while it changes
	base   atomic.Pointer[byte]
	size   atomic.Uint64
	addr   atomic.Uint64
	access atomic.Uint32
}

// view is the content of a place.
type view struct {
	buf    []byte
	addr   uint64
	access rdma.Access
}

// set changes the place. table.mu is held, or nobody else has the region yet.
func (p *place) set(v view) {
	p.seq.Add(1)
	p.base.Store(unsafe.SliceData(v.buf))
	p.size.Store(uint64(len(v.buf)))
	p.addr.Store(v.addr)
	p.access.Store(uint32(v.access))
	p.seq.Add(1)
}

// get returns the content. It reports false while the place changes.
func (p *place) get() (v view, ok bool) {
	seq := p.seq.Load()
	base, size := p.base.Load(), p.size.Load()
	v.addr, v.access = p.addr.Load(), rdma.Access(p.access.Load())
	if seq&1 != 0 || p.seq.Load() != seq {
		return view{}, false
	}
	v.buf = unsafe.Slice(base, size)
	return v, true
}

var (
	_ rc.Memory         = (*table)(nil)
	_ rdma.Reregisterer = (*region)(nil)
)

// registrable says why memory cannot be registered.
func registrable(buf []byte, access rdma.Access) error {
	if len(buf) == 0 || len(buf) > regionMax {
		return fmt.Errorf("%w: a memory region cannot have %d bytes", rdma.ErrInvalidWR, len(buf))
	}
	if access&(rdma.RemoteWrite|rdma.RemoteAtomic) != 0 && access&rdma.LocalWrite == 0 {
		return fmt.Errorf("%w: a region that peers may write must be locally writable", rdma.ErrInvalidWR)
	}
	return nil
}

// address draws the address of the first byte of a region, as peers name it.
func (t *table) address() uint64 {
	return (t.random.uint64() >> (64 - addrBits)) &^ (addrAlign - 1)
}

// register makes a region of buf.
func (t *table) register(pd uint32, buf []byte, access rdma.Access) (*region, error) {
	if err := registrable(buf, access); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var slots [2]uint32
	if err := t.take(slots[:]); err != nil {
		return nil, err
	}
	l, k := slots[0], slots[1]
	// The slots get the region before the keys: see table.
	r := &region{t: t, pd: pd, lslot: l, rslot: k}
	r.place.set(view{buf, t.address(), access})
	t.slot(l).region.Store(r)
	t.slot(k).region.Store(r)
	r.lkey = t.renew(l)
	r.rkey.Store(t.renew(k))
	t.live++
	return r, nil
}

// Reregister implements rdma.Reregisterer. The R_Key gets another slot each time, as that of a new
// region does, so that an old key is given out again as late.
func (r *region) Reregister(buf []byte, access rdma.Access) error {
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case r.closed.Load():
		return rdma.ErrClosed
	case (rdma.Access(r.place.access.Load())|access)&rdma.WindowBind != 0:
		return fmt.Errorf("%w: a region that windows can be bound to cannot get other memory", rdma.ErrInvalidWR)
	}
	if r.rkey.Swap(0) != 0 {
		t.retire(r.rslot)
		r.place.set(view{})
	}
	if len(buf) == 0 {
		return nil
	}
	if err := registrable(buf, access); err != nil {
		return err
	}
	var slots [1]uint32
	if err := t.take(slots[:]); err != nil {
		return err
	}
	k := slots[0]
	r.place.set(view{buf, t.address(), access})
	r.rslot = k
	t.slot(k).region.Store(r)
	r.rkey.Store(t.renew(k))
	return nil
}

// LKey implements rdma.MR.
func (r *region) LKey() uint32 { return r.lkey }

// RKey implements rdma.MR.
func (r *region) RKey() uint32 { return r.rkey.Load() }

// Addr implements rdma.MR.
func (r *region) Addr() uint64 { return r.place.addr.Load() }

// Bytes implements rdma.MR.
func (r *region) Bytes() []byte {
	v, _ := r.place.get()
	return v.buf
}

// Invalidate implements rdma.MR.
func (r *region) Invalidate() uint32 {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.closed.Load() || r.rkey.Load() == 0 {
		return 0
	}
	k := r.t.renew(r.rslot)
	r.rkey.Store(k)
	return k
}

// Window implements rdma.MR.
func (r *region) Window(buf []byte, access rdma.Access) (rdma.MR, error) {
	v, _ := r.place.get()
	switch {
	case r.closed.Load():
		return nil, rdma.ErrClosed
	case !rdma.Within(buf, v.buf):
		return nil, fmt.Errorf("%w: the window's memory is not in its region", rdma.ErrInvalidWR)
	case access&rdma.LocalWrite&^v.access != 0:
		return nil, fmt.Errorf("%w: a window is writable only if its region is", rdma.ErrInvalidWR)
	}
	w, err := r.t.register(r.pd, buf, access)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Close implements rdma.MR.
func (r *region) Close() {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.closed.Swap(true) {
		return
	}
	r.t.retire(r.lslot)
	if r.rkey.Load() != 0 {
		r.t.retire(r.rslot)
	}
	r.t.live--
}

// pd is a protection domain.
type pd struct {
	d  *Device
	id uint32
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (rdma.PD, error) {
	id := d.pds.Add(1)
	if id == 0 {
		return nil, rdma.ErrNoResources
	}
	return &pd{d: d, id: id}, nil
}

// Register implements rdma.PD.
func (p *pd) Register(buf []byte, access rdma.Access) (rdma.MR, error) {
	r, err := p.d.mem.register(p.id, buf, access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Close implements rdma.PD. Regions and queue pairs of the domain stay usable until they are closed
// themselves.
func (p *pd) Close() {}
