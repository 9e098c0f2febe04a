package roce_test

import (
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// narrowLink carries datagrams of at most most bytes. Our own interface refuses longer ones, or the
// path loses them.
type narrowLink struct {
	link.Link
	most    int
	refused bool
}

// Send implements link.Link.
func (l narrowLink) Send(b *wire.Batch) error {
	var err error
	kept := b.D[:0:0]
	for i := range b.D {
		switch d := &b.D[i]; {
		case d.Size() <= l.most:
			kept = append(kept, *d)
		case l.refused:
			err = &link.TooBigError{Dst: d.Flow.Dst, Size: d.Size(), MTU: l.most}
		}
	}
	all := b.D
	b.D = kept
	defer func() { b.D = all }()
	if e := l.Link.Send(b); e != nil {
		return e
	}
	return err
}

// TestNarrowPath: the post-mortem says that packets as long as the path MTU do not arrive, whether
// the path loses them or our own interface refuses them.
func TestNarrowPath(t *testing.T) {
	for _, c := range []struct {
		name    string
		op      rdma.SendOp
		side    int // whose long packets do not arrive
		refused bool
		want    string
	}{
		{"lost", rdma.OpWrite, 0, false, "no packet with 4096 bytes of data ever arrived"},
		{"lost from the peer", rdma.OpRead, 1, false, "no packet with 4096 bytes of data ever arrived"},
		{"refused", rdma.OpWrite, 0, true, "does not fit the interface"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var records []roce.Record
			w := newWorld(t, sim.Config{Seed: 5}, func(side int, cfg *roce.Config) {
				if side == 0 {
					cfg.OnFailure = func(r roce.Record) { records = append(records, r) }
				}
				if side == c.side {
					wrap := cfg.Wrap
					cfg.Wrap = func(i int, l link.Link) link.Link {
						if wrap != nil {
							l = wrap(i, l)
						}
						return narrowLink{l, 1500, c.refused}
					}
				}
			})
			w.connect()
			local, remote := w.side[0].mr, w.side[1].mr
			wr := rdma.SendWR{Op: c.op, RemoteAddr: remote.Addr(), RKey: remote.RKey()}
			wr.SGL = []rdma.SGE{{Buf: local.Bytes()[:1000], LKey: local.LKey()}}
			if wc := w.post(wr); wc.Status != rdma.Success {
				t.Fatalf("a short request: %v", wc.Status)
			}
			wr.SGL = []rdma.SGE{{Buf: local.Bytes()[:10000], LKey: local.LKey()}}
			if wc := w.post(wr); wc.Status != rdma.RetryExcErr {
				t.Errorf("a long request: %v", wc.Status)
			}
			w.run(rdma.Second, func() bool { return len(records) > 0 })
			if len(records) != 1 || records[0].Err == nil || !strings.Contains(records[0].Err.Error(), c.want) ||
				c.refused != (records[0].TooBig != nil) {
				t.Errorf("%+v", records)
			}
		})
	}
}

// TestNarrowPathIsSeen: a path that has carried full packets and then fails is not called narrow.
func TestNarrowPathIsSeen(t *testing.T) {
	var records []roce.Record
	w := newWorld(t, sim.Config{Seed: 6}, func(side int, cfg *roce.Config) {
		if side == 0 {
			cfg.OnFailure = func(r roce.Record) { records = append(records, r) }
		}
	})
	w.connect()
	local, remote := w.side[0].mr, w.side[1].mr
	wr := rdma.SendWR{
		Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: local.Bytes()[:10000], LKey: local.LKey()}},
		RemoteAddr: remote.Addr(), RKey: remote.RKey(),
	}
	if wc := w.post(wr); wc.Status != rdma.Success {
		t.Fatal(wc.Status)
	}
	w.net.Cut(simAddr[0], simAddr[1], true)
	if wc := w.post(wr); wc.Status != rdma.RetryExcErr {
		t.Error(wc.Status)
	}
	w.run(rdma.Second, func() bool { return len(records) > 0 })
	if len(records) != 1 || records[0].Summary.Narrow() || strings.Contains(records[0].Err.Error(), "bytes of data") {
		t.Errorf("%+v", records)
	}
}
