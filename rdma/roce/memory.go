package roce

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/rdma"
)

// A key is a slot number and a generation of the slot, encrypted:
//
//	31        20 19                  0
//	| generation | number of the slot |
//
// Each registration, invalidation and deregistration moves the generation on, so a key that has
// ended stays refused for 4096 uses of its slot. The encryption keeps a peer from guessing a key
// from the keys that it knows (cipher).
const (
	slotBits   = 20
	slotMask   = 1<<slotBits - 1
	genMask    = 1<<(32-slotBits) - 1
	chunkSlots = 1 << 10
	chunks     = 1 << slotBits / chunkSlots

	// Peers see random addresses in the range of user addresses, on which pages begin.
	addrBits  = 46
	addrAlign = 4096

	regionMax = 1 << 40
)

// table holds the memory regions of a device. The packet path reads it without a lock: registration
// writes the key of a slot last, and deregistration clears it first.
//
// Deregistration on one goroutine does not wait for a packet that another goroutine places at that
// moment. Users that free memory do so on the loop of the queue pairs that peers reach it through.
type table struct {
	codes  cipher
	random *source
	chunks [chunks]atomic.Pointer[[chunkSlots]slot]

	mu   sync.Mutex
	used uint32   // slots below were used before
	free []uint32 // in the order in which they became free
	live int      // regions and windows
}

// slot is the place of a key. Each region has two: of its L_Key and of its R_Key.
type slot struct {
	key    atomic.Uint32
	region atomic.Pointer[region]
	gen    uint32 // under table.mu
}

func (t *table) init(r *source) { t.codes, t.random = newCipher(r), r }

// slot returns the slot with number n, or nil if it was never used.
func (t *table) slot(n uint32) *slot {
	c := t.chunks[n/chunkSlots].Load()
	if c == nil {
		return nil
	}
	return &c[n%chunkSlots]
}

// find returns the region that key names, and the slot of the key. 0 is no key: slots without one
// have it.
func (t *table) find(key uint32) (*region, *slot) {
	s := t.slot(t.codes.decrypt(key) & slotMask)
	if key == 0 || s == nil || s.key.Load() != key {
		return nil, nil
	}
	r := s.region.Load()
	if r == nil || s.key.Load() != key { // another key got the slot meanwhile
		return nil, nil
	}
	return r, s
}

// look returns the region that key names, and its memory.
func (t *table) look(key uint32) (*region, view) {
	r, s := t.find(key)
	if r == nil {
		return nil, view{}
	}
	v, ok := r.place.get()
	if !ok || s.key.Load() != key { // v may be the memory of the next key
		return nil, view{}
	}
	return r, v
}

// rest is how many other slots are freed before a slot is used again: packets with its last key may
// still be on their way.
const rest = 1024

// take fills slots with free slots, or takes none. mu is held. It allocates nothing, as a transfer
// may register memory anew.
func (t *table) take(slots []uint32) error {
	for i := range slots {
		switch {
		case len(t.free) > rest || t.used == 1<<slotBits && len(t.free) > 0:
			slots[i] = t.free[0]
			t.free = t.free[1:]
		case t.used == 1<<slotBits:
			t.free = append(t.free, slots[:i]...)
			return fmt.Errorf("%w: too many memory regions", rdma.ErrNoResources)
		default:
			if c := &t.chunks[t.used/chunkSlots]; c.Load() == nil {
				c.Store(new([chunkSlots]slot))
			}
			t.slot(t.used).gen = t.random.uint32() & genMask
			slots[i] = t.used
			t.used++
		}
	}
	return nil
}

// renew gives slot n a new key. The old one is refused from now on. mu is held.
func (t *table) renew(n uint32) uint32 {
	key := t.draw(n)
	t.slot(n).key.Store(key)
	return key
}

// draw returns the next key of slot n, which names nothing until it is stored. mu is held.
func (t *table) draw(n uint32) uint32 {
	s := t.slot(n)
	for {
		s.gen = (s.gen + 1) & genMask
		if key := t.codes.encrypt(s.gen<<slotBits | n); key != 0 {
			return key
		}
	}
}

// retire ends the key of slot n and frees the slot. mu is held.
func (t *table) retire(n uint32) {
	s := t.slot(n)
	s.key.Store(0) // no key is 0
	s.region.Store(nil)
	t.free = append(t.free, n)
}

// Local implements rc.Memory.
func (t *table) Local(pd, lkey uint32, buf []byte, write bool) rdma.Status {
	r, v := t.look(lkey)
	if r == nil || r.lkey != lkey || r.pd != pd || write && v.access&rdma.LocalWrite == 0 || !rdma.Within(buf, v.buf) {
		return rdma.LocProtErr
	}
	return rdma.Success
}

// Remote implements rc.Memory.
//
//	refused, always with REM_ACCESS_ERR
//	the key is unknown or has ended, or is an L_Key
//	the region is of another protection domain, or lacks a right
//	a window is bound to another queue pair, or its region has ended
//	the range is not wholly in the region
//
// The peer learns no more than that.
func (t *table) Remote(pd, qpn, rkey uint32, va uint64, n uint32, need rdma.Access) ([]byte, rdma.Status) {
	r, v := t.look(rkey)
	if r == nil || r.lkey == rkey || r.pd != pd || v.access&need != need {
		return nil, rdma.RemAccessErr
	}
	if r.parent != nil && (r.qpn != qpn || r.parent.ended()) {
		return nil, rdma.RemAccessErr
	}
	off := va - v.addr // below the region it wraps to a huge number
	if off > uint64(len(v.buf)) || uint64(n) > uint64(len(v.buf))-off {
		return nil, rdma.RemAccessErr
	}
	return v.buf[off : off+uint64(n) : off+uint64(n)], rdma.Success
}

// Invalidate implements rc.Memory: it ends an R_Key for a peer's SEND with invalidate, or for a
// local invalidate.
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
