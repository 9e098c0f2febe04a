package rdmatest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
)

func testSizes(t *testing.T, open Provider) {
	const most = 8 << 20
	p := newPair(t, open, endpoint.Config{RecvDepth: 2, RecvSize: most})
	mtu := int(p.a.Negotiated().PathMTU)
	src, dst := p.region(p.a, most, 1, anyAccess), p.region(p.b, most, 2, anyAccess)
	back := p.region(p.a, most, 3, rdma.LocalWrite)
	sizes := []int{0, 1, 2, 3, 4, 5, mtu - 1, mtu, mtu + 1, 2 * mtu, 2*mtu + 1, 3*mtu - 1, 65536, 1<<20 + 17, most}
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			clear(dst.Bytes())
			clear(back.Bytes())
			settle(p.b)
			ok(t, p.a.Write(p.ctx, src, 0, n, endpoint.RemoteOf(dst)))
			settle(p.b)
			if !bytes.Equal(dst.Bytes()[:n], src.Bytes()[:n]) {
				t.Fatal("WRITE: the bytes differ")
			}
			if i := firstNonZero(dst.Bytes()[n:]); i >= 0 {
				t.Fatalf("WRITE: it wrote %d bytes beyond its end", i)
			}
			ok(t, p.a.Read(p.ctx, back, 0, n, endpoint.RemoteOf(dst)))
			settle(p.a)
			if !bytes.Equal(back.Bytes()[:n], src.Bytes()[:n]) {
				t.Fatal("READ: the bytes differ")
			}
			if i := firstNonZero(back.Bytes()[n:]); i >= 0 {
				t.Fatalf("READ: it wrote %d bytes beyond its end", i)
			}
			ok(t, p.a.Send(p.ctx, src, 0, n))
			m, err := p.b.Recv(p.ctx)
			ok(t, err)
			if m.Len != n || !bytes.Equal(m.Data, src.Bytes()[:n]) {
				t.Fatalf("SEND: %d bytes arrived", m.Len)
			}
		})
	}
}

func firstNonZero(b []byte) int {
	for i, c := range b {
		if c != 0 {
			return i
		}
	}
	return -1
}

// unsupported is for a request that the device says it does not have.
func unsupported(t *testing.T, p *pair, w rdma.SendWR) {
	t.Helper()
	if _, err := p.a.Do(p.ctx, w); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("operation %d of a device that has none: %v", w.Op, err)
	}
}

