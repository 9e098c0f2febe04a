package rdmatest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
)

// end is one side of a connection of which the test has queues and queue pair in its own
// hands. Its fields are for the loop, and for who waits on it.
type end struct {
	t    testing.TB
	dev  rdma.Device
	loop rdma.Loop
	pd   rdma.PD
	cq   rdma.CQ
	conn rdma.Conn
	up   chan error
	wcs  chan rdma.WC
	note chan struct{} // one for each event of the completion queue
	told chan rdma.QPEvent
	cfg  rdma.QPConfig
}

// newEnd makes queues; o may ask for other than what is usual.
func newEnd(t testing.TB, d rdma.Device, o rdma.CQOptions) *end {
	t.Helper()
	e := &end{t: t, dev: d, loop: d.Loops()[0], up: make(chan error, 1), wcs: make(chan rdma.WC, 1024),
		note: make(chan struct{}, 1024), told: make(chan rdma.QPEvent, 16)}
	var err error
	e.pd, err = d.AllocPD()
	ok(t, err)
	if o.Depth == 0 {
		o.Depth = 256
	}
	o.OnEvent = func() {
		e.note <- struct{}{}
		if !o.Armed {
			e.drain()
		}
	}
	e.on(func() { e.cq, err = d.CreateCQ(e.loop, o) })
	ok(t, err)
	e.cfg = rdma.QPConfig{
		PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, Caps: rdma.QPCaps{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2,
			MaxInline: 64},
		OnEvent: func(v rdma.QPEvent) { e.told <- v },
	}
	return e
}

// drain moves the completions to wcs. On the loop.
func (e *end) drain() {
	var wc [16]rdma.WC
	for n := e.cq.Poll(wc[:]); n > 0; n = e.cq.Poll(wc[:]) {
		for _, w := range wc[:n] {
			e.wcs <- w
		}
	}
}

// on runs fn on the loop and waits for it.
func (e *end) on(fn func()) {
	e.t.Helper()
	done := make(chan struct{})
	if !e.loop.Submit(func() { fn(); close(done) }) {
		e.t.Fatal("the loop has ended")
	}
	<-done
}

// do runs fn on the loop and fails the test if it does.
func (e *end) do(fn func() error) {
	e.t.Helper()
	var err error
	e.on(func() { err = fn() })
	ok(e.t, err)
}

// completion is the next completion.
func (e *end) completion() rdma.WC {
	e.t.Helper()
	select {
	case wc := <-e.wcs:
		return wc
	case <-time.After(patience):
		e.t.Fatal("no completion")
	}
	panic("not reached")
}

// succeeded takes the next completion, which must be of the request, and good.
func (e *end) succeeded(id uint64) rdma.WC {
	e.t.Helper()
	wc := e.completion()
	if wc.ID != id || wc.Status != rdma.Success {
		e.t.Fatalf("request %d: %+v", id, wc)
	}
	return wc
}

// event waits for an event of the completion queue.
func (e *end) event() {
	e.t.Helper()
	select {
	case <-e.note:
	case <-time.After(patience):
		e.t.Fatal("no event")
	}
}

func (e *end) register(buf []byte, access rdma.Access) rdma.MR {
	e.t.Helper()
	m, err := e.pd.Register(buf, access)
	ok(e.t, err)
	e.t.Cleanup(m.Close)
	return m
}

func (e *end) events(_ rdma.Conn, v rdma.ConnEvent) {
	switch v.Kind {
	case rdma.EventEstablished:
		e.up <- nil
	case rdma.EventDisconnected:
	default:
		e.up <- v.Err
	}
}

// errOtherLoop is what a dial fails with whose request came to another loop.
var errOtherLoop = errors.New("another loop was asked")

// join connects a to b. A device of several loops gives each request to another one; b
// refuses until its own has it.
func join(a, b *end, port uint16) {
	a.t.Helper()
	t := a.t
	params := rdma.ConnParams{ResponderResources: 8, InitiatorDepth: 8}
	l, err := b.dev.Listen(port, func(r rdma.ConnRequest) {
		if r.Loop() != b.loop {
			r.Reject(consumerReject, nil)
			b.up <- errOtherLoop
			return
		}
		c, err := r.Accept(b.cfg, params, nil, b.events)
		if b.conn = c; err != nil {
			b.up <- err
		}
	})
	ok(t, err)
	for {
		a.do(func() (err error) {
			a.conn, err = a.dev.Dial(a.loop, rdma.DialParams{Remote: l.Addr(), QP: a.cfg, Params: params, On: a.events})
			return err
		})
		var errs [2]error
		for i, e := range []*end{a, b} {
			select {
			case errs[i] = <-e.up:
			case <-time.After(patience):
				t.Fatal("not connected")
			}
		}
		if errs[1] != errOtherLoop {
			ok(t, errors.Join(errs[:]...))
			break
		}
		a.on(a.conn.Close)
	}
	for _, e := range []*end{a, b} {
		t.Cleanup(func() {
			e.loop.Submit(func() { e.conn.Close() })
		})
	}
	ok(t, l.Close())
}

