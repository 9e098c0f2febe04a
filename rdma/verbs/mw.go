//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"unsafe"

	"github.com/rstored/rstored/rdma"
)

// windows are the memory windows of a protection domain. The upper 24 bits of a window's key stay
// the same, and name it here.
type windows struct {
	mu sync.Mutex
	m  map[uint32]*mw
}

func (s *windows) of(key uint32) *mw {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[key>>8]
}

// all returns a copy, because a window is locked before the set.
func (s *windows) all() []*mw {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.m))
}

func (s *windows) add(w *mw, key uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[uint32]*mw{}
	}
	s.m[key>>8] = w
}

func (s *windows) remove(w *mw, key uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[key>>8] == w {
		delete(s.m, key>>8)
	}
}

// mw is a memory window of type 2. It implements rdma.MW.
//
// The window of the device knows the key of the last bind that was posted, and accepts the next
// bind only from that state. After a bind that failed the state is unknown, and a queue pair must
// not end while a window is bound to it. In both cases the window of the device is replaced.
//
//	AllocMW --> unbound --Rekey--> drawn --PostSend--> on a queue pair --completion--> bound
//	               ^                                        |                            |
//	               |                                        v failed                     |
//	               |                     Rekey <-- dropped <---- Close of the queue pair-+
//	               +----------- OpLocalInv, or the peer's SEND with invalidate ----------+
//
// A key has 24 bits of the device and 8 bits that Rekey counts. A late packet with an old key is
// refused until the window was bound 256 times more.
type mw struct {
	pd *pd

	mu     sync.Mutex
	mw     *C.struct_ibv_mw // nil if it is closed, or has to be made again
	drawn  uint32           // key of the next bind, 0 if none was drawn
	posted uint32           // key of the last bind that was posted; before the first, that of the device
	on     *qp              // to which the window is bound, or is about to be
	bound  bool             // the bind has completed, and no invalidation
	closed bool
}

var _ rdma.MW = (*mw)(nil)

// AllocMW implements rdma.PD.
func (p *pd) AllocMW() (rdma.MW, error) {
	if !p.d.limits.Windows {
		return nil, p.d.noWindows()
	}
	w := &mw{pd: p}
	if err := w.make(); err != nil {
		return nil, err
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.d.closed {
		w.free()
		return nil, rdma.ErrClosed
	}
	p.d.mws[w] = struct{}{}
	return w, nil
}

// make makes the window of the device. mu is held, or nobody else has w yet.
func (w *mw) make() error {
	x, err := C.rs_alloc_mw(w.pd.pd)
	if x == nil {
		return fmt.Errorf("%w: allocating a memory window of %s: %w", rdma.ErrNoResources, w.pd.d.name, cause(err))
	}
	w.mw, w.posted, w.drawn = x, uint32(x.rkey), 0
	w.pd.windows.add(w, w.posted)
	return nil
}

// drop frees the window of the device, whatever it is bound to. mu is held.
func (w *mw) drop() {
	if w.mw == nil {
		return
	}
	w.pd.windows.remove(w, w.posted)
	C.rs_dealloc_mw(w.mw)
	w.mw, w.on, w.bound, w.drawn = nil, nil, false, 0
}

// free closes the window, and leaves it in Device.mws.
func (w *mw) free() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.drop()
}

// RKey implements rdma.MW.
func (w *mw) RKey() uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.bound {
		return 0
	}
	return w.posted
}

// Rekey implements rdma.MW. It returns 0 if the window is closed, or the device has no more
// windows.
func (w *mw) Rekey() uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.mw == nil && w.make() != nil {
		return 0
	}
	key := w.posted
	if w.drawn != 0 {
		key = w.drawn
	}
	w.drawn = key&^0xff | (key+1)&0xff
	return w.drawn
}

// Close implements rdma.MW.
func (w *mw) Close() {
	w.pd.d.mu.Lock()
	delete(w.pd.d.mws, w)
	w.pd.d.mu.Unlock()
	w.free()
}

// errNoFastRegions: libibverbs has no fast registration.
var errNoFastRegions = fmt.Errorf("%w: registration by work request", rdma.ErrUnsupported)

