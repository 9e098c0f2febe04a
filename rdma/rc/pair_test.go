package rc

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// memory is a table of regions. L_Key and R_Key of a region are the same number, its key.
type memory map[uint32]*region

type region struct {
	buf    []byte
	va     uint64
	access rdma.Access
}

func (m memory) Local(_, lkey uint32, buf []byte, write bool) rdma.Status {
	r := m[lkey]
	if r == nil || write && r.access&rdma.LocalWrite == 0 {
		return rdma.LocProtErr
	}
	if len(buf) == 0 {
		return rdma.Success
	}
	for i := range r.buf {
		if &r.buf[i] == &buf[0] {
			if len(r.buf)-i >= len(buf) {
				return rdma.Success
			}
			break
		}
	}
	return rdma.LocProtErr
}

func (m memory) Remote(_, _, rkey uint32, va uint64, n uint32, need rdma.Access) ([]byte, rdma.Status) {
	r := m[rkey]
	if r == nil || r.access&need != need || va < r.va || va-r.va > uint64(len(r.buf)) ||
		uint64(n) > uint64(len(r.buf))-(va-r.va) {
		return nil, rdma.RemAccessErr
	}
	return r.buf[va-r.va:][:n:n], rdma.Success
}

func (m memory) Invalidate(_, _, key uint32) rdma.Status {
	if m[key] == nil {
		return rdma.RemAccessErr
	}
	delete(m, key)
	return rdma.Success
}

// Bind implements Memory: the key then names the window, and no longer what it named before.
func (m memory) Bind(_, _ uint32, w *rdma.SendWR) rdma.Status {
	if w.RKey == 0 {
		return rdma.MWBindErr
	}
	m[w.RKey] = &region{buf: w.Bind.Buf, va: pairVA, access: w.Bind.Access}
	return rdma.Success
}

// side is one end of a pair: a QP, its memory, and its completions.
type side struct {
	q    *QP
	mem  memory
	buf  []byte
	sent []rdma.WC
	got  []rdma.WC
}

const (
	pairKey = 0x1100
	pairVA  = 0x7000_0000_0000
)

// pair is two connected QPs and a wire between them with faults.
type pair struct {
	t      testing.TB
	now    rdma.Time
	s      [2]*side
	wire   []flying
	rnd    *rand.Rand
	loss   float64
	dup    float64
	mix    float64 // reordering
	bits   float64 // corruption
	placed int     // packets that were copied while they were checked
	wrong  int     // other packets with a wrong ICRC
	delay  rdma.Time
	stop   bool // the wire loses everything
	batch  *wire.Batch
	packet int
}

type flying struct {
	at  rdma.Time
	to  int
	raw []byte
}

func newPair(t testing.TB, mtu rdma.MTU, psn uint32, size int) *pair {
	p := &pair{t: t, now: rdma.Second, batch: wire.NewBatch(256), delay: 10 * rdma.Microsecond}
	addr := [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	for i := range 2 {
		s := &side{buf: make([]byte, size), mem: memory{}}
		s.mem[pairKey] = &region{
			buf: s.buf, va: pairVA,
			access: rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic,
		}
		s.q = New(Config{
			Num: uint32(0x100 + i), PD: 1, Mem: s.mem,
			Caps: rdma.QPCaps{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 4, MaxRecvSGE: 4},
		})
		for _, a := range []rdma.QPAttr{
			{State: rdma.StateInit, Access: rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic, PKey: wire.DefaultPKey},
			{
				State: rdma.StateRTR, LocalAddr: addr[i], RemoteAddr: addr[1-i], PathMTU: mtu, DestQPN: uint32(0x100 + 1 - i),
				RQPSN: psn + uint32(1-i), MaxDestRd: 4, MinRNRTimer: 8,
			},
			{State: rdma.StateRTS, SQPSN: psn + uint32(i), MaxRdAtomic: 4, AckTimeout: 14, RetryCount: 6, RNRRetryCount: 7},
		} {
			if err := s.q.Modify(p.now, a); err != nil {
				t.Fatal(err)
			}
		}
		p.s[i] = s
	}
	return p
}

func (p *pair) chance(f float64) bool { return f > 0 && p.rnd.Float64() < f }

// turn lets both sides send, and moves the clock to the next event. It reports false if there will
// be none.
func (p *pair) turn() bool {
	busy := false
	for i, s := range p.s {
		for s.q.HasWork(p.now) {
			p.batch.Reset()
			s.q.Transmit(p.now, p.batch)
			for _, d := range p.batch.D {
				busy = true
				p.fly(1-i, &d)
			}
		}
		p.poll(s)
	}
	next := rdma.Time(0)
	for _, s := range p.s {
		if d := s.q.Deadline(); d != 0 && (next == 0 || d < next) {
			next = d
		}
	}
	for _, f := range p.wire {
		if next == 0 || f.at < next {
			next = f.at
		}
	}
	if next == 0 {
		return busy
	}
	p.now = max(p.now, next)
	rest := p.wire[:0]
	var due []flying
	for _, f := range p.wire {
		if f.at <= p.now {
			due = append(due, f)
		} else {
			rest = append(rest, f)
		}
	}
	p.wire = rest
	for _, f := range due {
		p.arrive(f)
	}
	for _, s := range p.s {
		if d := s.q.Deadline(); d != 0 && d <= p.now {
			s.q.Expire(p.now)
		}
		p.poll(s)
	}
	return true
}

func (p *pair) fly(to int, d *wire.Datagram) {
	p.packet++
	raw := append([]byte(nil), d.Hdr...)
	for _, b := range d.Payload {
		raw = append(raw, b...)
	}
	raw = append(raw, make([]byte, d.Pad)...)
	raw = binary.LittleEndian.AppendUint32(raw, d.Flow.ICRC(0, d.Hdr, d.Payload, int(d.Pad)))
	if p.stop || p.chance(p.loss) {
		return
	}
	f := flying{at: p.now + p.delay, to: to, raw: raw}
	if p.chance(p.bits) {
		f.raw[p.rnd.IntN(len(raw))] ^= 1 << p.rnd.IntN(8)
	}
	if p.chance(p.mix) {
		f.at += rdma.Time(p.rnd.IntN(300)) * rdma.Microsecond
	}
	p.wire = append(p.wire, f)
	if p.chance(p.dup) {
		f.raw = append([]byte(nil), raw...)
		f.at += rdma.Time(p.rnd.IntN(1000)) * rdma.Microsecond
		p.wire = append(p.wire, f)
	}
}

func (p *pair) arrive(f flying) {
	q := p.s[f.to].q
	fl := wire.Flow{Src: q.flow.Dst, Dst: q.flow.Src, SrcPort: wire.Port}
	var pkt wire.Packet
	if pkt.Parse(f.raw) != nil {
		return
	}
	pkt.Src, pkt.Dst = fl.Src, fl.Dst
	dst := q.Placement(&pkt)
	if ok, exact, _ := wire.VerifyCopy(&fl, f.raw, 0, dst); !ok || !exact {
		if len(dst) > 0 {
			p.wrong++
		}
		return
	}
	if pkt.Placed = len(dst) > 0; pkt.Placed {
		p.placed++
	}
	q.Receive(p.now, &pkt)
}
