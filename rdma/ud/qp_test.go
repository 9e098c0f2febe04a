package ud

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wq"
)

var (
	here  = netip.MustParseAddr("192.0.2.1")
	there = netip.MustParseAddr("192.0.2.2")
)

const (
	testQPN  = 0x1234
	testQKey = 0x01234567
	goodKey  = 7
	otherKey = 8
	testMTU  = 256
)

// keyed is memory in which one key is valid.
type keyed struct{}

func (keyed) Local(_, lkey uint32, _ []byte, _ bool) rdma.Status {
	if lkey != goodKey {
		return rdma.LocProtErr
	}
	return rdma.Success
}

// newQP makes a QP in a state.
func newQP(t testing.TB, state rdma.QPState, srq *wq.SRQ) *QP {
	t.Helper()
	q := New(Config{
		Num: testQPN, Mem: keyed{}, SRQ: srq, Addr: here, MTU: testMTU,
		Caps: rdma.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 8},
	})
	path := map[rdma.QPState][]rdma.QPState{
		rdma.StateReset: {},
		rdma.StateInit:  {rdma.StateInit},
		rdma.StateRTR:   {rdma.StateInit, rdma.StateRTR},
		rdma.StateRTS:   {rdma.StateInit, rdma.StateRTR, rdma.StateRTS},
		rdma.StateSQD:   {rdma.StateInit, rdma.StateRTR, rdma.StateRTS, rdma.StateSQD},
		rdma.StateSQE:   {rdma.StateInit, rdma.StateRTR, rdma.StateRTS},
		rdma.StateErr:   {rdma.StateInit, rdma.StateErr},
	}
	for _, s := range path[state] {
		a := rdma.QPAttr{State: s}
		switch s {
		case rdma.StateInit:
			a.PKey, a.QKey = wire.DefaultPKey, testQKey
		case rdma.StateRTS:
			a.SQPSN = wire.PSNMask
		}
		if err := q.Modify(a); err != nil {
			t.Fatal(err)
		}
	}
	if state == rdma.StateSQE {
		post(t, q, rdma.SendWR{SGL: []rdma.SGE{{Buf: make([]byte, 1), LKey: otherKey}}})
		q.Transmit(wire.NewBatch(1), 1)
		q.PollSend(make([]rdma.WC, 1))
	}
	if q.State() != state {
		t.Fatalf("in %v, want %v", q.State(), state)
	}
	return q
}

