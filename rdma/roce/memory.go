package roce

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rc"
)

// A key names a slot of the table and a generation of the slot, encrypted. The
// generation moves with each registration, invalidation and deregistration, so
// that a key which has ended stays refused for 4096 uses of its slot.
const (
	slotBits   = 20
	slotMask   = 1<<slotBits - 1
	genMask    = 1<<(32-slotBits) - 1
	chunkSlots = 1 << 10
	chunks     = 1 << slotBits / chunkSlots

	// addrBits and addrAlign shape the random addresses that peers see: they
	// look like user addresses, and regions start on pages.
	addrBits  = 46
	addrAlign = 4096

	regionMax = 1 << 40
)

// table holds the memory regions of a device. The packet path reads it without
// a lock: a slot's key is written last when a region comes and first when it
// goes.
//
// Deregistration on one goroutine does not wait for a packet that another is
// placing at that moment. Users that free memory do so on the loop of the queue
// pairs that peers reach it through.
type table struct {
	codes  cipher
	random *source
	chunks [chunks]atomic.Pointer[[chunkSlots]slot]

	mu   sync.Mutex
	used uint32   // slots below were used before
	free []uint32 // in the order they became free
	live int
}

// slot is one key's place. Each region has two: of its L_Key and its R_Key.
type slot struct {
	key    atomic.Uint32
	region atomic.Pointer[region]
	gen    uint32 // under table.mu
}

// region is a memory region. It implements rdma.MR.
type region struct {
	t      *table
	place  place
	pd     uint32
	lkey   uint32
	rkey   atomic.Uint32 // 0 while there is no memory
	lslot  uint32
	rslot  uint32 // under table.mu, unless the memory never changes
	closed atomic.Bool

	// Of what a memory window is bound to: the region, and the queue pair that alone may
	// use it. 0 is any.
	parent *region
	qpn    uint32
	fast   bool // of a bindable that is no window: its L_Key ends with the R_Key
}

// place is the memory of a region, which may become another while the packet path looks at
// it. Whoever looks gets all of one or nothing.
type place struct {
	seq    atomic.Uint64 // odd while it changes
	base   atomic.Pointer[byte]
	size   atomic.Uint64
	addr   atomic.Uint64
	access atomic.Uint32
}

// view is what a place was at one moment.
type view struct {
	buf    []byte
	addr   uint64
	access rdma.Access
}

// set changes the place. table.mu is held, or nobody else knows it.
func (p *place) set(v view) {
	p.seq.Add(1)
	p.base.Store(unsafe.SliceData(v.buf))
	p.size.Store(uint64(len(v.buf)))
	p.addr.Store(v.addr)
	p.access.Store(uint32(v.access))
	p.seq.Add(1)
}

// get reports false while the place changes.
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

func (t *table) init(r *source) { t.codes, t.random = newCipher(r), r }

// slot returns the slot with number n, or nil if it was never used.
func (t *table) slot(n uint32) *slot {
	c := t.chunks[n/chunkSlots].Load()
	if c == nil {
		return nil
	}
	return &c[n%chunkSlots]
}

// find returns the region that key names at this moment.
func (t *table) find(key uint32) (*region, *slot) {
	s := t.slot(t.codes.decrypt(key) & slotMask)
	if s == nil || s.key.Load() != key {
		return nil, nil
	}
	r := s.region.Load()
	if r == nil || s.key.Load() != key { // the slot changed hands in between
		return nil, nil
	}
	return r, s
}

// look is find with the memory that key opens at this moment.
func (t *table) look(key uint32) (*region, view) {
	r, s := t.find(key)
	if r == nil {
		return nil, view{}
	}
	v, ok := r.place.get()
	if !ok || s.key.Load() != key { // what was seen may be the memory of the next key
		return nil, view{}
	}
	return r, v
}

// take finds a free slot. mu is held.
func (t *table) take() (uint32, bool) {
	// A slot rests before it is used again, as its last key may be on the way.
	const rest = 1024
	if len(t.free) > rest || t.used == 1<<slotBits && len(t.free) > 0 {
		n := t.free[0]
		t.free = t.free[1:]
		return n, true
	}
	if t.used == 1<<slotBits {
		return 0, false
	}
	n := t.used
	t.used++
	if c := &t.chunks[n/chunkSlots]; c.Load() == nil {
		c.Store(new([chunkSlots]slot))
	}
	t.slot(n).gen = t.random.uint32() & genMask
	return n, true
}

// renew gives slot n a fresh key, which it returns. The old one is refused
// from here on. mu is held.
func (t *table) renew(n uint32) uint32 {
	key := t.draw(n)
	t.slot(n).key.Store(key)
	return key
}