// AllocMR implements rdma.PD.
func (p *pd) AllocMR(int) (rdma.FastMR, error) { return nil, errNoFastRegions }

func (d *Device) noWindows() error {
	return fmt.Errorf("%w: %s has no memory windows of type 2", rdma.ErrUnsupported, d.name)
}

// checkBind refuses binds that must fail, because devices differ in what they check.
//
// Without the check a wrong bind would fail in the device, and put the queue pair into ERR: one
// wrong request would cost the connection with all its calls.
func (q *qp) checkBind(wr *rdma.SendWR) error {
	bad := func(why string) error { return fmt.Errorf("%w: a bind of %s", rdma.ErrInvalidWR, why) }
	b := wr.Bind
	if !q.l.dev.limits.Windows {
		return q.l.dev.noWindows()
	}
	if b == nil || b.MW == nil || b.MR == nil {
		return bad("nothing")
	}
	w, ok1 := b.MW.(*mw)
	m, ok2 := b.MR.(*mr)
	if !ok1 || !ok2 || w.pd != q.pd || m.pd != q.pd {
		return bad("a window or region of another protection domain")
	}
	m.mu.Lock()
	of, access, open := m.buf, m.access, m.mr != nil
	m.mu.Unlock()
	switch {
	case !open:
		return bad("a region that is closed")
	case access&rdma.WindowBind == 0:
		return bad("a region that allows no windows")
	case len(b.Buf) == 0 || !rdma.Within(b.Buf, of):
		return bad("memory that is not in the region")
	case b.Access&(rdma.RemoteWrite|rdma.RemoteAtomic) != 0 && access&rdma.LocalWrite == 0:
		return bad("a window that may be written to a region that may not")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.mw == nil:
		return bad("a window that is closed")
	case w.drawn == 0 || wr.RKey != w.drawn:
		return bad(fmt.Sprintf("the key %#x, which was not drawn", wr.RKey))
	case w.on != nil && w.on != q:
		return bad("a window that is bound to another queue pair")
	}
	return nil
}

// checkInv refuses the invalidation of a window that is neither bound nor about to be: some kernels
// crash.
func (q *qp) checkInv(key uint32) error {
	w := q.pd.windows.of(key)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.posted == key && w.on == nil {
		return fmt.Errorf("%w: the key %#x is invalidated already", rdma.ErrInvalidWR, key)
	}
	return nil
}

// bind fills in the request of a checked bind.
func (q *qp) bind(wr *rdma.SendWR, x *C.struct_rs_send) *mw {
	w, m := wr.Bind.MW.(*mw), wr.Bind.MR.(*mr)
	m.mu.Lock()
	x.mr = unsafe.Pointer(m.mr)
	m.mu.Unlock()
	x.bind_addr, x.bind_len = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(wr.Bind.Buf)))),
		C.uint64_t(len(wr.Bind.Buf))
	x.bind_access = C.uint32_t(wr.Bind.Access &^ rdma.LocalWrite)
	w.mu.Lock()
	x.mw = unsafe.Pointer(w.mw)
	// Until the request is refused or completes, the key counts as bound.
	w.posted, w.drawn, w.on, w.bound = wr.RKey, 0, q, false
	w.mu.Unlock()
	return w
}

// bindDone handles the end of the bind of a key.
func (w *mw) bindDone(key uint32, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mw == nil || w.posted != key || w.on == nil {
		return // invalidated since, or about to be bound anew
	}
	if ok {
		w.bound = true
		return
	}
	w.drop()
}

// invalidated handles the end of a key, by our request or by the peer's message.
func (q *qp) invalidated(key uint32) {
	w := q.pd.windows.of(key)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.posted == key && w.on == q {
		w.on, w.bound = nil, false
	}
}

// unbind frees the windows that are bound to a queue pair which is about to be destroyed. A queue
// pair must not end while a window is bound to it, so Destroy calls unbind first. It runs on the
// loop, and locks one window at a time.
func (q *qp) unbind() {
	for _, w := range q.pd.windows.all() {
		w.mu.Lock()
		if w.on == q {
			w.drop()
		}
		w.mu.Unlock()
	}
}
