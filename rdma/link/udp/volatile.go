package udp

import (
	"runtime"
	"runtime/debug"
	"slices"
	"unsafe"

	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

var _ link.VolatileSender = (*Link)(nil)

// SendsVolatile implements link.VolatileSender.
func (l *Link) SendsVolatile() bool { return true }

// settle copies the volatile payloads of packets that are sent again. The first transmission may
// have been lost because the data changed after the checksum was computed, and a file that is
// written all the time would do that every time. It reports whether there are other volatile
// payloads.
func (t *sender) settle(d []wire.Datagram) (volatile bool) {
	for i := range d {
		switch p := &d[i]; {
		case p.Volatile == nil:
		case p.Retransmit:
			t.copy(p)
		default:
			volatile = true
		}
	}
	return volatile
}

// tryBuild is build. It reports false if it met a fault in a volatile payload. It has replaced the
// payload by a copy then, and the caller tries again.
func (t *sender) tryBuild(d []wire.Datagram) (ok bool) {
	if !t.volatile {
		t.build(d)
		return true
	}
	// A fault is a panic that can be recovered, until this function returns.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if ok {
			return
		}
		r := recover()
		if t.at == nil || !faultIn(r, t.at) {
			panic(r)
		}
		t.l.stats.TxFaults++
		t.copyAll(d, t.at.Volatile)
	}()
	t.at = nil
	t.build(d)
	return true
}

// faultIn reports whether the recovered value r is a fault in the volatile payload of p.
func faultIn(r any, p *wire.Datagram) bool {
	f, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok || p.Volatile == nil {
		return false
	}
	for _, b := range p.Payload {
		// Some processors report the page of a fault only.
		start := uintptr(unsafe.Pointer(unsafe.SliceData(b))) &^ (faultUnit - 1)
		if a := f.Addr(); a >= start && a < start+uintptr(len(b))+2*faultUnit {
			return true
		}
	}
	return false
}

const faultUnit = 64 << 10 // the largest page

// copyAll copies the volatile payloads of owner v, or of all owners if v is nil. It reports whether
// there were any.
func (t *sender) copyAll(d []wire.Datagram, v wire.Volatile) (any bool) {
	for i := range d {
		if p := &d[i]; p.Volatile != nil && (v == nil || p.Volatile == v) {
			t.copy(p)
			any = true
		}
	}
	return any
}

// copy replaces a volatile payload by a copy, which lives until the next batch.
func (t *sender) copy(p *wire.Datagram) {
	n := len(t.copies)
	// If the array grows, earlier copies stay valid in the old one.
	t.copies = slices.Grow(t.copies, p.PayloadLen)[:n+p.PayloadLen]
	link.Own(p, t.copies[n:])
	if p.BadICRC {
		t.l.stats.TxVoid++
	}
	t.l.stats.TxCopied++
}
