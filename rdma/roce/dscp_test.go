package roce_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// dscpLink records the DSCPs of packets by opcode, and marks received packets as a switch does.
type dscpLink struct {
	link.Link
	sent map[wire.Opcode]map[uint8]int
}

// Send implements link.Link.
func (l dscpLink) Send(b *wire.Batch) error {
	for i := range b.D {
		op := wire.Opcode(b.D[i].Hdr[0])
		if l.sent[op] == nil {
			l.sent[op] = map[uint8]int{}
		}
		l.sent[op][b.D[i].Flow.TOS>>2]++
	}
	return l.Link.Send(b)
}

// Recv implements link.Link.
func (l dscpLink) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	n, err := l.Link.Recv(rx, deadline)
	for i := range rx.D {
		rx.D[i].TOS |= 3
	}
	return n, err
}

// TestDSCP: the side that dials chooses the DSCP of the packets in both directions. Congestion
// notifications have a DSCP of their own.
func TestDSCP(t *testing.T) {
	const data, cnp = 26, 48
	sent := [2]map[wire.Opcode]map[uint8]int{{}, {}}
	w := newWorld(t, sim.Config{Seed: 3}, func(side int, cfg *roce.Config) {
		if side == 1 {
			cfg.CNPDSCP = cnp
		}
		cfg.Wrap = func(_ int, l link.Link) link.Link { return dscpLink{l, sent[side]} }
	})
	w.dscp = data
	w.connect()
	local, remote := w.side[0].mr, w.side[1].mr
	for _, op := range []rdma.SendOp{rdma.OpWrite, rdma.OpRead} {
		if wc := w.post(rdma.SendWR{
			Op: op, SGL: []rdma.SGE{{Buf: local.Bytes()[:20000], LKey: local.LKey()}},
			RemoteAddr: remote.Addr(), RKey: remote.RKey(),
		}); wc.Status != rdma.Success {
			t.Fatal(wc.Status)
		}
	}
	for _, c := range []struct {
		side int
		op   wire.Opcode
		want uint8
	}{
		{0, wire.WriteMiddle, data},
		{0, wire.ReadRequest, data},
		{0, wire.CNP, data},
		{1, wire.Acknowledge, data},
		{1, wire.ReadRespMiddle, data},
		{1, wire.CNP, cnp},
	} {
		if got := sent[c.side][c.op]; len(got) != 1 || got[c.want] == 0 {
			t.Errorf("side %d, %v: DSCPs %v, want %d", c.side, c.op, got, c.want)
		}
	}
	l, err := w.net.Open(simAddr6[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := roce.NewWithLink(l, roce.Config{CNPDSCP: 64}); err == nil {
		t.Error("a DSCP of 64 is taken")
	}
	if _, err := w.dev[0].Dial(w.dev[0].Loops()[0], rdma.DialParams{
		Remote: netip.AddrPortFrom(simAddr[1], 7),
		QP:     w.qp(0), DSCP: 64,
	}); !errors.Is(err, rdma.ErrInvalidWR) {
		t.Errorf("a connection with a DSCP of 64: %v", err)
	}
}