// consumerReject is the reason code of a REJ by a user.
const consumerReject = 28

func (e *end) post(wrs ...rdma.SendWR) {
	e.t.Helper()
	e.do(func() error { return e.conn.QP().PostSend(wrs) })
}

// part is bytes of a region as a gather or scatter list.
func part(m rdma.MR, off, n int) []rdma.SGE {
	return []rdma.SGE{{Buf: m.Bytes()[off : off+n], LKey: m.LKey()}}
}

// testSharedReceives: two connections take their receives from one queue, which tells when
// it runs low; a message that finds none waits.
func testSharedReceives(t *testing.T, open Provider) {
	da, db := open(t), open(t)
	b := [2]*end{newEnd(t, db, rdma.CQOptions{}), newEnd(t, db, rdma.CQOptions{})}
	b[1].pd = b[0].pd
	low := make(chan int, 4)
	var srq rdma.SRQ
	b[0].do(func() (err error) {
		srq, err = db.CreateSRQ(b[0].loop, rdma.SRQConfig{PD: b[0].pd, MaxWR: 8, MaxSGE: 1,
			OnLimit: func() { low <- srq.Len() }})
		return err
	})
	const size = 10000
	mem := b[0].register(make([]byte, 8*size), rdma.LocalWrite)
	recv := func(i int) rdma.RecvWR { return rdma.RecvWR{ID: uint64(i), SGL: part(mem, i*size, size)} }
	b[0].do(func() error {
		if err := srq.PostRecv(make([]rdma.RecvWR, 9)); !errors.Is(err, rdma.ErrQueueFull) {
			t.Errorf("9 receives in a queue of 8: %v", err)
		}
		srq.Arm(2)
		return srq.PostRecv([]rdma.RecvWR{recv(0), recv(1), recv(2)})
	})
	a := [2]*end{newEnd(t, da, rdma.CQOptions{}), newEnd(t, da, rdma.CQOptions{})}
	var src [2]rdma.MR
	for i := range a {
		b[i].cfg.SRQ, b[i].cfg.PD = srq, b[0].pd
		join(a[i], b[i], port+uint16(i))
		src[i] = a[i].register(pattern(size, byte(i)), 0)
	}
	b[0].on(func() {
		if err := b[0].conn.QP().PostRecv([]rdma.RecvWR{{}}); !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("a receive posted to the queue pair: %v", err)
		}
		if err := srq.Close(); !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("the queue was closed under its queue pairs: %v", err)
		}
	})
	for i, n := range []int{size, 17} {
		a[i].post(rdma.SendWR{ID: 9, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: part(src[i], 0, n)})
		a[i].succeeded(9)
		wc := b[i].succeeded(uint64(i))
		if int(wc.ByteLen) != n || !bytes.Equal(mem.Bytes()[i*size:i*size+n], src[i].Bytes()[:n]) {
			t.Errorf("message %d: %+v", i, wc)
		}
	}
	select {
	case n := <-low:
		if n >= 3 { // a device may say so before the message has ended
			t.Errorf("low with %d receives left", n)
		}
	case <-time.After(patience):
		t.Error("nobody said that the queue runs low")
	}
	// The third receive, a message that takes it, and one that finds none.
	if iwarp(db) {
		b[0].do(func() error { return srq.PostRecv([]rdma.RecvWR{recv(3)}) })
	}
	for i := range a {
		a[i].post(rdma.SendWR{ID: 10, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline,
			SGL: []rdma.SGE{{Buf: []byte{1, 2}}}})
	}
	if !iwarp(db) {
		b[0].do(func() error { return srq.PostRecv([]rdma.RecvWR{recv(3)}) })
	}
	got := map[uint64]bool{}
	for i := range a {
		a[i].succeeded(10)
		wc := b[i].completion()
		got[wc.ID] = wc.Status == rdma.Success
	}
	if len(got) != 2 || !got[2] || !got[3] {
		t.Errorf("the receives %v were taken", got)
	}
	// A queue pair in ERR leaves the queue to the others.
	b[0].do(func() error { return srq.PostRecv([]rdma.RecvWR{recv(4)}) })
	b[0].do(func() error { return b[0].conn.QP().Modify(rdma.QPAttr{State: rdma.StateErr}) })
	select {
	case v := <-b[0].told:
		if v != rdma.LastWQEReached {
			t.Errorf("event %d", v)
		}
	case <-time.After(patience):
		t.Error("nobody said that no receive completes any more")
	}
	b[0].do(func() error {
		if err := srq.PostRecv([]rdma.RecvWR{{SGL: make([]rdma.SGE, 2)}}); !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("a receive of two elements: %v", err)
		}
		return nil
	})
	a[1].post(rdma.SendWR{ID: 11, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: part(src[1], 0, 5)})
	b[1].succeeded(4)
	b[0].do(func() error {
		if err := srq.PostRecv([]rdma.RecvWR{recv(5)}); err != nil {
			return err
		}
		b[0].conn.Close()
		b[1].conn.Close()
		if err := srq.Close(); err != nil || srq.Len() != 0 {
			t.Errorf("%d receives are left: %v", srq.Len(), err)
		}
		return nil
	})
}