func testImmediate(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	src, dst := p.region(p.a, 10000, 1, anyAccess), p.region(p.b, 10000, 2, anyAccess)
	if iwarp(p.devs[0]) {
		unsupported(t, p, rdma.SendWR{Op: rdma.OpSendImm})
		unsupported(t, p, rdma.SendWR{Op: rdma.OpWriteImm, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		return
	}
	for _, n := range []int{0, 100, 10000} {
		_, err := p.a.Do(p.ctx, rdma.SendWR{
			Op: rdma.OpWriteImm, SGL: []rdma.SGE{{Buf: src.Bytes()[:n], LKey: src.LKey()}},
			RemoteAddr: dst.Addr(), RKey: dst.RKey(), Imm: 0xdeadbeef,
		})
		ok(t, err)
		m, err := p.b.Recv(p.ctx)
		ok(t, err)
		if !m.HasImm || m.Imm != 0xdeadbeef || m.Len != n || m.Data != nil || !bytes.Equal(dst.Bytes()[:n], src.Bytes()[:n]) {
			t.Errorf("WRITE with immediate of %d bytes: %+v", n, m)
		}
		k := min(n, 4096)
		_, err = p.a.Do(p.ctx, rdma.SendWR{Op: rdma.OpSendImm, SGL: []rdma.SGE{{Buf: src.Bytes()[:k], LKey: src.LKey()}},
			Imm: 7})
		ok(t, err)
		m, err = p.b.Recv(p.ctx)
		ok(t, err)
		if !m.HasImm || m.Imm != 7 || !bytes.Equal(m.Data, src.Bytes()[:k]) {
			t.Errorf("SEND with immediate of %d bytes: %+v", k, m)
		}
		settle(p.b)
	}
}

func testGatherScatter(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	src, dst := p.region(p.a, 20000, 1, anyAccess), p.region(p.b, 20000, 2, anyAccess)
	cut := func(m rdma.MR, at ...int) (l []rdma.SGE) {
		for i := 1; i < len(at); i++ {
			l = append(l, rdma.SGE{Buf: m.Bytes()[at[i-1]:at[i]], LKey: m.LKey()})
		}
		return l
	}
	// Pieces that end inside packets, are empty, and are longer than packets.
	_, err := p.a.Do(p.ctx, rdma.SendWR{Op: rdma.OpWrite, SGL: cut(src, 0, 1, 1, 9001, 20000), RemoteAddr: dst.Addr(),
		RKey: dst.RKey()})
	ok(t, err)
	settle(p.b)
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("a gathered WRITE arrived wrong")
	}
	back := p.region(p.a, 20000, 3, rdma.LocalWrite)
	_, err = p.a.Do(p.ctx, rdma.SendWR{Op: rdma.OpRead, SGL: cut(back, 0, 4097, 4098, 12000, 20000),
		RemoteAddr: dst.Addr(), RKey: dst.RKey()})
	ok(t, err)
	if !bytes.Equal(src.Bytes(), back.Bytes()) {
		t.Error("a scattered READ arrived wrong")
	}
}

// testPageEnds moves data that is short and lies on both sides of the end of a page, on either
// side, several at once.
func testPageEnds(t *testing.T, open Provider) {
	const page, lanes = 4096, 8
	p := newPair(t, open, endpoint.Config{})
	src, back := p.region(p.a, (lanes+2)*page, 1, anyAccess), p.region(p.a, (lanes+2)*page, 3, rdma.LocalWrite)
	dst := p.region(p.b, (lanes+2)*page, 2, anyAccess)
	end := func(m rdma.MR, lane int) int { return page - int(m.Addr()%page) + lane*page }
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for _, n := range []int{2, 3, 5, 8, 17, 31, 32, 33, 64} {
				for _, before := range []int{1, n / 2, n - 1} {
					from, to, at := end(src, lane)-before, end(dst, lane)-before, end(back, lane)-before
					err := p.a.Write(p.ctx, src, from, n, endpoint.RemoteOf(dst).At(to))
					if err == nil {
						err = p.a.Read(p.ctx, back, at, n, endpoint.RemoteOf(dst).At(to))
					}
					if err != nil {
						t.Errorf("%d bytes, %d of them before the end of a page: %v", n, before, err)
						return
					}
					settle(p.b)
					if want := src.Bytes()[from : from+n]; !bytes.Equal(dst.Bytes()[to:to+n], want) ||
						!bytes.Equal(back.Bytes()[at:at+n], want) {
						t.Errorf("%d bytes, %d of them before the end of a page: %x is there and %x here, not %x", n, before,
							dst.Bytes()[to:to+n], back.Bytes()[at:at+n], want)
					}
					settle(p.b) // the loop of b writes there next
				}
			}
		})
	}
	all.Wait()
}

