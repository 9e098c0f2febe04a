package rdmatest

import (
	"bytes"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
)

func testRemoteAccess(t *testing.T, open Provider) {
	const n = 10000
	for _, c := range []struct {
		name   string
		op     rdma.SendOp
		access rdma.Access
		spoil  func(p *pair, m rdma.MR, w *rdma.SendWR)
	}{
		{"wrong key", rdma.OpWrite, anyAccess, func(_ *pair, _ rdma.MR, w *rdma.SendWR) { w.RKey ^= 0x5a5a5a5a }},
		{"local key", rdma.OpWrite, anyAccess, func(_ *pair, m rdma.MR, w *rdma.SendWR) { w.RKey = m.LKey() + 1 }},
		{"before the region", rdma.OpWrite, anyAccess, func(_ *pair, _ rdma.MR, w *rdma.SendWR) { w.RemoteAddr-- }},
		{"beyond the region", rdma.OpWrite, anyAccess, func(_ *pair, _ rdma.MR, w *rdma.SendWR) { w.RemoteAddr++ }},
		{
			"around the address space", rdma.OpRead, anyAccess,
			func(_ *pair, _ rdma.MR, w *rdma.SendWR) { w.RemoteAddr = ^uint64(0) - 5 },
		},
		{"WRITE to read-only", rdma.OpWrite, rdma.LocalWrite | rdma.RemoteRead, nil},
		{"READ of write-only", rdma.OpRead, rdma.LocalWrite | rdma.RemoteWrite, nil},
		{"READ of a local region", rdma.OpRead, rdma.LocalWrite, nil},
		{"closed region", rdma.OpWrite, anyAccess, func(p *pair, m rdma.MR, _ *rdma.SendWR) { m.Close() }},
		{"invalidated key", rdma.OpRead, anyAccess, func(p *pair, m rdma.MR, _ *rdma.SendWR) { m.Invalidate() }},
		{"another domain", rdma.OpRead, anyAccess, func(p *pair, _ rdma.MR, w *rdma.SendWR) {
			pd, err := p.devs[1].AllocPD()
			ok(p.t, err)
			m, err := pd.Register(make([]byte, n), anyAccess)
			ok(p.t, err)
			w.RemoteAddr, w.RKey = m.Addr(), m.RKey()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, open, endpoint.Config{})
			src, dst := p.region(p.a, n, 1, anyAccess), p.region(p.b, n, 2, c.access)
			w := transfer(c.op, whole(src), dst)
			if c.spoil != nil {
				c.spoil(p, dst, &w)
			}
			wc, err := p.a.Do(p.ctx, w)
			if err == nil && c.op == rdma.OpRead && c.access&rdma.RemoteRead == 0 && quirksOf(p.devs[1]).NoReadRights {
				t.Skip("the device lets peers read what they may not")
			}
			if wc.Status != rdma.RemAccessErr && !iwarp(p.devs[0]) {
				t.Errorf("got %v, %v", wc.Status, err)
			}
			_ = over(t, p.a)
			_ = over(t, p.b)
			if !bytes.Equal(dst.Bytes(), pattern(n, 2)) || !bytes.Equal(src.Bytes(), pattern(n, 1)) {
				t.Error("bytes moved all the same")
			}
		})
	}
}

