package rdmatest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// testMemoryWindow: a window that a work request binds opens a part of a region to one queue pair,
// until its owner or the peer invalidates it.
func testMemoryWindow(t *testing.T, open Provider) {
	da, db := open(t), open(t)
	a, b := newEnd(t, da, rdma.CQOptions{}), newEnd(t, db, rdma.CQOptions{})
	join(a, b, port)
	src := a.register(pattern(64, 1), 0)
	of := b.register(make([]byte, 1000), rdma.LocalWrite|rdma.WindowBind)
	w, err := b.pd.AllocMW()
	if !rdma.LimitsOf(db).Windows {
		refused(t, "a memory window", err)
		b.on(func() {
			err = b.conn.QP().PostSend([]rdma.SendWR{{Op: rdma.OpBindMW, Bind: &rdma.Bind{MR: of, Buf: of.Bytes()}}})
		})
		refused(t, "a bind", err)
		return
	}
	ok(t, err)
	t.Cleanup(w.Close)
	if k := w.RKey(); k != 0 {
		t.Errorf("a window that is not bound has the key %#x", k)
	}
	bind := func(key uint32) rdma.SendWR {
		return rdma.SendWR{
			ID: 1, Op: rdma.OpBindMW, Flags: rdma.Signaled, RKey: key,
			Bind: &rdma.Bind{MW: w, MR: of, Buf: of.Bytes()[100:164], Access: rdma.RemoteWrite},
		}
	}
	write := func(addr uint64, key uint32) rdma.WC {
		a.post(rdma.SendWR{ID: 2, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: part(src, 0, 64), RemoteAddr: addr, RKey: key})
		return a.completion()
	}
	key := w.Rekey()
	b.post(bind(key))
	if wc := b.succeeded(1); wc.Op != rdma.WCBindMW {
		t.Errorf("%+v", wc)
	}
	if w.RKey() != key {
		t.Errorf("the window has the key %#x, want %#x", w.RKey(), key)
	}
	if wc := write(of.Addr()+100, key); wc.Status != rdma.Success {
		t.Fatalf("%+v", wc)
	}
	b.settle()
	if !bytes.Equal(of.Bytes()[100:164], src.Bytes()) || firstNonZero(of.Bytes()[164:]) >= 0 ||
		firstNonZero(of.Bytes()[:100]) >= 0 {
		t.Error("the bytes are not in the window")
	}
	// The window is bound again after its owner has invalidated it, and then after the peer has.
	b.exec(rdma.SendWR{Op: rdma.OpLocalInv, InvRKey: key})
	again := w.Rekey()
	if again == key || w.RKey() != 0 {
		t.Errorf("the keys %#x, then %#x; the window has %#x", key, again, w.RKey())
	}
	b.post(bind(again))
	b.succeeded(1)
	b.recv(4, part(of, 0, 1))
	a.exec(rdma.SendWR{Op: rdma.OpSendInv, InvRKey: again})
	if wc := b.succeeded(4); wc.Flags&rdma.WithInv == 0 || wc.InvRKey != again || w.RKey() != 0 {
		t.Errorf("%+v, and the window has the key %#x", wc, w.RKey())
	}
	last := w.Rekey()
	b.post(bind(last))
	b.succeeded(1)
	// Another queue pair of the same domain cannot use the key.
	c, d := newEnd(t, da, rdma.CQOptions{}), newEnd(t, db, rdma.CQOptions{})
	d.cfg.PD = b.pd
	join(c, d, port+1)
	other := c.register(pattern(64, 2), 0)
	c.post(rdma.SendWR{
		ID: 6, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: part(other, 0, 64),
		RemoteAddr: of.Addr() + 100, RKey: last,
	})
	if wc := c.completion(); wc.Status != rdma.RemAccessErr {
		t.Errorf("by another queue pair: %+v", wc)
	}
	if wc := write(of.Addr()+100, last); wc.Status != rdma.Success {
		t.Errorf("by its own queue pair: %+v", wc)
	}
	if wc := write(of.Addr()+100, key); wc.Status != rdma.RemAccessErr {
		t.Errorf("with a key that has ended: %+v", wc)
	}
}

// refused checks that what a device does not offer fails with ErrUnsupported.
func refused(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("%s, which the device does not offer: %v", what, err)
	}
}