// testInline: the data of an inline request is taken when it is posted, from memory that is
// not registered.
func testInline(t *testing.T, open Provider) {
	a, b := newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{})
	join(a, b, port)
	dst := b.register(make([]byte, 200), anyAccess)
	b.do(func() error {
		return b.conn.QP().PostRecv([]rdma.RecvWR{{ID: 1, SGL: part(dst, 100, 100)}})
	})
	buf := []byte("0123456789abcdef")
	sgl := []rdma.SGE{{Buf: buf[:7]}, {Buf: buf[7:]}}
	a.do(func() error {
		q := a.conn.QP()
		if err := q.PostSend([]rdma.SendWR{{Op: rdma.OpSend, Flags: rdma.Inline,
			SGL: []rdma.SGE{{Buf: make([]byte, 65)}}}}); !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("65 bytes where 64 are taken: %v", err)
		}
		if err := q.PostSend([]rdma.SendWR{{Op: rdma.OpRead, Flags: rdma.Inline, SGL: sgl, RemoteAddr: dst.Addr(),
			RKey: dst.RKey()}}); !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("an inline READ: %v", err)
		}
		err := q.PostSend([]rdma.SendWR{
			{Op: rdma.OpWrite, Flags: rdma.Inline, SGL: sgl, RemoteAddr: dst.Addr(), RKey: dst.RKey()},
			{ID: 2, Op: rdma.OpSend, Flags: rdma.Inline | rdma.Signaled, SGL: sgl},
		})
		clear(buf)
		return err
	})
	a.succeeded(2)
	if wc := b.succeeded(1); wc.ByteLen != 16 {
		t.Errorf("%+v", wc)
	}
	for _, off := range []int{0, 100} {
		if s := string(dst.Bytes()[off : off+16]); s != "0123456789abcdef" {
			t.Errorf("at %d arrived %q", off, s)
		}
	}
}

// testInlineMost: queue pairs take as much inline data as the device says, and no more.
func testInlineMost(t *testing.T, open Provider) {
	a, b := newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{})
	n := 64
	if lim := rdma.LimitsOf(a.dev); lim.Inline > 0 {
		n = lim.Inline
		caps := a.cfg
		caps.Caps.MaxInline = n + 1
		a.on(func() {
			q, err := a.dev.CreateQP(a.loop, caps)
			if !errors.Is(err, rdma.ErrInvalidWR) {
				t.Errorf("%d bytes inline where the device has %d: %v", n+1, n, err)
			}
			if err == nil {
				q.Destroy()
			}
		})
	}
	a.cfg.Caps.MaxInline = n
	join(a, b, port)
	dst := b.register(make([]byte, 2*n), anyAccess)
	b.do(func() error {
		return b.conn.QP().PostRecv([]rdma.RecvWR{{ID: 1, SGL: part(dst, n, n)}})
	})
	data := pattern(n, 1)
	sgl := []rdma.SGE{{Buf: data[:n-1]}, {Buf: data[n-1:]}}
	a.post(
		rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.Inline, SGL: sgl, RemoteAddr: dst.Addr(), RKey: dst.RKey()},
		rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: rdma.Inline | rdma.Signaled, SGL: sgl})
	a.succeeded(2)
	b.succeeded(1)
	if !bytes.Equal(dst.Bytes()[:n], data) || !bytes.Equal(dst.Bytes()[n:], data) {
		t.Errorf("%d bytes inline arrived as others", n)
	}
}

