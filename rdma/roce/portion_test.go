package roce_test

import (
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// answerLink calls sent for each batch that contains a SEND.
type answerLink struct {
	link.Link
	sent func()
}

// Send implements link.Link.
func (l answerLink) Send(b *wire.Batch) error {
	for i := range b.D {
		if wire.Opcode(b.D[i].Hdr[0]).Is(wire.ClassSend) {
			l.sent()
			break
		}
	}
	return l.Link.Send(b)
}

// TestPortions: messages that arrive together are answered in portions. The first answers leave
// before the last messages are served.
func TestPortions(t *testing.T) {
	const messages, most = 32, 8
	answered, first, batches := 0, 0, 0
	w := newWorld(t, sim.Config{Seed: 1, Delay: 10 * rdma.Microsecond}, func(side int, cfg *roce.Config) {
		if side == 1 {
			cfg.Wrap = func(_ int, l link.Link) link.Link {
				return answerLink{l, func() {
					if batches++; batches == 1 {
						first = answered
					}
				}}
			}
		}
	})
	w.connect()
	sge := func(s *simSide) []rdma.SGE { return []rdma.SGE{{Buf: s.mr.Bytes()[:64], LKey: s.mr.LKey()}} }
	for _, s := range w.side {
		for range messages {
			if err := s.conn.QP().PostRecv([]rdma.RecvWR{{SGL: sge(s)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	server := w.side[1]
	server.done = func(wc rdma.WC) {
		if wc.Op == rdma.WCRecv {
			answered++
			if err := server.conn.QP().PostSend([]rdma.SendWR{{Op: rdma.OpSend, SGL: sge(server)}}); err != nil {
				t.Error(err)
			}
		}
	}
	replies := 0
	client := w.side[0]
	client.done = func(wc rdma.WC) {
		if wc.Op == rdma.WCRecv {
			replies++
		}
	}
	for range messages {
		if err := client.conn.QP().PostSend([]rdma.SendWR{{Op: rdma.OpSend, SGL: sge(client)}}); err != nil {
			t.Fatal(err)
		}
	}
	if !w.run(rdma.Second, func() bool { return replies == messages }) {
		t.Fatalf("%d replies to %d messages", replies, messages)
	}
	if first > most || batches < messages/most {
		t.Errorf("the first of %d batches of answers left when %d messages were served, want %d at most", batches, first,
			most)
	}
}
