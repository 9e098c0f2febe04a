//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/rstored/rstored/rdma"
)

// pd is a protection domain. It implements rdma.PD.
type pd struct {
	d       *Device
	pd      *C.struct_ibv_pd
	ahs     handles
	windows windows
}

// AllocPD implements rdma.Device.
func (d *Device) AllocPD() (rdma.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, rdma.ErrClosed
	}
	p, err := C.rs_alloc_pd(d.ctx)
	if p == nil {
		return nil, fmt.Errorf("%w: allocating a protection domain of %s: %w", rdma.ErrNoResources, d.name, cause(err))
	}
	x := &pd{d: d, pd: p}
	d.pds[x] = struct{}{}
	return x, nil
}

// Close implements rdma.PD.
func (p *pd) Close() {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if _, ok := p.d.pds[p]; !ok {
		return
	}
	p.ahs.close()
	if C.rs_dealloc_pd(p.pd) == 0 { // a domain in use is freed with the device
		delete(p.d.pds, p)
	}
}

// mr is a memory region. It implements rdma.MR and rdma.Reregisterer. A Window of it is another
// region: memory windows of devices are bound to queue pairs, see mw.
//
//	after                 mr       keys      pages locked    Reregister
//	Register              set      valid     yes             possible
//	Reregister(nil, 0)    nil      0         no              possible
//	Invalidate            another  new       yes             possible
//	Close                 nil      0         no              ErrClosed
//
// The user may unmap buf after Close or Reregister(nil, 0). Deregistration removes the keys from
// the device, so a late packet of a peer cannot reach the memory.
type mr struct {
	pd  *pd
	dma *dmabuf // nil for memory of the host

	mu     sync.Mutex
	mr     *C.struct_ibv_mr // nil if it is closed, or has no memory
	buf    []byte           // also after Close
	access rdma.Access
	closed bool
	pin    runtime.Pinner // of buf, while mr is not nil
}

var _ rdma.Reregisterer = (*mr)(nil)

// Register implements rdma.PD.
func (p *pd) Register(buf []byte, access rdma.Access) (rdma.MR, error) {
	m := &mr{pd: p}
	if err := p.add(m, buf, access); err != nil {
		return nil, err
	}
	return m, nil
}

// add registers the memory of a region, and enters the region into Device.mrs.
func (p *pd) add(m *mr, buf []byte, access rdma.Access) error {
	if err := m.open(buf, access); err != nil {
		return err
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.d.closed {
		m.free()
		return rdma.ErrClosed
	}
	p.d.mrs[m] = struct{}{}
	return nil
}

// open registers memory. mu is held, or nobody else has m yet.
func (m *mr) open(buf []byte, access rdma.Access) error {
	if len(buf) == 0 {
		return fmt.Errorf("%w: a region without memory", rdma.ErrInvalidWR)
	}
	if access&(rdma.RemoteWrite|rdma.RemoteAtomic) != 0 && access&rdma.LocalWrite == 0 {
		return fmt.Errorf("%w: a region that peers may write must be locally writable", rdma.ErrInvalidWR)
	}
	if m.dma != nil {
		x, err := m.dma.open(m.pd, buf, access)
		if err == nil {
			m.mr, m.buf, m.access = x, buf, access
		}
		return err
	}
	// The kernel locks the pages. Pin keeps the Go object from being freed; the runtime does not
	// move it.
	at := unsafe.SliceData(buf)
	m.pin.Pin(at)
	x, err := C.rs_reg_mr(m.pd.pd, C.uint64_t(uintptr(unsafe.Pointer(at))), C.uint64_t(len(buf)), m.pd.d.access(access))
	if x == nil {
		m.pin.Unpin()
		return fmt.Errorf(
			"%w: %s does not register %d bytes: %w (is the limit of locked memory, ulimit -l, high enough?)",
			rdma.ErrNoResources, m.pd.d.name, len(buf), cause(err))
	}
	m.mr, m.buf, m.access = x, buf, access
	return nil
}

// access is the access for the device. Over iWARP, a READ Response is a tagged message to the
// region of the READ (RFC 5040 section 5.2), and adapters demand remote write access for that. siw
// does not.
func (d *Device) access(a rdma.Access) C.int {
	if d.iwarp && !d.quirks.siw && a&rdma.LocalWrite != 0 {
		a |= rdma.RemoteWrite
	}
	return C.int(a)
}

// free deregisters the memory. mu is held, or nobody else uses m any more.
func (m *mr) free() {
	if m.mr != nil {
		C.rs_dereg_mr(m.mr)
		m.mr = nil
		m.pin.Unpin()
	}
}

// Close implements rdma.MR.
func (m *mr) Close() {
	d := m.pd.d
	d.mu.Lock()
	_, ok := d.mrs[m]
	delete(d.mrs, m)
	d.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if ok {
		m.free()
		m.dma.close()
	}
}

// keys are the keys of the memory, 0 while there is none.
func (m *mr) keys() (lkey, rkey uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mr == nil {
		return 0, 0
	}
	return uint32(m.mr.lkey), uint32(m.mr.rkey)
}

// LKey implements rdma.MR.
func (m *mr) LKey() uint32 { k, _ := m.keys(); return k }

// RKey implements rdma.MR.
func (m *mr) RKey() uint32 { _, k := m.keys(); return k }

// Bytes implements rdma.MR.
func (m *mr) Bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.buf
}

// Addr implements rdma.MR.
func (m *mr) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes())))) }

// Invalidate implements rdma.MR: it registers the memory anew. Requests in flight that name the
// old L_Key fail: the user invalidates a region only when none is. If the device cannot register
// the memory again, the result is 0 and the region has no memory.
func (m *mr) Invalidate() uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mr == nil {
		return 0
	}
	old, buf, access := m.mr.rkey, m.buf, m.access
	m.free()
	if m.open(buf, access) != nil {
		return 0
	}
	if m.mr.rkey == old {
		// The device has given the same key again. While this region exists, another gets another
		// key.
		again := &mr{pd: m.pd, dma: m.dma}
		if again.open(buf, access) == nil {
			m.free()
			m.mr, m.buf, m.access = again.mr, buf, access
			m.pin = again.pin
		}
	}
	return uint32(m.mr.rkey)
}

// Reregister implements rdma.Reregisterer. Not every driver implements ibv_rereg_mr, so this is a
// deregistration and a registration. The caller saves the Go object.
func (m *mr) Reregister(buf []byte, access rdma.Access) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return rdma.ErrClosed
	}
	if m.dma != nil {
		return fmt.Errorf("%w: a region of another device's memory cannot get other memory", rdma.ErrInvalidWR)
	}
	if m.access&rdma.WindowBind != 0 {
		return fmt.Errorf("%w: a region that windows can be bound to cannot get other memory", rdma.ErrInvalidWR)
	}
	m.free()
	m.buf = nil
	if len(buf) == 0 {
		return nil
	}
	return m.open(buf, access)
}

// Window implements rdma.MR.
func (m *mr) Window(buf []byte, access rdma.Access) (rdma.MR, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.mr == nil:
		return nil, rdma.ErrClosed
	case len(buf) == 0 || !rdma.Within(buf, m.buf):
		return nil, fmt.Errorf("%w: the window is not in the region", rdma.ErrInvalidWR)
	case access&rdma.LocalWrite != 0 && m.access&rdma.LocalWrite == 0:
		return nil, fmt.Errorf("%w: a window is writable only if its region is", rdma.ErrInvalidWR)
	}
	if m.dma != nil {
		return m.window(buf, access)
	}
	return m.pd.Register(buf, access)
}
