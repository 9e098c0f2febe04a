package flows

import (
	"fmt"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/sim"
)

const (
	us = rdma.Microsecond
	ms = rdma.Millisecond
	// rate of the port that all share, bytes per second; the hosts' interfaces are faster.
	rate     = 1250e6
	rateHost = 3125e6
)

// TestShares: what connections get of a port of 10 Gbit/s that all their data passes
// through, and how evenly.
func TestShares(t *testing.T) {
	long := sim.Port{Rate: rate, Queue: 1 << 20}
	middle := sim.Port{Rate: rate, Queue: 256 << 10}
	short := sim.Port{Rate: rate, Queue: 64 << 10}
	marking := sim.Port{Rate: rate, Queue: 1 << 20, Mark: 64 << 10}
	// A host that takes 6 us for a packet, with the socket buffer that Linux gives an
	// ordinary process.
	slow := sim.Receiver{Buffer: 212992, Charge: 4096, Each: 6 * us}
	const slowShare = 4096 / 6e-6 / rate
	for _, c := range []struct {
		name     string
		flows    int
		port     sim.Port
		loss     float64
		delay    rdma.Time
		receiver sim.Receiver
		// Least goodput as a share of the port for RDMA WRITE and READ.
		write, read float64
	}{
		{"a queue of 1 MiB", 1, long, 0, 10 * us, sim.Receiver{}, 0.95, 0.95},
		{"a queue of 256 KiB", 1, middle, 0, 10 * us, sim.Receiver{}, 0.9, 0.9},
		{"a queue of 64 KiB", 1, short, 0, 10 * us, sim.Receiver{}, 0.8, 0.6},
		{"marks", 1, marking, 0, 10 * us, sim.Receiver{}, 0.95, 0.9},
		{"a round trip of 1 ms", 1, middle, 0, 500 * us, sim.Receiver{}, 0.7, 0.5},
		{"0.1 % lost", 1, long, 0.001, 10 * us, sim.Receiver{}, 0.9, 0.9},
		{"1 % lost", 1, long, 0.01, 10 * us, sim.Receiver{}, 0.7, 0.65},
		{"5 % lost", 1, long, 0.05, 10 * us, sim.Receiver{}, 0.25, 0.12},
		{"a slow host", 1, long, 0, 10 * us, slow, 0.8 * slowShare, 0.8 * slowShare}, // 0.00 0.00
		{"16 and a queue of 1 MiB", 16, long, 0, 10 * us, sim.Receiver{}, 0.85, 0.8},
		{"16 and a queue of 256 KiB", 16, middle, 0, 10 * us, sim.Receiver{}, 0.75, 0.7},
		{"16 and marks", 16, marking, 0, 10 * us, sim.Receiver{}, 0.95, 0.9},
		{"100 and a queue of 1 MiB", 100, long, 0, 10 * us, sim.Receiver{}, 0.7, 0.65},
		{"100 and marks", 100, marking, 0, 10 * us, sim.Receiver{}, 0.85, 0.65},
	} {
		for _, op := range []struct {
			name  string
			op    rdma.SendOp
			least float64
		}{{"WRITE", rdma.OpWrite, c.write}, {"READ", rdma.OpRead, c.read}} {
			t.Run(fmt.Sprintf("%s/%s", c.name, op.name), func(t *testing.T) {
				t.Parallel()
				r := Run(Config{
					Net: sim.Config{Seed: 1, Bandwidth: rateHost, Delay: c.delay, Loss: c.loss}, Flows: c.flows, Op: op.op,
					Message: 256 << 10, Depth: 8, Stagger: 200 * us, Port: c.port, Receiver: c.receiver,
				}, 100*ms, 300*ms)
				share, fair := r.Goodput()/rate, r.Fairness()
				t.Logf("%.2f of the port, fairness %.3f; %d packets, %d again, %d timeouts, %d dropped, %d marked",
					share, fair, r.Requester.TxPackets, r.Requester.TxRetransmits, r.Requester.AckTimeouts,
					r.Net.QueueDrops+r.Net.BufferDrops, r.Net.Marked)
				if share < op.least {
					t.Errorf("%.3f of the port, want %.3f", share, op.least)
				}
				if fair < 0.9 {
					t.Errorf("Jain's index is %.3f, want 0.9", fair)
				}
				if r.Net.Marked > 0 && (r.Requester.CNPHandled+r.Responder.CNPHandled == 0 ||
					r.Requester.TxCNP+r.Responder.TxCNP == 0) {
					t.Errorf("%d packets were marked, and nobody cared", r.Net.Marked)
				}
			})
		}
	}
}
