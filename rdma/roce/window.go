package roce

import (
	"fmt"
	"sync/atomic"

	"github.com/rstored/rstored/rdma"
)

// bindable is a memory window, or a region without memory (rdma.FastMR): work requests open it and
// close it, under keys of its own. Keys are drawn under the lock of the table. Opening makes a
// region, which the packet path finds in the table as any other.
//
//	AllocMW, AllocMR --> no memory --Rekey--> next is drawn --OpBindMW, OpReg--> open
//	                         ^                                                    |
//	                         +--- OpLocalInv, SEND with invalidate, Invalidate ---+
type bindable struct {
	t      *table
	pd     uint32
	most   int    // bytes
	rslot  uint32 // of the R_Key
	lslot  uint32 // of the L_Key, regions only
	lkey   uint32
	next   uint32 // the key that Rekey drew and no request has used, 0 for none; under table.mu
	window bool
	closed bool // under table.mu
	bound  atomic.Pointer[region]
}

var (
	_ rdma.MW     = (*bindable)(nil)
	_ rdma.FastMR = (*bindable)(nil)
)

func (t *table) bindable(pd uint32, most int, window bool) (*bindable, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := &bindable{t: t, pd: pd, most: most, window: window}
	n := 2
	if window {
		n = 1
	}
	var slots [2]uint32
	if err := t.take(slots[:n]); err != nil {
		return nil, err
	}
	if b.rslot = slots[0]; !window {
		b.lslot = slots[1]
		b.lkey = t.draw(b.lslot)
	}
	t.live++
	return b, nil
}

