package roce

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
)

// TestFirstLight connects two devices and moves bytes each way.
func TestFirstLight(t *testing.T) {
	a, err := Open(Config{Addr: netip.MustParseAddr("127.90.0.2")})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := Open(Config{Addr: netip.MustParseAddr("127.90.0.3")})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const size = 1 << 20
	type side struct {
		pd   rdma.PD
		mr   rdma.MR
		cq   rdma.CQ
		conn rdma.Conn
	}
	sides := [2]side{}
	wcs := make(chan rdma.WC, 64)
	up := make(chan int, 4)
	qpc := func(i int, d rdma.Device, l rdma.Loop) rdma.QPConfig {
		s := &sides[i]
		s.pd, _ = d.AllocPD()
		buf := make([]byte, size)
		for k := range buf {
			buf[k] = byte(k*7 + i)
		}
		s.mr, err = s.pd.Register(buf, rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead)
		if err != nil {
			t.Error(err)
		}
		s.cq, _ = d.CreateCQ(l, rdma.CQOptions{Depth: 64, OnEvent: func() {
			var wc [8]rdma.WC
			for n := s.cq.Poll(wc[:]); n > 0; n = s.cq.Poll(wc[:]) {
				for _, w := range wc[:n] {
					w.ID |= uint64(i) << 32
					wcs <- w
				}
			}
		}})
		return rdma.QPConfig{PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq, Caps: rdma.QPCaps{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}}
	}
	params := rdma.ConnParams{ResponderResources: 16, InitiatorDepth: 16, PrivateData: []byte("hello")}
	on := func(i int) func(rdma.Conn, rdma.ConnEvent) {
		return func(c rdma.Conn, e rdma.ConnEvent) {
			t.Logf("side %d: event %d %v mtu %d depth %d/%d", i, e.Kind, e.Err, e.PathMTU, e.ResponderResources, e.InitiatorDepth)
			up <- i
		}
	}
	l, err := b.Listen(7, func(r rdma.ConnRequest) {
		t.Logf("request from %v, %q", r.Remote(), bytes.TrimRight(r.PrivateData(), "\x00"))
		c, err := r.Accept(qpc(1, b, r.Loop()), params, func(c rdma.Conn) error {
			return c.QP().PostRecv([]rdma.RecvWR{{ID: 9, SGL: []rdma.SGE{{Buf: sides[1].mr.Bytes()[:4096], LKey: sides[1].mr.LKey()}}}})
		}, on(1))
		if err != nil {
			t.Error(err)
		}
		sides[1].conn = c
	})
	if err != nil {
		t.Fatal(err)
	}
	loop := a.Loops()[0]
	loop.Submit(func() {
		c, err := a.Dial(loop, rdma.DialParams{Remote: l.Addr(), QP: qpc(0, a, loop), Params: params, On: on(0)})
		if err != nil {
			t.Error(err)
		}
		sides[0].conn = c
	})
	wait := func(what string) {
		t.Helper()
		select {
		case <-up:
		case <-time.After(3 * time.Second):
			t.Fatalf("%s: nothing happened\n%+v\n%+v", what, a.Stats(), b.Stats())
		}
	}
	wait("connect")
	start := time.Now()
	loop.Submit(func() {
		m, r := sides[0].mr, sides[1].mr
		err := sides[0].conn.QP().PostSend([]rdma.SendWR{
			{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: []rdma.SGE{{Buf: m.Bytes()[size/2:], LKey: m.LKey()}}, RemoteAddr: r.Addr(), RKey: r.RKey()},
			{ID: 2, Op: rdma.OpWrite, Flags: rdma.Signaled | rdma.Fence, SGL: []rdma.SGE{{Buf: m.Bytes(), LKey: m.LKey()}}, RemoteAddr: r.Addr(), RKey: r.RKey()},
			{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: []rdma.SGE{{Buf: m.Bytes()[:4096], LKey: m.LKey()}}},
		})
		if err != nil {
			t.Error(err)
		}
	})
	for range 4 {
		select {
		case w := <-wcs:
			t.Logf("%v: %+v", time.Since(start), w)
			if w.Status != rdma.Success {
				t.Errorf("%+v", w)
			}
		case <-time.After(3 * time.Second):
			t.Fatalf("no completion\n%+v\n%+v", a.Stats(), b.Stats())
		}
	}
	if !bytes.Equal(sides[0].mr.Bytes(), sides[1].mr.Bytes()) {
		t.Error("the memories differ")
	}
	loop.Submit(func() { sides[0].conn.Disconnect() })
	wait("disconnect")
	wait("disconnect")
	t.Logf("%+v", a.Stats())
}