func testLocalAccess(t *testing.T, open Provider) {
	for _, c := range []struct {
		name string
		op   rdma.SendOp
		sge  func(m rdma.MR) rdma.SGE
	}{
		{"unknown key", rdma.OpSend, func(m rdma.MR) rdma.SGE { return rdma.SGE{Buf: m.Bytes(), LKey: m.LKey() ^ 0x1234} }},
		{"other memory", rdma.OpWrite, func(m rdma.MR) rdma.SGE { return rdma.SGE{Buf: make([]byte, 10), LKey: m.LKey()} }},
		{"READ into constant memory", rdma.OpRead, func(m rdma.MR) rdma.SGE {
			return rdma.SGE{
				Buf:  m.Bytes(),
				LKey: m.LKey(),
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, open, endpoint.Config{})
			m, dst := p.region(p.a, 100, 1, 0), p.region(p.b, 100, 2, anyAccess)
			wc, err := p.a.Do(p.ctx, rdma.SendWR{Op: c.op, SGL: []rdma.SGE{c.sge(m)}, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
			// Devices report different statuses for such a request.
			if wc.Status != rdma.LocProtErr && wc.Status != rdma.LocAccessErr && wc.Status != rdma.LocQPOpErr {
				t.Errorf("got %v, %v", wc.Status, err)
			}
			_ = over(t, p.a)
		})
	}
}

func testLongMessage(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{RecvSize: 1000})
	m := p.region(p.a, 1001, 1, 0)
	ok(t, p.a.Send(p.ctx, m, 0, 1000))
	wc, err := p.a.Do(p.ctx, rdma.SendWR{Op: rdma.OpSend, SGL: whole(m)})
	// IBTA 9.9.3 demands the NAK "invalid request". rdma_rxe sends "remote operational error".
	if wc.Status != rdma.RemInvReqErr && wc.Status != rdma.RemOpErr && !iwarp(p.devs[0]) {
		t.Errorf("got %v, %v", wc.Status, err)
	}
	_ = over(t, p.b)
}

func testInvalidate(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	src, dst := p.region(p.a, 100, 1, anyAccess), p.region(p.b, 100, 2, anyAccess)
	key := dst.RKey()
	to := endpoint.RemoteOf(dst)
	ok(t, p.a.Write(p.ctx, src, 0, 100, to))
	if rdma.LimitsOf(p.devs[1]).PeerInval {
		_, err := p.a.Do(p.ctx, rdma.SendWR{
			Op: rdma.OpSendInv, SGL: part(src, 0, 4),
			InvRKey: key,
		})
		ok(t, err)
		m, err := p.b.Recv(p.ctx)
		ok(t, err)
		if !m.HasInv || m.InvRKey != key {
			t.Errorf("the receiver was told %+v", m)
		}
	}
	// A new key opens the region again. The old key stays refused.
	if fresh := dst.Invalidate(); fresh == key || fresh != dst.RKey() {
		t.Errorf("the fresh key is %#x, the old one %#x", fresh, key)
	}
	ok(t, p.a.Write(p.ctx, src, 0, 100, endpoint.RemoteOf(dst)))
	shut(t, p, p.a.Write(p.ctx, src, 0, 100, to), "the old key still opens the region")
}

// shut checks that the peer's device has refused a WRITE, and that this ended the connection. err
// is the error of the WRITE; what describes the failure of the test.
func shut(t *testing.T, p *pair, err error, what string) {
	t.Helper()
	if err == nil && !iwarp(p.devs[0]) {
		t.Error(what)
	}
	_ = over(t, p.a)
}

// testWindow opens a part of a region that itself allows peers no access.
func testWindow(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	src, dst := p.region(p.a, 300, 1, rdma.LocalWrite), p.region(p.b, 300, 2, rdma.LocalWrite)
	w, err := dst.Window(dst.Bytes()[100:200], rdma.LocalWrite|rdma.RemoteWrite)
	ok(t, err)
	ok(t, p.a.Write(p.ctx, src, 0, 100, endpoint.RemoteOf(w)))
	settle(p.b)
	want := append(append(pattern(300, 2)[:100:100], pattern(300, 1)[:100]...), pattern(300, 2)[200:]...)
	if !bytes.Equal(dst.Bytes(), want) {
		t.Error("the bytes are not in the window")
	}
	for name, bad := range map[string]func() (rdma.MR, error){
		"other memory":             func() (rdma.MR, error) { return dst.Window(make([]byte, 10), rdma.RemoteRead) },
		"more than its region":     func() (rdma.MR, error) { return w.Window(dst.Bytes()[100:201], rdma.RemoteRead) },
		"writable, of a read-only": func() (rdma.MR, error) { return p.region(p.b, 8, 0, 0).Window(nil, rdma.LocalWrite) },
	} {
		if m, err := bad(); err == nil {
			t.Errorf("a window of %s: %v", name, m)
		}
	}
	w.Close()
	shut(t, p, p.a.Write(p.ctx, src, 0, 1, endpoint.RemoteOf(w)), "a closed window can be written")
	if _, err := dst.Window(dst.Bytes()[:10], rdma.RemoteRead); err != nil {
		t.Errorf("after a window was closed: %v", err)
	}
	dst.Close()
	if m, err := dst.Window(dst.Bytes()[:10], rdma.RemoteRead); err == nil {
		t.Errorf("a window of a closed region: %v", m)
	}
}