// draw returns the next key of slot n, which names nothing yet. mu is held.
func (t *table) draw(n uint32) uint32 {
	s := t.slot(n)
	for {
		s.gen = (s.gen + 1) & genMask
		if key := t.codes.encrypt(s.gen<<slotBits | n); key != 0 {
			return key
		}
	}
}

// retire ends the key of slot n without giving it another. mu is held.
func (t *table) retire(n uint32) {
	s := t.slot(n)
	s.key.Store(0) // no key is 0
	s.region.Store(nil)
	t.free = append(t.free, n)
}

// registrable says why a region cannot be of buf.
func registrable(buf []byte, access rdma.Access) error {
	if len(buf) == 0 || len(buf) > regionMax {
		return fmt.Errorf("%w: a memory region of %d bytes", rdma.ErrInvalidWR, len(buf))
	}
	if access&(rdma.RemoteWrite|rdma.RemoteAtomic) != 0 && access&rdma.LocalWrite == 0 {
		return fmt.Errorf("%w: a region that peers may write must be locally writable", rdma.ErrInvalidWR)
	}
	return nil
}

// address draws the address that peers see of byte 0.
func (t *table) address() uint64 {
	return (t.random.uint64() >> (64 - addrBits)) &^ (addrAlign - 1)
}

func (t *table) register(pd uint32, buf []byte, access rdma.Access) (*region, error) {
	if err := registrable(buf, access); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.take()
	if !ok {
		return nil, fmt.Errorf("%w: too many memory regions", rdma.ErrNoResources)
	}
	k, ok := t.take()
	if !ok {
		t.free = append(t.free, l)
		return nil, fmt.Errorf("%w: too many memory regions", rdma.ErrNoResources)
	}
	r := &region{t: t, pd: pd, lslot: l, rslot: k}
	r.place.set(view{buf, t.address(), access})
	t.slot(l).region.Store(r)
	t.slot(k).region.Store(r)
	r.lkey = t.renew(l)
	r.rkey.Store(t.renew(k))
	t.live++
	return r, nil
}

// Reregister implements rdma.Reregisterer. The R_Key has a slot of its own each time, as that
// of a new region has, so that it comes again as late.
func (r *region) Reregister(buf []byte, access rdma.Access) error {
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case r.closed.Load():
		return rdma.ErrClosed
	case (rdma.Access(r.place.access.Load())|access)&rdma.WindowBind != 0:
		return fmt.Errorf("%w: other memory for a region that windows may be bound to", rdma.ErrInvalidWR)
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
	k, ok := t.take()
	if !ok {
		return fmt.Errorf("%w: too many memory regions", rdma.ErrNoResources)
	}
	r.place.set(view{buf, t.address(), access})
	r.rslot = k
	t.slot(k).region.Store(r)
	r.rkey.Store(t.renew(k))
	return nil
}

// Local implements rc.Memory.
func (t *table) Local(pd, lkey uint32, buf []byte, write bool) rdma.Status {
	r, v := t.look(lkey)
	if r == nil || r.lkey != lkey || r.pd != pd || write && v.access&rdma.LocalWrite == 0 {
		return rdma.LocProtErr
	}
	if !rdma.Within(buf, v.buf) {
		return rdma.LocProtErr
	}
	return rdma.Success
}

// Remote implements rc.Memory.
func (t *table) Remote(pd, qpn, rkey uint32, va uint64, n uint32, need rdma.Access) ([]byte, rdma.Status) {
	r, v := t.look(rkey)
	if r == nil || r.lkey == rkey || r.pd != pd || v.access&need != need {
		return nil, rdma.RemAccessErr
	}
	if r.parent != nil && (r.qpn != qpn || r.parent.ended()) {
		return nil, rdma.RemAccessErr
	}
	off := va - v.addr // wraps to something huge below the region
	if off > uint64(len(v.buf)) || uint64(n) > uint64(len(v.buf))-off {
		return nil, rdma.RemAccessErr
	}
	return v.buf[off : off+uint64(n) : off+uint64(n)], rdma.Success
}

// Invalidate implements rc.Memory: it ends an R_Key for a peer's SEND with
// invalidate, or a local invalidate.
func (t *table) Invalidate(pd, qpn, key uint32) rdma.Status {
	r, s := t.find(key)
	if r == nil || r.lkey == key || r.pd != pd || r.parent != nil && r.qpn != qpn {
		return rdma.RemAccessErr
	}
	if r.fast {
		t.slot(r.lslot).key.Store(0)
	}
	s.key.CompareAndSwap(key, 0)
	return rdma.Success
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
		return nil, fmt.Errorf("%w: a window of memory that is not its region's", rdma.ErrInvalidWR)
	case access&rdma.LocalWrite&^v.access != 0:
		return nil, fmt.Errorf("%w: a writable window of a region that is not", rdma.ErrInvalidWR)
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

// Close implements rdma.PD. Regions and queue pairs of the domain stay usable
// until they are closed themselves.
func (p *pd) Close() {}