func testAtomics(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	at, old := p.region(p.b, 16, 0, anyAccess), p.region(p.a, 8, 0, rdma.LocalWrite)
	if !rdma.LimitsOf(p.devs[0]).Atomics {
		unsupported(t, p, rdma.SendWR{Op: rdma.OpFetchAdd, SGL: part(old, 0, 8), RemoteAddr: at.Addr(), RKey: at.RKey()})
		unsupported(t, p, rdma.SendWR{Op: rdma.OpCompareSwap, SGL: part(old, 0, 8), RemoteAddr: at.Addr(), RKey: at.RKey()})
		return
	}
	word := func(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
	to := endpoint.RemoteOf(at).At(8)
	settle(p.b)
	clear(at.Bytes())
	settle(p.b)
	ok(t, p.a.FetchAdd(p.ctx, old, 0, to, 5))
	if v := word(old.Bytes()); v != 0 {
		t.Errorf("FETCH_ADD returned %d", v)
	}
	ok(t, p.a.FetchAdd(p.ctx, old, 0, to, ^uint64(0)))
	if v := word(old.Bytes()); v != 5 {
		t.Errorf("the second FETCH_ADD returned %d", v)
	}
	ok(t, p.a.CompareSwap(p.ctx, old, 0, to, 99, 1))
	if v := word(old.Bytes()); v != 4 {
		t.Errorf("COMPARE_SWAP of another value returned %d", v)
	}
	ok(t, p.a.CompareSwap(p.ctx, old, 0, to, 4, 77))
	settle(p.b)
	if v := word(at.Bytes()[8:]); v != 77 || word(at.Bytes()) != 0 {
		t.Errorf("COMPARE_SWAP left %d", v)
	}
}

func testOrderOfList(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	const n = 256 << 10
	src, dst := p.region(p.a, n, 1, anyAccess), p.region(p.b, n, 2, anyAccess)
	for i := range 20 {
		copy(src.Bytes(), pattern(n, byte(i)))
		wc, err := p.a.Do(p.ctx,
			rdma.SendWR{Op: rdma.OpWrite, SGL: []rdma.SGE{{Buf: src.Bytes(), LKey: src.LKey()}}, RemoteAddr: dst.Addr(),
				RKey: dst.RKey()},
			rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{{Buf: src.Bytes()[:8], LKey: src.LKey()}}})
		ok(t, err)
		if wc.Op != rdma.WCSend {
			t.Errorf("the list completed with %v", wc.Op)
		}
		_, err = p.b.Recv(p.ctx)
		ok(t, err)
		// The message says that the data before it is there.
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Fatalf("round %d: a SEND overtook the WRITE before it", i)
		}
		settle(p.b) // done with looking before the next round writes
	}
}

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
		{"around the address space", rdma.OpRead, anyAccess,
			func(_ *pair, _ rdma.MR, w *rdma.SendWR) { w.RemoteAddr = ^uint64(0) - 5 }},
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
			w := rdma.SendWR{Op: c.op, SGL: []rdma.SGE{{Buf: src.Bytes(), LKey: src.LKey()}}, RemoteAddr: dst.Addr(),
				RKey: dst.RKey()}
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
			return rdma.SGE{Buf: m.Bytes(),
				LKey: m.LKey()}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, open, endpoint.Config{})
			m, dst := p.region(p.a, 100, 1, 0), p.region(p.b, 100, 2, anyAccess)
			wc, err := p.a.Do(p.ctx, rdma.SendWR{Op: c.op, SGL: []rdma.SGE{c.sge(m)}, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
			// Devices differ in the word that they have for it.
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
	wc, err := p.a.Do(p.ctx, rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{{Buf: m.Bytes(), LKey: m.LKey()}}})
	// An invalid request (IBTA 9.9.3), which rdma_rxe takes for trouble of its own.
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
		_, err := p.a.Do(p.ctx, rdma.SendWR{Op: rdma.OpSendInv, SGL: []rdma.SGE{{Buf: src.Bytes()[:4], LKey: src.LKey()}},
			InvRKey: key})
		ok(t, err)
		m, err := p.b.Recv(p.ctx)
		ok(t, err)
		if !m.HasInv || m.InvRKey != key {
			t.Errorf("the receiver was told %+v", m)
		}
	}
	// A fresh key opens the region again, the old one stays dead.
	if fresh := dst.Invalidate(); fresh == key || fresh != dst.RKey() {
		t.Errorf("the fresh key is %#x, the old one %#x", fresh, key)
	}
	ok(t, p.a.Write(p.ctx, src, 0, 100, endpoint.RemoteOf(dst)))
	shut(t, p, p.a.Write(p.ctx, src, 0, 100, to), "the old key still opens the region")
}

// shut is for a WRITE that the peer's device must refuse, which ends the connection.
func shut(t *testing.T, p *pair, err error, what string) {
	t.Helper()
	if err == nil && !iwarp(p.devs[0]) {
		t.Error(what)
	}
	_ = over(t, p.a)
}

// testWindow opens a part of a region that is closed to peers itself.
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

func testReceiverNotReady(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{RecvDepth: 1})
	if iwarp(p.devs[1]) {
		t.Skip("a SEND that finds no receive ends the connection")
	}
	m := p.region(p.a, 5000, 1, 0)
	const n = 8
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			if err := p.a.Send(p.ctx, m, i, 4000); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i := range n {
		time.Sleep(3 * time.Millisecond)
		got, err := p.b.Recv(p.ctx)
		ok(t, err)
		if !bytes.Equal(got.Data, m.Bytes()[i:i+4000]) {
			t.Fatalf("message %d arrived wrong", i)
		}
	}
	ok(t, <-sent)
}

func testQueueFull(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{SendDepth: 4, SendSGE: 2})
	m := p.region(p.a, 100, 1, 0)
	sge := rdma.SGE{Buf: m.Bytes()[:10], LKey: m.LKey()}
	w := rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{sge}}
	if _, err := p.a.Do(p.ctx, w, w, w, w, w); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("5 requests in a queue of 4: %v", err)
	}
	if _, err := p.a.Do(p.ctx, rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{sge, sge, sge}}); !errors.Is(err,
		rdma.ErrInvalidWR) {
		t.Errorf("3 elements where 2 are allowed: %v", err)
	}
	_, err := p.a.Do(p.ctx, w, w, w, w)
	ok(t, err)
	for range 4 {
		_, err := p.b.Recv(p.ctx)
		ok(t, err)
	}
}