// testMemoryWindow: a window that is bound by a work request opens a part of a region to one
// queue pair, until it is invalidated from here or there.
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
		return rdma.SendWR{ID: 1, Op: rdma.OpBindMW, Flags: rdma.Signaled, RKey: key,
			Bind: &rdma.Bind{MW: w, MR: of, Buf: of.Bytes()[100:164], Access: rdma.RemoteWrite}}
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
	// Bound anew, after the owner and then the peer has invalidated it.
	b.post(rdma.SendWR{ID: 3, Op: rdma.OpLocalInv, Flags: rdma.Signaled, InvRKey: key})
	b.succeeded(3)
	again := w.Rekey()
	if again == key || w.RKey() != 0 {
		t.Errorf("the keys %#x, then %#x; the window has %#x", key, again, w.RKey())
	}
	b.post(bind(again))
	b.succeeded(1)
	b.do(func() error {
		return b.conn.QP().PostRecv([]rdma.RecvWR{{ID: 4, SGL: part(of, 0, 1)}})
	})
	a.post(rdma.SendWR{ID: 5, Op: rdma.OpSendInv, Flags: rdma.Signaled, InvRKey: again})
	a.succeeded(5)
	if wc := b.succeeded(4); wc.Flags&rdma.WithInv == 0 || wc.InvRKey != again || w.RKey() != 0 {
		t.Errorf("%+v, and the window has the key %#x", wc, w.RKey())
	}
	last := w.Rekey()
	b.post(bind(last))
	b.succeeded(1)
	// The key of one queue pair is none to another of the same domain.
	c, d := newEnd(t, da, rdma.CQOptions{}), newEnd(t, db, rdma.CQOptions{})
	d.cfg.PD = b.pd
	join(c, d, port+1)
	other := c.register(pattern(64, 2), 0)
	c.post(rdma.SendWR{ID: 6, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: part(other, 0, 64),
		RemoteAddr: of.Addr() + 100, RKey: last})
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

// refused: what a device does not offer fails with ErrUnsupported.
func refused(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("%s, which the device does not offer: %v", what, err)
	}
}

// testBadBinds: what cannot be bound fails the request, and with it the connection.
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
			w.Close() // as good
			continue
		}
		ok(t, err)
		if wc := b.completion(); wc.ID != 1 || wc.Status != want {
			t.Errorf("%s: %+v", c.what, wc)
		}
		w.Close()
	}
}

// testFastRegistration: a region gets its memory by a work request, under a key for local
// and one for remote use, and loses it by another.
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
		b.post(rdma.SendWR{ID: 1, Op: rdma.OpReg, Flags: rdma.Signaled, RKey: keys[i],
			Bind: &rdma.Bind{MR: m, Buf: bufs[i], Access: rdma.LocalWrite | rdma.RemoteWrite}})
		if wc := b.succeeded(1); wc.Op != rdma.WCReg {
			t.Errorf("%+v", wc)
		}
		b.do(func() error {
			return b.conn.QP().PostRecv([]rdma.RecvWR{{ID: 2, SGL: part(m, 32, 32)}})
		})
		a.post(
			rdma.SendWR{Op: rdma.OpWrite, SGL: part(src, 0, 32), RemoteAddr: m.Addr(), RKey: m.RKey()},
			rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: part(src, 32, 32)})
		a.succeeded(3)
		b.succeeded(2)
		if !bytes.Equal(bufs[i], src.Bytes()) {
			t.Errorf("memory %d has other bytes", i)
		}
		b.post(rdma.SendWR{ID: 4, Op: rdma.OpLocalInv, Flags: rdma.Signaled, InvRKey: keys[i]})
		b.succeeded(4)
		if m.RKey() != 0 || m.Bytes() != nil {
			t.Errorf("the region has memory and the key %#x after it was invalidated", m.RKey())
		}
	}
	a.post(rdma.SendWR{ID: 5, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: part(src, 0, 1), RemoteAddr: 0, RKey: keys[1]})
	if wc := a.completion(); wc.Status != rdma.RemAccessErr {
		t.Errorf("with a key that has ended: %+v", wc)
	}
}