func post(t testing.TB, q *QP, wr rdma.SendWR) {
	t.Helper()
	if wr.AH == nil {
		wr.AH = &rdma.AH{Remote: there, QPN: 99, QKey: testQKey}
	}
	if err := q.PostSend([]rdma.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
}

func receive(t testing.TB, q *QP, id uint64, buf []byte) {
	t.Helper()
	// The receive has two elements. The first one ends inside of the IP header.
	err := q.PostRecv([]rdma.RecvWR{{
		ID:  id,
		SGL: []rdma.SGE{{Buf: buf[:30], LKey: goodKey}, {Buf: buf[30:], LKey: goodKey}},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// arriving makes a packet that the QP accepts.
func arriving(payload string) *wire.Packet {
	return &wire.Packet{
		Src: there, Dst: here, Op: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQPN: testQPN,
		DETH: wire.DETH{QKey: testQKey, SrcQPN: 99}, Payload: []byte(payload),
	}
}

// TestReceiveRules tests every check of a datagram. A datagram that is dropped counts in one
// counter, and nothing completes.
func TestReceiveRules(t *testing.T) {
	for _, c := range []struct {
		name    string
		state   rdma.QPState
		change  func(*wire.Packet)
		pkey    uint16
		room    int
		counter func(*Counters) *uint64 // nil: it is delivered
	}{
		{"good", rdma.StateRTS, nil, 0, 44, nil},
		{"before RTS", rdma.StateRTR, nil, 0, 44, nil},
		{"drained", rdma.StateSQD, nil, 0, 44, nil},
		{"after an error of a send", rdma.StateSQE, nil, 0, 44, nil},
		{"in INIT", rdma.StateInit, nil, 0, 44, func(n *Counters) *uint64 { return &n.DropState }},
		{"in ERR", rdma.StateErr, nil, 0, 0, func(n *Counters) *uint64 { return &n.DropState }},
		{
			"wrong Q_Key", rdma.StateRTS, func(p *wire.Packet) { p.DETH.QKey++ }, 0, 44,
			func(n *Counters) *uint64 { return &n.DropQKey },
		},
		{"limited member", rdma.StateRTS, func(p *wire.Packet) { p.PKey = 0x7fff }, 0, 44, nil},
		{
			"two limited members", rdma.StateRTS, func(p *wire.Packet) { p.PKey = 0x7fff }, 0x7fff, 44,
			func(n *Counters) *uint64 { return &n.DropPKey },
		},
		{
			"other partition", rdma.StateRTS, func(p *wire.Packet) { p.PKey = 0x8001 }, 0, 44,
			func(n *Counters) *uint64 { return &n.DropPKey },
		},
		{
			"an RC opcode", rdma.StateRTS, func(p *wire.Packet) { p.Op = wire.SendOnly }, 0, 44,
			func(n *Counters) *uint64 { return &n.DropOpcode },
		},
		{
			"a CNP", rdma.StateRTS, func(p *wire.Packet) { p.Op = wire.CNP }, 0, 44,
			func(n *Counters) *uint64 { return &n.DropOpcode },
		},
		{"no receive", rdma.StateRTS, nil, 0, 0, func(n *Counters) *uint64 { return &n.DropNoReceive }},
		{"too long", rdma.StateRTS, nil, 0, 43, func(n *Counters) *uint64 { return &n.DropTooLong }},
		{
			"no room for the header", rdma.StateRTS, func(p *wire.Packet) { p.Payload = nil }, 0, 39,
			func(n *Counters) *uint64 { return &n.DropTooLong },
		},
		{"only the header", rdma.StateRTS, func(p *wire.Packet) { p.Payload = nil }, 0, 40, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQP(t, c.state, nil)
			if c.pkey != 0 {
				q.attr.PKey = c.pkey
			}
			if c.room > 0 {
				receive(t, q, 5, make([]byte, c.room))
			}
			before := *q.Counters()
			p := arriving("data")
			if c.change != nil {
				c.change(p)
			}
			q.Receive(p, 0)
			want := before
			want.RxPackets++
			var wc [2]rdma.WC
			n := q.PollRecv(wc[:])
			if c.counter != nil {
				*c.counter(&want)++
				if n != 0 {
					t.Errorf("completed: %+v", wc[0])
				}
				if _, posted := q.Outstanding(); c.room > 0 && posted != 1 {
					t.Error("the receive is gone")
				}
			} else {
				want.RxBytes += uint64(len(p.Payload))
				if n != 1 || wc[0].ID != 5 || wc[0].Status != rdma.Success || int(wc[0].ByteLen) != 40+len(p.Payload) {
					t.Errorf("%d completions, %+v", n, wc[0])
				}
			}
			if *q.Counters() != want {
				t.Errorf("counters\n got %+v\nwant %+v", *q.Counters(), want)
			}
		})
	}
}

// TestHeader: the IP header in front of the data, for both families.
func TestHeader(t *testing.T) {
	for _, c := range []struct {
		name, src, dst string
		want           string
	}{
		{
			"IPv4", "192.0.2.2", "192.0.2.1",
			"0000000000000000000000000000000000000000" + "45680038000040004011b649" + "c0000202" + "c0000201",
		},
		{
			"IPv6", "2001:db8::2", "2001:db8::1",
			"6680000000241140" + "20010db8000000000000000000000002" + "20010db8000000000000000000000001",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQP(t, rdma.StateRTS, nil)
			buf := make([]byte, 60)
			receive(t, q, 1, buf)
			p := arriving("dat")
			p.Pad, p.Solicited = 1, true
			p.Src, p.Dst = netip.MustParseAddr(c.src), netip.MustParseAddr(c.dst)
			q.Receive(p, 0x68)
			if got := hex.EncodeToString(buf[:40]); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
			if string(buf[40:43]) != "dat" || buf[43] != 0 {
				t.Errorf("data %q", buf[40:])
			}
			if src, dst := rdma.GRHAddrs(buf); src != p.Src || dst != p.Dst {
				t.Errorf("read as %v to %v", src, dst)
			}
			var wc [1]rdma.WC
			if q.PollRecv(wc[:]) != 1 || wc[0].Flags != rdma.GRH|rdma.WithEvent || wc[0].SrcQPN != 99 || wc[0].QPN != testQPN {
				t.Errorf("%+v", wc[0])
			}
		})
	}
	if src, dst := rdma.GRHAddrs(make([]byte, 40)); src.IsValid() || dst.IsValid() {
		t.Error("zeros have addresses")
	}
	if src, _ := rdma.GRHAddrs([]byte{0x60}); src.IsValid() {
		t.Error("a byte has addresses")
	}
}

// TestReceiveMemory: a receive whose memory is not registered ends the QP.
func TestReceiveMemory(t *testing.T) {
	q := newQP(t, rdma.StateRTS, nil)
	if err := q.PostRecv([]rdma.RecvWR{{ID: 1, SGL: []rdma.SGE{{Buf: make([]byte, 60), LKey: otherKey}}}}); err != nil {
		t.Fatal(err)
	}
	receive(t, q, 2, make([]byte, 60))
	post(t, q, rdma.SendWR{ID: 3})
	q.Receive(arriving("data"), 0)
	var wc [3]rdma.WC
	if n := q.PollRecv(wc[:]); n != 2 || wc[0].Status != rdma.LocProtErr || wc[1].Status != rdma.WRFlushErr ||
		q.State() != rdma.StateErr {
		t.Errorf("%d receives completed, %+v; in %v", n, wc, q.State())
	}
	if n := q.PollSend(wc[:]); n != 1 || wc[0].ID != 3 || wc[0].Status != rdma.WRFlushErr {
		t.Errorf("%d sends completed, %+v", n, wc[0])
	}
}

// TestSharedReceives: a QP takes a receive from the SRQ for a datagram. If the datagram is dropped,
// the receive stays in the SRQ.
func TestSharedReceives(t *testing.T) {
	srq := wq.NewSRQ(4, 1, 4)
	a, b := newQP(t, rdma.StateRTS, srq), newQP(t, rdma.StateRTS, srq)
	if err := a.PostRecv(make([]rdma.RecvWR, 1)); !errors.Is(err, rdma.ErrInvalidWR) {
		t.Errorf("a receive beside the shared queue: %v", err)
	}
	a.Receive(arriving("none"), 0)
	for id := range uint64(2) {
		if err := srq.PostRecv([]rdma.RecvWR{{ID: id, SGL: []rdma.SGE{{Buf: make([]byte, 48), LKey: goodKey}}}}); err != nil {
			t.Fatal(err)
		}
	}
	srq.Arm(2)
	a.Receive(arriving("much too long"), 0)
	if srq.Low() || srq.Len() != 2 {
		t.Error("a dropped datagram took a receive")
	}
	b.Receive(arriving("one"), 0)
	if !srq.Low() {
		t.Error("the limit was not reported")
	}
	a.Receive(arriving("two"), 0)
	var wc [2]rdma.WC
	if n := b.PollRecv(wc[:]); n != 1 || wc[0].ID != 0 {
		t.Errorf("%d, %+v", n, wc)
	}
	if n := a.PollRecv(wc[:]); n != 1 || wc[0].ID != 1 {
		t.Errorf("%d, %+v", n, wc)
	}
	if n := a.Counters(); n.DropNoReceive != 1 || n.DropTooLong != 1 {
		t.Errorf("%+v", n)
	}
}
