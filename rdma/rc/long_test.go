package rc

import (
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// anywhere is memory in which all addresses name the same few bytes. A message can then be longer
// than the memory of the test.
type anywhere []byte

func (anywhere) Local(_, _ uint32, _ []byte, _ bool) rdma.Status { return rdma.Success }
func (a anywhere) Remote(_, _, _ uint32, _ uint64, n uint32, _ rdma.Access) ([]byte, rdma.Status) {
	return a[:min(int(n), len(a))], rdma.Success
}
func (anywhere) Invalidate(_, _, _ uint32) rdma.Status        { return rdma.Success }
func (anywhere) Bind(_, _ uint32, _ *rdma.SendWR) rdma.Status { return rdma.Success }

// TestLongestMessage: a message of 2^31 bytes (IBTA 9.7.4.1.6) by RDMA WRITE, RDMA READ and
// SEND. With the least path MTU it has 2^23 packets, half of all PSNs.
func TestLongestMessage(t *testing.T) {
	const pieces = 32
	mem := anywhere(make([]byte, MessageMax/pieces))
	mtus := []rdma.MTU{256, 4096}
	if testing.Short() {
		mtus = mtus[1:]
	}
	for _, mtu := range mtus {
		x := exchange{batch: wire.NewBatch(256), now: rdma.Second}
		p := newPair(t, mtu, 0xfffff0, 8)
		for i, s := range p.s {
			s.q.cfg.Mem = mem
			s.q.cfg.Caps.MaxSendSGE, s.q.cfg.Caps.MaxRecvSGE, s.q.rq.SGEs = pieces, pieces, pieces
			x.side[i] = s
		}
		sgl := make([]rdma.SGE, pieces)
		for i := range sgl {
			sgl[i].Buf = mem
		}
		for _, op := range []rdma.SendOp{rdma.OpWrite, rdma.OpRead, rdma.OpSend} {
			var recv []rdma.RecvWR
			if op == rdma.OpSend {
				recv = []rdma.RecvWR{{ID: 5, SGL: sgl}}
			}
			x.run(t, []rdma.SendWR{{Op: op, Flags: rdma.Signaled, SGL: sgl}}, recv)
			for i, s := range x.side {
				if s.q.State() != rdma.StateRTS {
					t.Fatalf("MTU %d, operation %d, side %d: %v", mtu, op, i, s.q.Err())
				}
			}
			n := x.side[1].q.n
			got := map[rdma.SendOp]uint64{
				rdma.OpSend: n.RxBytesSend, rdma.OpWrite: n.RxBytesWrite,
				rdma.OpRead: x.side[0].q.n.RxBytesReadResponse,
			}[op]
			if got != MessageMax {
				t.Errorf("MTU %d, operation %d: %d bytes arrived", mtu, op, got)
			}
		}
		if n := x.side[0].q.n; n.TxRetransmits != 0 {
			t.Errorf("MTU %d: %d packets again", mtu, n.TxRetransmits)
		}
		s := p.s[0].q
		s.cfg.Caps.MaxSendSGE++
		if err := s.PostSend(x.now, []rdma.SendWR{{
			Op:  rdma.OpWrite,
			SGL: append(sgl[:pieces:pieces], rdma.SGE{Buf: mem[:1]}),
		}}); err == nil {
			t.Errorf("MTU %d: a message of more than 2^31 bytes is taken", mtu)
		}
	}
}
