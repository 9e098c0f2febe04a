package rdmatest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// testSharedReceives: two connections share one receive queue. The queue sends an event when few
// receives are left. A message that finds no receive waits for one.
func testSharedReceives(t *testing.T, open Provider) {
	da, db := open(t), open(t)
	b := [2]*end{newEnd(t, db, rdma.CQOptions{}), newEnd(t, db, rdma.CQOptions{})}
	b[1].pd = b[0].pd
	low := make(chan int, 4)
	var srq rdma.SRQ
	b[0].do(func() (err error) {
		srq, err = db.CreateSRQ(b[0].loop, rdma.SRQConfig{
			PD: b[0].pd, MaxWR: 8, MaxSGE: 1,
			OnLimit: func() { low <- srq.Len() },
		})
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
		a[i].exec(rdma.SendWR{Op: rdma.OpSend, SGL: part(src[i], 0, n)})
		wc := b[i].succeeded(uint64(i))
		if int(wc.ByteLen) != n || !bytes.Equal(mem.Bytes()[i*size:i*size+n], src[i].Bytes()[:n]) {
			t.Errorf("message %d: %+v", i, wc)
		}
	}
	if n := await(t, low, "no event that the queue runs low"); n >= 3 { // may come early
		t.Errorf("low with %d receives left", n)
	}
	// One of the two messages takes the third receive. The other message finds none.
	if iwarp(db) {
		b[0].do(func() error { return srq.PostRecv([]rdma.RecvWR{recv(3)}) })
	}
	for i := range a {
		a[i].post(rdma.SendWR{
			ID: 10, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Inline,
			SGL: []rdma.SGE{{Buf: []byte{1, 2}}},
		})
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
	// When a queue pair is in ERR, the others still use the queue.
	b[0].do(func() error { return srq.PostRecv([]rdma.RecvWR{recv(4)}) })
	b[0].do(func() error { return b[0].conn.QP().Modify(rdma.QPAttr{State: rdma.StateErr}) })
	if v := await(t, b[0].qpEvents, "no event that no receive completes any more"); v != rdma.LastWQEReached {
		t.Errorf("event %d", v)
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

// testInline: PostSend copies the data of an inline request. The memory need not be registered.
func testInline(t *testing.T, open Provider) {
	a, b := newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{})
	join(a, b, port)
	dst := b.register(make([]byte, 200), anyAccess)
	b.recv(1, part(dst, 100, 100))
	buf := []byte("0123456789abcdef")
	sgl := []rdma.SGE{{Buf: buf[:7]}, {Buf: buf[7:]}}
	a.do(func() error {
		q := a.conn.QP()
		if err := q.PostSend([]rdma.SendWR{{
			Op: rdma.OpSend, Flags: rdma.Inline,
			SGL: []rdma.SGE{{Buf: make([]byte, 65)}},
		}}); !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("65 bytes where 64 are taken: %v", err)
		}
		if err := q.PostSend([]rdma.SendWR{{
			Op: rdma.OpRead, Flags: rdma.Inline, SGL: sgl, RemoteAddr: dst.Addr(),
			RKey: dst.RKey(),
		}}); !errors.Is(err, rdma.ErrInvalidWR) {
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

// testInlineMost: queue pairs take as much inline data as Limits.Inline, and no more.
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
	b.recv(1, part(dst, n, n))
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

// testArming: a queue with CQOptions.Armed makes one event for each Arm. After Arm(true), only an
// error or a message with the solicited-event bit makes the event.
func testArming(t *testing.T, open Provider) {
	a, b := newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{Armed: true})
	join(a, b, port)
	dst := b.register(make([]byte, 64), rdma.LocalWrite)
	send := func(flags rdma.SendFlags) {
		t.Helper()
		b.recv(7, part(dst, 0, 64))
		a.post(rdma.SendWR{
			ID: 1, Op: rdma.OpSend, Flags: flags | rdma.Signaled | rdma.Inline,
			SGL: []rdma.SGE{{Buf: []byte{1}}},
		})
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
	b.recv(8, part(dst, 0, 64))
	b.do(func() error { return b.conn.QP().Modify(rdma.QPAttr{State: rdma.StateErr}) })
	b.event() // flushed: an error makes an event
}

// testResize: Resize enlarges or shrinks a queue, but not below the completions in it.
func testResize(t *testing.T, open Provider) {
	a, b := newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{Depth: 4, Armed: true})
	join(a, b, port)
	dst := b.register(make([]byte, 64), rdma.LocalWrite)
	deliver := func(from, to uint64) {
		t.Helper()
		for id := from; id < to; id++ {
			b.recv(id, part(dst, 0, 64))
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

// testDrain: in SQD, requests that were started complete, the others wait, and the user gets an
// event when the queue has drained.
func testDrain(t *testing.T, open Provider) {
	a, b := newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{})
	join(a, b, port)
	src, dst := a.register(pattern(1<<20, 1), 0), b.register(make([]byte, 1<<20), anyAccess)
	wr := rdma.SendWR{
		ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGL: part(src, 0, 1<<20), RemoteAddr: dst.Addr(),
		RKey: dst.RKey(),
	}
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
	if v := await(t, a.qpEvents, "the queue does not drain"); v != rdma.SQDrained {
		t.Errorf("event %d", v)
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
