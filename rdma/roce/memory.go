package roce

import (
	"fmt"
	"sync"
	"sync/atomic"

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
	buf    []byte
	addr   uint64
	pd     uint32
	access rdma.Access
	lkey   uint32
	rkey   atomic.Uint32
	lslot  uint32
	rslot  uint32
	closed atomic.Bool

	// Of what a memory window is bound to: the region, and the queue pair that alone may
	// use it. 0 is any.
	parent *region
	qpn    uint32
	fast   bool // of a bindable that is no window: its L_Key ends with the R_Key
}

var (
	_ rc.Memory = (*table)(nil)
	_ rdma.MR   = (*region)(nil)
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

func (t *table) register(pd uint32, buf []byte, access rdma.Access) (*region, error) {
	if len(buf) == 0 || len(buf) > regionMax {
		return nil, fmt.Errorf("%w: a memory region of %d bytes", rdma.ErrInvalidWR, len(buf))
	}
	if access&(rdma.RemoteWrite|rdma.RemoteAtomic) != 0 && access&rdma.LocalWrite == 0 {
		return nil, fmt.Errorf("%w: a region that peers may write must be locally writable", rdma.ErrInvalidWR)
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
	r := &region{t: t, buf: buf, pd: pd, access: access, lslot: l, rslot: k}
	r.addr = (t.random.uint64() >> (64 - addrBits)) &^ (addrAlign - 1)
	t.slot(l).region.Store(r)
	t.slot(k).region.Store(r)
	r.lkey = t.renew(l)
	r.rkey.Store(t.renew(k))
	t.live++
	return r, nil
}

// Local implements rc.Memory.
func (t *table) Local(pd, lkey uint32, buf []byte, write bool) rdma.Status {
	r, _ := t.find(lkey)
	if r == nil || r.lkey != lkey || r.pd != pd || write && r.access&rdma.LocalWrite == 0 {
		return rdma.LocProtErr
	}
	if !rdma.Within(buf, r.buf) {
		return rdma.LocProtErr
	}
	return rdma.Success
}

// Remote implements rc.Memory.
func (t *table) Remote(pd, qpn, rkey uint32, va uint64, n uint32, need rdma.Access) ([]byte, rdma.Status) {
	r, _ := t.find(rkey)
	if r == nil || r.lkey == rkey || r.pd != pd || r.access&need != need {
		return nil, rdma.RemAccessErr
	}
	if r.parent != nil && (r.qpn != qpn || r.parent.ended()) {
		return nil, rdma.RemAccessErr
	}
	off := va - r.addr // wraps to something huge below the region
	if off > uint64(len(r.buf)) || uint64(n) > uint64(len(r.buf))-off {
		return nil, rdma.RemAccessErr
	}
	return r.buf[off : off+uint64(n) : off+uint64(n)], rdma.Success
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
func (r *region) Addr() uint64 { return r.addr }

// Bytes implements rdma.MR.
func (r *region) Bytes() []byte { return r.buf }

// Invalidate implements rdma.MR.
func (r *region) Invalidate() uint32 {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.closed.Load() {
		return 0
	}
	k := r.t.renew(r.rslot)
	r.rkey.Store(k)
	return k
}

// Window implements rdma.MR.
func (r *region) Window(buf []byte, access rdma.Access) (rdma.MR, error) {
	switch {
	case r.closed.Load():
		return nil, rdma.ErrClosed
	case !rdma.Within(buf, r.buf):
		return nil, fmt.Errorf("%w: a window of memory that is not its region's", rdma.ErrInvalidWR)
	case access&rdma.LocalWrite&^r.access != 0:
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
	r.t.retire(r.rslot)
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
