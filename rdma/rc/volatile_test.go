package rc

import (
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// owner owns memory that others change.
type owner struct{ _ int }

func (*owner) Copy(dst, src []byte) error { copy(dst, src); return nil }

// TestVolatile: each packet of a request, and no other packet, names the owner of its memory and
// whether it is a retransmission. The QP keeps no reference to the owner after the completion.
func TestVolatile(t *testing.T) {
	p, s, q := lone(t, 0)
	own := new(owner)
	lent := write(1, s, 40*256, pairVA, pairKey)
	lent.Volatile = own
	ours := write(2, s, 256, pairVA, pairKey)
	ours.Flags = rdma.Signaled
	p.post(0, lent, ours)
	check := func(again func(psn wire.PSN) bool) (n int) {
		t.Helper()
		for q.HasWork(p.now) {
			p.batch.Reset()
			q.Transmit(p.now, p.batch)
			for i := range p.batch.D {
				d := &p.batch.D[i]
				psn := wire.PSN(uint32(d.Hdr[9])<<16 | uint32(d.Hdr[10])<<8 | uint32(d.Hdr[11]))
				if psn < 7+40 && (d.Volatile != own || d.Retransmit != again(psn)) || psn >= 7+40 && d.Volatile != nil {
					t.Errorf("packet %d: owner %v, again %v", psn, d.Volatile, d.Retransmit)
				}
				n++
			}
		}
		return n
	}
	if n := check(func(wire.PSN) bool { return false }); n != 41 {
		t.Fatalf("%d packets", n)
	}
	p.now = q.Deadline()
	q.Expire(p.now)
	if n := check(func(psn wire.PSN) bool { return true }); n == 0 {
		t.Error("nothing is sent again")
	}
	hear(p, q, wire.Packet{Op: wire.Acknowledge, PSN: 7 + 40})
	if p.poll(s); len(s.sent) != 1 || s.sent[0].Status != rdma.Success {
		t.Errorf("%+v", s.sent)
	}
	p.post(0, write(3, s, 256, pairVA, pairKey)) // in the place of the first
	for range 2 {
		p.post(0, write(4, s, 256, pairVA, pairKey))
	}
	p.batch.Reset()
	q.Transmit(p.now, p.batch)
	for i := range p.batch.D {
		if p.batch.D[i].Volatile != nil {
			t.Error("a later request has an owner")
		}
	}
}