func testTransitions(t *testing.T, open Provider) {
	d := open(t)
	l := d.Loops()[0]
	done := make(chan struct{})
	l.Submit(func() {
		end := func() { close(done) }
		defer func() { end() }()
		pd, err := d.AllocPD()
		if err != nil {
			t.Error(err)
			return
		}
		cq, err := d.CreateCQ(l, rdma.CQOptions{Depth: 4})
		if err != nil {
			t.Error(err)
			return
		}
		q, err := d.CreateQP(l, rdma.QPConfig{PD: pd, SendCQ: cq, RecvCQ: cq,
			Caps: rdma.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
		if err != nil {
			t.Error(err)
			return
		}
		if err := q.PostRecv([]rdma.RecvWR{{}}); err == nil {
			t.Error("RESET takes receives")
		}
		for _, s := range []rdma.QPState{rdma.StateRTR, rdma.StateRTS, rdma.StateSQD} {
			if err := q.Modify(rdma.QPAttr{State: s}); !errors.Is(err, rdma.ErrBadTransition) {
				t.Errorf("RESET to %v: %v", s, err)
			}
		}
		err = q.Modify(rdma.QPAttr{State: rdma.StateInit})
		if iwarp(d) {
			if !errors.Is(err, rdma.ErrUnsupported) {
				t.Errorf("INIT of a device whose connection manager does that: %v", err)
			}
			q.Destroy()
			return
		}
		if err != nil {
			t.Error(err)
		}
		if err := q.PostSend([]rdma.SendWR{{Op: rdma.OpSend}}); err == nil {
			t.Error("INIT takes sends")
		}
		if err := q.PostRecv([]rdma.RecvWR{{ID: 5}}); err != nil {
			t.Error(err)
		}
		if err := q.Modify(rdma.QPAttr{State: rdma.StateErr}); err != nil || q.State() != rdma.StateErr {
			t.Error(err)
		}
		end = func() {} // after a turn in which it has completed, at its leisure
		tries := 5000
		var look func()
		look = func() {
			var wc [2]rdma.WC
			n := cq.Poll(wc[:])
			if tries--; n == 0 && tries > 0 {
				l.After(rdma.Millisecond, look)
				return
			}
			defer close(done)
			defer q.Destroy()
			if n != 1 || wc[0].ID != 5 || wc[0].Status != rdma.WRFlushErr {
				t.Errorf("%d completions, %+v", n, wc[0])
			}
		}
		l.After(1, look)
	})
	<-done
}

// testRandomProgram runs random operations on several connections at once
// against a model of the peer's memory.
func testRandomProgram(t *testing.T, open Provider) {
	const n, conns = 1 << 20, 4
	steps := 150
	if testing.Short() {
		steps = 30
	}
	rnd := seeded(t)
	p := newPair(t, open, endpoint.Config{RecvDepth: 8, RecvSize: 1 << 16})
	var all sync.WaitGroup
	for i := range conns {
		a, b := p.connect(endpoint.Config{RecvDepth: 8, RecvSize: 1 << 16})
		src, back := p.region(a, n, byte(i), 0), p.region(a, n, 0, rdma.LocalWrite)
		dst := p.region(b, n, byte(100+i), anyAccess)
		model := pattern(n, byte(100+i))
		seed := rnd.Uint64()
		all.Add(1)
		go func() {
			defer all.Done()
			if err := randomProgram(p.ctx, seed, steps, a, b, src, back, dst, model); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		}()
	}
	all.Wait()
}

func randomProgram(ctx context.Context, seed uint64, steps int, a, b *endpoint.Conn, src, back, dst rdma.MR,
	model []byte) error {
	x := seed
	next := func(n int) int { // splitmix64
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return int((z ^ z>>31) >> 1 % uint64(n))
	}
	total := len(model)
	for i := range steps {
		size := 1 + next(1<<(1+next(17)))
		from, to := next(total-size), next(total-size)
		var err error
		switch next(3) {
		case 0:
			err = a.Write(ctx, src, from, size, endpoint.RemoteOf(dst).At(to))
			copy(model[to:], src.Bytes()[from:from+size])
		case 1:
			err = a.Read(ctx, back, from, size, endpoint.RemoteOf(dst).At(to))
			if err == nil && !bytes.Equal(back.Bytes()[from:from+size], model[to:to+size]) {
				err = fmt.Errorf("a READ of %d bytes at %d returned others than were written", size, to)
			}
		case 2:
			size = min(size, 1<<16)
			if err = a.Send(ctx, src, from, size); err == nil {
				var m endpoint.Message
				m, err = b.Recv(ctx)
				if err == nil && !bytes.Equal(m.Data, src.Bytes()[from:from+size]) {
					err = fmt.Errorf("a message of %d bytes arrived wrong", size)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	settle(b)
	if !bytes.Equal(dst.Bytes(), model) {
		return errors.New("the memory differs from the model")
	}
	return nil
}
