package cm

import (
	"testing"

	"github.com/rstored/rstored/rdma"
)

// TestSmallerMTU: the answer to a REJ for the path MTU is a REQ with a smaller one, whether or not
// the REJ suggests one, in either coding.
func TestSmallerMTU(t *testing.T) {
	for _, c := range []struct {
		name    string
		suggest uint8
		most    uint8 // what the peer accepts
		want    uint8 // 0: the attempt fails
		reqs    uint64
	}{
		{"suggested", 3, 3, 3, 2},
		{"suggested in the upper half of the byte", 3 << 4, 3, 3, 2},
		{"suggested too large", 5, 3, 3, 3},
		{"no code", 0x66, 3, 3, 3},
		{"not suggested", 0, 2, 2, 4},
		{"none fits", 0, 0, 0, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNetwork(t, 1)
			_ = n.m[1].Listen(20049)
			p := params()
			p.MTU = 5
			active, err := n.m[0].Connect(n.now, p)
			if err != nil {
				t.Fatal(err)
			}
			locals := map[uint32]bool{}
			for {
				id := n.await(1, ConnRequest).ID
				locals[active.Local] = true
				if id.REQ.LocalID != active.Local || id.REQ.MTU != active.REQ.MTU || id.REQ.QPN != p.QPN {
					t.Fatalf("the REQ %+v of %+v", id.REQ, active)
				}
				if id.REQ.MTU > c.most {
					if c.suggest != 0 {
						n.m[1].RejectMTU(id, c.suggest)
					} else {
						n.m[1].Reject(id, InvalidMTU, nil)
					}
					if id.REQ.MTU > 1 {
						continue
					}
					break
				}
				if err := n.m[1].Accept(n.now, id, AcceptParams{QPN: 0x222}); err != nil {
					t.Fatal(err)
				}
				break
			}
			if c.want == 0 {
				if e := n.await(0, Rejected); e.Reason != InvalidMTU || e.ID != active {
					t.Errorf("%+v", e)
				}
			} else if e := n.await(0, Reply); e.ID != active || active.REQ.MTU != c.want {
				t.Errorf("path MTU code %d, want %d", active.REQ.MTU, c.want)
			}
			if n.m[0].n.TxREQ != c.reqs || len(locals) != int(c.reqs) {
				t.Errorf("%d REQs with %d communication IDs", n.m[0].n.TxREQ, len(locals))
			}
			if c.want == 0 {
				n.now += 60 * rdma.Second
				if n.m[0].pending != 0 || len(n.m[0].ids) != 0 || n.m[0].Deadline() != 0 {
					t.Error("the attempt was not forgotten")
				}
			}
		})
	}
}