// AllocMW implements rdma.PD.
func (p *pd) AllocMW() (rdma.MW, error) {
	b, err := p.d.mem.bindable(p.id, regionMax, true)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// AllocMR implements rdma.PD.
func (p *pd) AllocMR(most int) (rdma.FastMR, error) {
	if most <= 0 || most > regionMax {
		return nil, fmt.Errorf("%w: a memory region cannot have %d bytes", rdma.ErrInvalidWR, most)
	}
	b, err := p.d.mem.bindable(p.id, most, false)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Rekey implements rdma.MW and rdma.FastMR.
func (b *bindable) Rekey() uint32 {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	if b.closed {
		return 0
	}
	b.next = b.t.draw(b.rslot)
	return b.next
}

// live is the region that is open, nil if none is.
func (b *bindable) live() *region {
	r := b.bound.Load()
	if r == nil || b.t.slot(b.rslot).key.Load() != r.rkey.Load() {
		return nil
	}
	return r
}

// RKey implements rdma.MW and rdma.MR.
func (b *bindable) RKey() uint32 {
	if r := b.live(); r != nil {
		return r.RKey()
	}
	return 0
}

// LKey implements rdma.MR.
func (b *bindable) LKey() uint32 { return b.lkey }

// Addr implements rdma.MR.
func (b *bindable) Addr() uint64 {
	if r := b.live(); r != nil {
		return r.Addr()
	}
	return 0
}

// Bytes implements rdma.MR.
func (b *bindable) Bytes() []byte {
	if r := b.live(); r != nil {
		return r.Bytes()
	}
	return nil
}

// Invalidate implements rdma.MR: it closes the memory at once, and returns the key for the next
// OpReg.
func (b *bindable) Invalidate() uint32 {
	b.t.mu.Lock()
	b.t.slot(b.rslot).key.Store(0)
	if !b.window {
		b.t.slot(b.lslot).key.Store(0)
	}
	b.t.mu.Unlock()
	return b.Rekey()
}

// Window implements rdma.MR.
func (b *bindable) Window(buf []byte, access rdma.Access) (rdma.MR, error) {
	r := b.live()
	if r == nil {
		return nil, fmt.Errorf("%w: the region has no memory now", rdma.ErrInvalidWR)
	}
	return r.Window(buf, access)
}

// Close implements rdma.MW and rdma.MR.
func (b *bindable) Close() {
	t := b.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.closed {
		return
	}
	b.closed, b.next = true, 0
	t.retire(b.rslot)
	if !b.window {
		t.retire(b.lslot)
	}
	t.live--
}

// Bind implements rc.Memory: it executes an OpBindMW or OpReg, at its place in the send queue. The
// request was checked when it was posted, but region and window may have been closed since.
//
//	OpBindMW   part of a region that allows it, for one queue pair (type 2B, IBTA 10.6.7.2.3)
//	OpReg      new memory for a region of AllocMR, for the whole domain
//
//	refused                                              OpBindMW       OpReg
//	another device, protection domain or kind            MW_BIND_ERR    LOC_PROT_ERR
//	the region is closed, or allows no windows           MW_BIND_ERR
//	memory beyond the region (OpReg: beyond AllocMR)     MW_BIND_ERR    LOC_PROT_ERR
//	remote write or atomic without local write           MW_BIND_ERR    LOC_PROT_ERR
//	a key that Rekey did not draw, or still open         MW_BIND_ERR    LOC_QP_OP_ERR
func (t *table) Bind(pd, qpn uint32, w *rdma.SendWR) rdma.Status {
	if w.Op == rdma.OpReg {
		b, ok := w.Bind.MR.(*bindable)
		if !ok || b.window || b.t != t || b.pd != pd || len(w.Bind.Buf) == 0 || len(w.Bind.Buf) > b.most ||
			!writable(w.Bind.Access, w.Bind.Access) {
			return rdma.LocProtErr
		}
		r := &region{t: t, pd: pd, lkey: b.lkey, fast: true}
		r.place.set(view{w.Bind.Buf, t.address(), w.Bind.Access})
		return b.bind(w, r, rdma.LocQPOpErr)
	}
	b, ok := w.Bind.MW.(*bindable)
	if !ok || !b.window || b.t != t || b.pd != pd {
		return rdma.MWBindErr
	}
	of, _ := w.Bind.MR.(*region)
	if m, ok := w.Bind.MR.(*bindable); ok {
		of = m.live()
	}
	if of == nil || of.t != t || of.pd != pd || of.ended() {
		return rdma.MWBindErr
	}
	v, _ := of.place.get()
	if v.access&rdma.WindowBind == 0 || len(w.Bind.Buf) == 0 || !rdma.Within(w.Bind.Buf, v.buf) ||
		!writable(w.Bind.Access, v.access) {
		return rdma.MWBindErr
	}
	r := &region{t: t, pd: pd, parent: of, qpn: qpn}
	r.place.set(view{w.Bind.Buf, v.addr + uint64(rdma.Offset(w.Bind.Buf, v.buf)), w.Bind.Access})
	return b.bind(w, r, rdma.MWBindErr)
}

// writable reports whether the access want needs no local write access, or have includes it.
func writable(want, have rdma.Access) bool {
	return want&(rdma.RemoteWrite|rdma.RemoteAtomic) == 0 || have&rdma.LocalWrite != 0
}

// bind opens r under the key of the request. If that is not the key that Rekey drew, bind returns
// the status otherwise.
func (b *bindable) bind(w *rdma.SendWR, r *region, otherwise rdma.Status) rdma.Status {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	s := b.t.slot(b.rslot)
	if b.closed || b.next == 0 || w.RKey != b.next || s.key.Load() != 0 {
		return otherwise
	}
	// The slots get the region before the keys: the packet path, which takes no lock, reads the key
	// first.
	r.rslot, r.lslot = b.rslot, b.lslot
	r.rkey.Store(b.next)
	b.next = 0
	b.bound.Store(r)
	s.region.Store(r)
	s.key.Store(w.RKey)
	if !b.window {
		l := b.t.slot(b.lslot)
		l.region.Store(r)
		l.key.Store(b.lkey)
	}
	return rdma.Success
}

// ended reports whether the region, or the region that it is a window of, is closed or invalidated.
func (r *region) ended() bool {
	if r.closed.Load() {
		return true
	}
	if r.fast && r.t.slot(r.rslot).key.Load() != r.rkey.Load() {
		return true
	}
	return r.parent != nil && r.parent.ended()
}
