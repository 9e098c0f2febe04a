package roce_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// segmentLink sends runs of datagrams as segments, as rdma/link/udp does. If it is broken, only the
// first segment of a run arrives.
type segmentLink struct {
	link.Link
	broken    bool
	bursts    bool // packets behind the first of a burst are lost, segments or not
	peers     *link.Segmentation
	lost      int
	suspected int
}

// Suspect implements link.Segmenter.
func (l *segmentLink) Suspect(peer netip.Addr) bool {
	l.suspected++
	return l.peers.Suspect(peer)
}

// Send implements link.Link.
func (l *segmentLink) Send(b *wire.Batch) error {
	kept := b.D[:0:0]
	n := 0 // index in the run
	for i := range b.D {
		d := &b.D[i]
		behind := n > 0 && n < 64 && d.Flow.Dst == b.D[i-1].Flow.Dst && wire.DestQPN(d.Hdr) == wire.DestQPN(b.D[i-1].Hdr) &&
			b.D[i-n].Size() == b.D[i-1].Size() && d.Size() <= b.D[i-1].Size()
		joins := behind && l.peers.Allowed(d.Flow.Dst)
		if behind {
			n++
		} else {
			n = 1
		}
		if l.broken && joins || l.bursts && behind {
			l.lost++
		} else {
			kept = append(kept, *d)
		}
	}
	all := b.D
	b.D = kept
	defer func() { b.D = all }()
	return l.Link.Send(b)
}

// TestWrongSegments: a network card makes wrong segments. The device detects that, sends to the
// peer without segmentation, logs it once, and is as fast as a device without segmentation. If
// packets are lost for other reasons, segmentation stays on.
func TestWrongSegments(t *testing.T) {
	const size = 1 << 20
	for _, c := range []struct {
		name   string
		broken bool
		bursts bool
		cfg    sim.Config
		off    bool
	}{
		{"good", false, false, sim.Config{}, false},
		{"wrong segments", true, false, sim.Config{}, true},
		{"wrong segments and losses", true, false, sim.Config{Loss: 0.002}, true},
		{"losses", false, false, sim.Config{Loss: 0.02}, false},
		{"many losses", false, false, sim.Config{Loss: 0.2}, false},
		{"a short queue", false, false, sim.Config{Bandwidth: 125e6, QueueBytes: 12 << 10}, false},
		{"a peer that takes one packet at a time", false, true, sim.Config{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			var l *segmentLink
			c.cfg.Seed = 17
			w := newWorld(t, c.cfg, func(side int, cfg *roce.Config) {
				if side == 0 {
					cfg.PathMTUMax = 1024
					cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
					cfg.Wrap = func(_ int, inner link.Link) link.Link {
						l = &segmentLink{Link: inner, broken: c.broken, bursts: c.bursts, peers: new(link.Segmentation)}
						return l
					}
				}
			})
			w.connect()
			local, remote := w.side[0].mr, w.side[1].mr
			took := func() rdma.Time {
				start := w.net.Now()
				wc := w.post(rdma.SendWR{
					Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: local.Bytes()[:size], LKey: local.LKey()}},
					RemoteAddr: remote.Addr(), RKey: remote.RKey(),
				})
				if wc.Status != rdma.Success {
					t.Fatal(wc.Status)
				}
				return w.net.Now() - start
			}
			first := took()
			total := first
			for range 30 {
				if c.name == "many losses" || c.bursts {
					break
				}
				total += took()
			}
			lost := l.lost
			last := took()
			says := strings.Count(log.String(), "segmentation offload")
			t.Logf("the first MiB took %d us, the last %d us, all %d ms; suspected %d times, %d segments lost",
				first/rdma.Microsecond, last/rdma.Microsecond, total/rdma.Millisecond, l.suspected, l.lost)
			for range 10_000 {
				l.peers.Allowed(simAddr[1]) // the end of a trial
			}
			if off := !l.peers.Allowed(simAddr[1]); off != c.off || (says == 1) != c.off || says > 1 {
				t.Errorf("segmentation is off: %v; %d lines of log:\n%s", off, says, log.String())
			}
			if c.bursts && l.suspected < 2 {
				t.Errorf("suspected %d times", l.suspected)
			}
			if c.off && l.lost != lost {
				t.Errorf("%d segments were lost at the end", l.lost-lost)
			}
		})
	}
}