// testBadBinds: a bind that cannot be executed fails, and ends the connection.
func testBadBinds(t *testing.T, open Provider) {
	da, db := open(t), open(t)
	for i, c := range []struct {
		what string
		wr   func(b *end, w rdma.MW, of, closed rdma.MR) rdma.SendWR
	}{
		{"a key that was not drawn", func(_ *end, w rdma.MW, of, _ rdma.MR) rdma.SendWR {
			return rdma.SendWR{RKey: w.Rekey() + 1, Bind: &rdma.Bind{MW: w, MR: of, Buf: of.Bytes()[:10]}}
		}},
		{"memory outside of the region", func(_ *end, w rdma.MW, of, _ rdma.MR) rdma.SendWR {
			return rdma.SendWR{RKey: w.Rekey(), Bind: &rdma.Bind{MW: w, MR: of, Buf: make([]byte, 10)}}
		}},
		{"a region that allows none", func(_ *end, w rdma.MW, _, closed rdma.MR) rdma.SendWR {
			return rdma.SendWR{RKey: w.Rekey(), Bind: &rdma.Bind{MW: w, MR: closed, Buf: closed.Bytes()[:10]}}
		}},
		{"remote write without local write", func(b *end, w rdma.MW, _, _ rdma.MR) rdma.SendWR {
			m := b.register(make([]byte, 10), rdma.WindowBind)
			return rdma.SendWR{RKey: w.Rekey(), Bind: &rdma.Bind{MW: w, MR: m, Buf: m.Bytes(), Access: rdma.RemoteWrite}}
		}},
		{"the end of a key that names nothing", func(_ *end, w rdma.MW, _, _ rdma.MR) rdma.SendWR {
			return rdma.SendWR{Op: rdma.OpLocalInv, InvRKey: w.Rekey()}
		}},
	} {
		a, b := newEnd(t, da, rdma.CQOptions{}), newEnd(t, db, rdma.CQOptions{})
		join(a, b, port+uint16(i))
		w, err := b.pd.AllocMW()
		if !rdma.LimitsOf(db).Windows {
			refused(t, "a memory window", err)
			return
		}
		ok(t, err)
		b.on(func() {
			for _, bad := range []*rdma.Bind{nil, {}, {MW: w}} {
				if err := b.conn.QP().PostSend([]rdma.SendWR{{Op: rdma.OpBindMW, Bind: bad}}); !errors.Is(err, rdma.ErrInvalidWR) {
					t.Errorf("a bind of %+v: %v", bad, err)
				}
			}
		})
		wr := c.wr(b, w, b.register(make([]byte, 100), rdma.LocalWrite|rdma.WindowBind),
			b.register(make([]byte, 100), rdma.LocalWrite))
		wr.ID = 1
		want := rdma.LocQPOpErr
		if wr.Op != rdma.OpLocalInv {
			wr.Op, want = rdma.OpBindMW, rdma.MWBindErr
		}
		b.on(func() { err = b.conn.QP().PostSend([]rdma.SendWR{wr}) })
		if _, limited := db.(rdma.Limited); limited && errors.Is(err, rdma.ErrInvalidWR) {
			w.Close() // a Limited device may refuse it at post time
			continue
		}
		ok(t, err)
		if wc := b.completion(); wc.ID != 1 || wc.Status != want {
			t.Errorf("%s: %+v", c.what, wc)
		}
		w.Close()
	}
}

// testFastRegistration: an OpReg gives a region memory, under an L_Key and an R_Key. An OpLocalInv
// takes the memory away.
func testFastRegistration(t *testing.T, open Provider) {
	a, b := newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{})
	join(a, b, port)
	src := a.register(pattern(64, 1), 0)
	m, err := b.pd.AllocMR(1 << 12)
	if !rdma.LimitsOf(b.dev).FastRegions {
		refused(t, "a region without memory", err)
		b.on(func() {
			err = b.conn.QP().PostSend([]rdma.SendWR{{Op: rdma.OpReg, Bind: &rdma.Bind{MR: src, Buf: src.Bytes()}}})
		})
		refused(t, "a registration by work request", err)
		return
	}
	ok(t, err)
	t.Cleanup(m.Close)
	var bufs [2][]byte
	var keys [2]uint32
	for i := range bufs {
		bufs[i] = make([]byte, 64)
		keys[i] = m.Rekey()
		b.post(rdma.SendWR{
			ID: 1, Op: rdma.OpReg, Flags: rdma.Signaled, RKey: keys[i],
			Bind: &rdma.Bind{MR: m, Buf: bufs[i], Access: rdma.LocalWrite | rdma.RemoteWrite},
		})
		if wc := b.succeeded(1); wc.Op != rdma.WCReg {
			t.Errorf("%+v", wc)
		}
		b.recv(2, part(m, 32, 32))
		a.post(
			transfer(rdma.OpWrite, part(src, 0, 32), m),
			rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: part(src, 32, 32)})
		a.succeeded(3)
		b.succeeded(2)
		if !bytes.Equal(bufs[i], src.Bytes()) {
			t.Errorf("memory %d has other bytes", i)
		}
		b.exec(rdma.SendWR{Op: rdma.OpLocalInv, InvRKey: keys[i]})
		if m.RKey() != 0 || m.Bytes() != nil {
			t.Errorf("the region has memory and the key %#x after it was invalidated", m.RKey())
		}
	}
	a.post(rdma.SendWR{ID: 5, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: part(src, 0, 1), RemoteAddr: 0, RKey: keys[1]})
	if wc := a.completion(); wc.Status != rdma.RemAccessErr {
		t.Errorf("with a key that has ended: %+v", wc)
	}
}
