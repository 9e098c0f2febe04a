package roce_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/rdma/wire"
)

// dialPartition dials in a partition and returns the outcome.
func (w *world) dialPartition(key uint16) rdma.ConnEvent {
	w.t.Helper()
	w.side = [2]*simSide{}
	port := w.port
	w.port++
	l, err := w.dev[1].Listen(port, func(r rdma.ConnRequest) {
		c, err := r.Accept(w.qp(1), rdma.ConnParams{}, nil,
			func(_ rdma.Conn, e rdma.ConnEvent) { w.side[1].events = append(w.side[1].events, e) })
		if err != nil {
			w.t.Error(err)
			return
		}
		if r.PKey() != c.PKey() {
			w.t.Errorf("the request is for %#x, the connection in %#x", r.PKey(), c.PKey())
		}
		w.side[1].conn = c
	})
	if err != nil {
		w.t.Fatal(err)
	}
	_ = w.dev[1].Turn()
	q := w.qp(0)
	s := w.side[0]
	s.conn, err = w.dev[0].Dial(w.dev[0].Loops()[0], rdma.DialParams{
		Remote: netip.AddrPortFrom(simAddr[1], port), QP: q, PKey: key,
		On: func(_ rdma.Conn, e rdma.ConnEvent) { s.events = append(s.events, e) },
	})
	if err != nil {
		return rdma.ConnEvent{Err: err}
	}
	if !w.run(20*rdma.Second, func() bool {
		return len(s.events) > 0 && (s.events[0].Kind != rdma.EventEstablished || len(w.side[1].events) > 0)
	}) {
		w.t.Fatal("no answer")
	}
	_ = l.Close()
	return s.events[0]
}

// TestPartitions: two hosts can connect only if both are members of the partition and at least one
// is a full member.
func TestPartitions(t *testing.T) {
	for _, c := range []struct {
		what           string
		client, server []uint16
		ask            uint16
		want           rdma.ConnEventKind // 0: Dial returns an error
		keys           [2]uint16
	}{
		{"the default", []uint16{0xffff}, []uint16{0xffff}, 0, rdma.EventEstablished, [2]uint16{0xffff, 0xffff}},
		{
			"a limited and a full member",
			[]uint16{0x0001},
			[]uint16{0xffff, 0x8001},
			0, rdma.EventEstablished,
			[2]uint16{0x0001, 0x8001},
		},
		{
			"the same, the other way",
			[]uint16{0xffff, 0x8001},
			[]uint16{0x0001},
			1, rdma.EventEstablished,
			[2]uint16{0x8001, 0x0001},
		},
		{
			"two full members",
			[]uint16{0x8001, 0x8002},
			[]uint16{0x8002},
			0x8002, rdma.EventEstablished,
			[2]uint16{0x8002, 0x8002},
		},
		{"two limited members", []uint16{0x0001}, []uint16{0xffff, 0x0001}, 0, rdma.EventRejected, [2]uint16{}},
		{"other partitions", []uint16{0x8001}, []uint16{0x8002}, 0, rdma.EventRejected, [2]uint16{}},
		{"a limited member of the default", []uint16{0x7fff}, []uint16{0x7fff}, 0, rdma.EventRejected, [2]uint16{}},
		{"one that the device is not in", []uint16{0x8001}, []uint16{0x8002}, 0x8002, 0, [2]uint16{}},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t, sim.Config{Seed: 1})
			for i, keys := range [][]uint16{c.client, c.server} {
				if err := w.dev[i].SetPKeys(keys); err != nil {
					t.Fatal(err)
				}
			}
			e := w.dialPartition(c.ask)
			if e.Kind != c.want {
				t.Fatalf("%+v", e)
			}
			switch e.Kind {
			case rdma.EventEstablished:
				if got := [2]uint16{w.side[0].conn.PKey(), w.side[1].conn.PKey()}; got != c.keys {
					t.Errorf("keys %#x, want %#x", got, c.keys)
				}
				sge := []rdma.SGE{{Buf: w.side[0].mr.Bytes()[:100], LKey: w.side[0].mr.LKey()}}
				if wc := w.post(rdma.SendWR{
					Op: rdma.OpWrite, SGL: sge, RemoteAddr: w.side[1].mr.Addr(),
					RKey: w.side[1].mr.RKey(),
				}); wc.Status != rdma.Success {
					t.Errorf("%+v", wc)
				}
			case rdma.EventRejected:
				if e.Reason != uint16(cm.InvalidServiceID) || w.dev[1].Stats().RefusedPKey != 1 {
					t.Errorf("reason %d, %d refused", e.Reason, w.dev[1].Stats().RefusedPKey)
				}
			default:
				if !errors.Is(e.Err, rdma.ErrInvalidWR) {
					t.Error(e.Err)
				}
			}
		})
	}
}

// TestLeavePartition: when the device leaves a partition, the connections in it end. Others stay.
func TestLeavePartition(t *testing.T) {
	w := newWorld(t, sim.Config{Seed: 1})
	for _, d := range w.dev {
		if err := d.SetPKeys([]uint16{0xffff, 0x8001}); err != nil {
			t.Fatal(err)
		}
	}
	w.connect()
	stays := w.side[0]
	if e := w.dialPartition(0x8001); e.Kind != rdma.EventEstablished {
		t.Fatalf("%+v", e)
	}
	goes, there := w.side[0], w.side[1]
	if err := w.dev[1].SetPKeys([]uint16{wire.DefaultPKey}); err != nil {
		t.Fatal(err)
	}
	w.run(10*rdma.Second, func() bool { return len(goes.events) > 1 && len(there.events) > 1 })
	if len(there.events) < 2 || there.events[1].Kind != rdma.EventDisconnected ||
		!strings.Contains(there.events[1].Err.Error(), "0x8001") {
		t.Errorf("%+v", there.events)
	}
	if len(goes.events) < 2 || goes.events[1].Kind != rdma.EventDisconnected {
		t.Errorf("%+v", goes.events)
	}
	if len(stays.events) != 1 || stays.conn.QP().State() != rdma.StateRTS {
		t.Errorf("%+v", stays.events)
	}
	for _, bad := range [][]uint16{nil, {0x8000}, {0}, {0x8001, 0x0001}, make([]uint16, 200)} {
		if err := w.dev[1].SetPKeys(bad); !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("the table %#x: %v", bad, err)
		}
	}
}