// testArming: a queue that is to be armed has one event for each Arm, and when only
// solicited ones are asked for, for a message that the peer marked so.
func testArming(t *testing.T, open Provider) {
	a, b := newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{Armed: true})
	join(a, b, port)
	dst := b.register(make([]byte, 64), rdma.LocalWrite)
	send := func(flags rdma.SendFlags) {
		t.Helper()
		b.do(func() error {
			return b.conn.QP().PostRecv([]rdma.RecvWR{{ID: 7, SGL: part(dst, 0, 64)}})
		})
		a.post(rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: flags | rdma.Signaled | rdma.Inline,
			SGL: []rdma.SGE{{Buf: []byte{1}}}})
		a.succeeded(1)
		b.settle()
	}
	quiet := func(what string) {
		t.Helper()
		select {
		case <-b.note:
			t.Errorf("an event %s", what)
		default:
		}
	}
	send(0)
	quiet("without Arm")
	b.on(func() { b.cq.Arm(false); b.drain() })
	b.succeeded(7)
	quiet("for what came before Arm")
	send(0)
	b.event()
	send(0)
	quiet("that was not asked for")
	if !iwarp(b.dev) {
		b.on(func() { b.drain(); b.cq.Arm(true) })
		send(0)
		quiet("for a message that is not solicited")
		send(rdma.Solicited)
		b.event()
	}
	b.on(func() { b.drain(); b.cq.Arm(true) })
	b.do(func() error {
		return b.conn.QP().PostRecv([]rdma.RecvWR{{ID: 8, SGL: part(dst, 0, 64)}})
	})
	b.do(func() error { return b.conn.QP().Modify(rdma.QPAttr{State: rdma.StateErr}) })
	b.event() // an error is worth one
}

// testResize: a completion queue takes more, or fewer, but not fewer than it has.
func testResize(t *testing.T, open Provider) {
	a, b := newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{Depth: 4, Armed: true})
	join(a, b, port)
	dst := b.register(make([]byte, 64), rdma.LocalWrite)
	deliver := func(from, to uint64) {
		t.Helper()
		for id := from; id < to; id++ {
			b.do(func() error {
				return b.conn.QP().PostRecv([]rdma.RecvWR{{ID: id, SGL: part(dst, 0, 64)}})
			})
			a.post(rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline, SGL: []rdma.SGE{{Buf: []byte{1}}}})
			a.succeeded(1)
		}
		b.settle()
	}
	deliver(0, 4)
	b.on(func() {
		for _, bad := range []int{0, -1, 3} {
			if err := b.cq.Resize(bad); !errors.Is(err, rdma.ErrInvalidWR) {
				t.Errorf("4 completions in %d entries: %v", bad, err)
			}
		}
		if err := b.cq.Resize(40); err != nil {
			t.Error(err)
		}
	})
	deliver(4, 40)
	b.on(b.drain)
	b.do(func() error { return b.cq.Resize(2) })
	deliver(40, 42)
	b.on(b.drain)
	for id := range uint64(42) {
		b.succeeded(id)
	}
}

// testDrain: in SQD what was begun completes, what was not waits, and the user is told
// when nothing is under way.
func testDrain(t *testing.T, open Provider) {
	a, b := newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{})
	join(a, b, port)
	src, dst := a.register(pattern(1<<20, 1), 0), b.register(make([]byte, 1<<20), anyAccess)
	wr := rdma.SendWR{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: part(src, 0, 1<<20), RemoteAddr: dst.Addr(),
		RKey: dst.RKey()}
	if quirksOf(a.dev).NoSQD {
		a.on(func() {
			if err := a.conn.QP().Modify(rdma.QPAttr{State: rdma.StateSQD}); !errors.Is(err, rdma.ErrUnsupported) {
				t.Errorf("SQD of a device that has none: %v", err)
			}
		})
		return
	}
	a.post(wr)
	a.do(func() error { return a.conn.QP().Modify(rdma.QPAttr{State: rdma.StateSQD}) })
	select {
	case v := <-a.told:
		if v != rdma.SQDrained {
			t.Errorf("event %d", v)
		}
	case <-time.After(patience):
		t.Fatal("the queue does not drain")
	}
	a.settle() // the event comes before the completions of its turn
	done := len(a.wcs)
	wr.ID = 2
	a.post(wr)
	a.settle()
	if len(a.wcs) != done {
		t.Error("a request was carried out in SQD")
	}
	a.do(func() error { return a.conn.QP().Modify(rdma.QPAttr{State: rdma.StateRTS}) })
	a.succeeded(1)
	a.succeeded(2)
}

// settle waits until the loop has had a turn.
func (e *end) settle() {
	e.t.Helper()
	for range 2 {
		e.on(func() {})
	}
}
