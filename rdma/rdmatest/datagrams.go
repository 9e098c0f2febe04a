package rdmatest

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// dgram is an end with a queue pair for datagrams and one region. The first half of the region is
// for receives, in pieces; the second half is for sends.
type dgram struct {
	*end
	qp rdma.QP
	mr rdma.MR
}

const (
	testQKey  = 0x11223344
	dgramSize = 256 + rdma.GRHLen // the least path MTU
)

func newDgram(t testing.TB, d rdma.Device) *dgram {
	t.Helper()
	e := &dgram{end: newEnd(t, d, rdma.CQOptions{})}
	e.mr = e.register(pattern(1<<16, 5), rdma.LocalWrite)
	e.cfg.Type = rdma.UD
	e.do(func() (err error) {
		e.qp, err = d.CreateQP(e.loop, e.cfg)
		return errors.Join(err,
			e.qp.Modify(rdma.QPAttr{State: rdma.StateInit, QKey: testQKey}),
			e.qp.Modify(rdma.QPAttr{State: rdma.StateRTR}),
			e.qp.Modify(rdma.QPAttr{State: rdma.StateRTS, SQPSN: 0xfffffe}))
	})
	t.Cleanup(func() { e.loop.Submit(e.qp.Destroy) })
	return e
}

// recv posts a receive; its ID is the number of its piece.
func (e *dgram) recv(id uint64) {
	e.t.Helper()
	e.do(func() error { return e.qp.PostRecv([]rdma.RecvWR{{ID: id, SGL: []rdma.SGE{e.piece(id)}}}) })
}

func (e *dgram) piece(id uint64) rdma.SGE {
	return rdma.SGE{Buf: e.mr.Bytes()[id*dgramSize:][:dgramSize], LKey: e.mr.LKey()}
}

// out returns n bytes of the second half, to send them.
func (e *dgram) out(n int) []rdma.SGE {
	return []rdma.SGE{{Buf: e.mr.Bytes()[1<<15:][:n], LKey: e.mr.LKey()}}
}

func (e *dgram) to(o *dgram, qkey uint32) *rdma.AH {
	return &rdma.AH{Remote: o.dev.Addr(), QPN: o.qp.Num(), QKey: qkey}
}

// say posts a send and waits for its completion.
func (e *dgram) say(wr rdma.SendWR) {
	e.t.Helper()
	wr.Flags |= rdma.Signaled
	e.do(func() error { return e.qp.PostSend([]rdma.SendWR{wr}) })
	if wc := e.succeeded(wr.ID); wc.Op != rdma.WCSend {
		e.t.Errorf("a send completed as %+v", wc)
	}
}

// noDatagrams reports whether a device has no datagrams, and checks that it refuses them.
func noDatagrams(t *testing.T, d rdma.Device) bool {
	t.Helper()
	if rdma.LimitsOf(d).Datagrams {
		return false
	}
	e := newEnd(t, d, rdma.CQOptions{})
	e.cfg.Type = rdma.UD
	var err error
	e.on(func() { _, err = d.CreateQP(e.loop, e.cfg) })
	refused(t, "a queue pair for datagrams", err)
	_, err = d.ListenUD(port, func(rdma.UDRequest) {})
	refused(t, "a service of datagrams", err)
	e.on(func() { _, err = d.ResolveUD(e.loop, rdma.ResolveParams{Remote: netip.AddrPortFrom(d.Addr(), port)}) })
	refused(t, "a question for a service", err)
	return true
}

func testDatagrams(t *testing.T, open Provider) {
	if noDatagrams(t, open(t)) {
		return
	}
	a, b := newDgram(t, open(t)), newDgram(t, open(t))
	after := newDgram(t, b.dev) // after it has received one, all earlier ones have arrived at b
	arrives := func(from, at *dgram, id uint64, data []byte, flags rdma.WCFlags) {
		t.Helper()
		wc := at.succeeded(id)
		if wc.Op != rdma.WCRecv || wc.SrcQPN != from.qp.Num() || wc.QPN != at.qp.Num() ||
			int(wc.ByteLen) != rdma.GRHLen+len(data) || wc.Flags != rdma.GRH|flags {
			t.Fatalf("%+v", wc)
		}
		got := at.piece(id).Buf[:wc.ByteLen]
		if src, dst := rdma.GRHAddrs(got); src != from.dev.Addr() || dst != at.dev.Addr() {
			t.Errorf("a datagram from %v to %v, by its header; it went from %v to %v", src, dst, from.dev.Addr(), at.dev.Addr())
		}
		if !bytes.Equal(got[rdma.GRHLen:], data) {
			t.Error("the data is not what was sent")
		}
	}
	event := rdma.WithEvent
	if quirksOf(a.dev).NoEventFlags {
		event = 0
	}
	for i, n := range []int{0, 1, 255, 256} {
		id := uint64(i)
		b.recv(id)
		a.say(rdma.SendWR{ID: 100 + id, SGL: a.out(n), AH: a.to(b, testQKey)})
		arrives(a, b, id, a.out(n)[0].Buf, 0)
		// b answers with a datagram to a.
		a.recv(id)
		b.say(rdma.SendWR{
			ID: 200, Op: rdma.OpSendImm, Imm: 0xabcdef01, Flags: rdma.Solicited, SGL: b.out(n),
			AH: b.to(a, 1<<31),
		})
		arrives(b, a, id, b.out(n)[0].Buf, rdma.WithImm|event)
	}
	// Datagrams without a receive, with another Q_Key, or longer than the receive are lost. The
	// sender gets no error.
	a.say(rdma.SendWR{ID: 1, SGL: a.out(8), AH: a.to(b, testQKey)})
	after.recv(0)
	a.say(rdma.SendWR{ID: 1, SGL: a.out(1), AH: a.to(after, testQKey)})
	after.succeeded(0)
	b.recv(7) // for all sends that follow
	a.say(rdma.SendWR{ID: 2, SGL: a.out(9), AH: a.to(b, testQKey+1)})
	if !quirksOf(b.dev).LongFails {
		a.say(rdma.SendWR{ID: 3, SGL: a.out(257), AH: a.to(b, testQKey)})
	}
	a.say(rdma.SendWR{ID: 4, SGL: a.out(5000), AH: a.to(b, testQKey)}) // more than any MTU
	inline := []byte("inline")
	a.say(rdma.SendWR{ID: 5, Flags: rdma.Inline, SGL: []rdma.SGE{{Buf: inline}}, AH: a.to(b, testQKey)})
	arrives(a, b, 7, inline, 0)

	for name, wr := range map[string]rdma.SendWR{
		"no address":   {},
		"a READ":       {Op: rdma.OpRead, AH: a.to(b, 0)},
		"QP1":          {AH: &rdma.AH{Remote: b.dev.Addr(), QPN: 1}},
		"no such host": {AH: &rdma.AH{QPN: 99}},
	} {
		var err error
		a.on(func() { err = a.qp.PostSend([]rdma.SendWR{wr}) })
		if !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A send from memory outside of the region moves the queue pair to SQE: its sends are flushed
	// until it is in RTS again.
	b.do(func() error {
		return b.qp.PostSend([]rdma.SendWR{
			{ID: 10, SGL: []rdma.SGE{{Buf: make([]byte, 4), LKey: b.mr.LKey()}}, AH: b.to(a, testQKey)},
			{ID: 11, SGL: b.out(4), AH: b.to(a, testQKey)},
		})
	})
	for i, want := range []rdma.Status{rdma.LocProtErr, rdma.WRFlushErr} {
		if wc := b.completion(); wc.ID != uint64(10+i) || wc.Status != want {
			t.Errorf("%+v, want %v", wc, want)
		}
	}
	if quirksOf(b.dev).NoSQE {
		if s := b.qp.State(); s != rdma.StateErr {
			t.Errorf("a queue pair whose send has failed is in %v", s)
		}
		return
	}
	b.recv(0)
	a.say(rdma.SendWR{ID: 6, SGL: a.out(3), AH: a.to(b, testQKey)})
	arrives(a, b, 0, a.out(3)[0].Buf, 0)
	b.do(func() error { return b.qp.Modify(rdma.QPAttr{State: rdma.StateRTS}) })
	a.recv(0)
	b.say(rdma.SendWR{ID: 12, SGL: b.out(3), AH: b.to(a, testQKey)})
	arrives(b, a, 0, b.out(3)[0].Buf, 0)
	b.recv(1)
	b.do(func() error { return b.qp.Modify(rdma.QPAttr{State: rdma.StateErr}) })
	if wc := b.completion(); wc.ID != 1 || wc.Status != rdma.WRFlushErr {
		t.Errorf("%+v", wc)
	}
}

// ask resolves the datagram service on a port of a device, and waits for the answer.
func (e *dgram) ask(p rdma.ResolveParams) rdma.UDAddress {
	e.t.Helper()
	got := make(chan rdma.UDAddress, 2)
	p.On = func(a rdma.UDAddress) { got <- a }
	e.do(func() error { _, err := e.dev.ResolveUD(e.loop, p); return err })
	return await(e.t, got, "no answer")
}

func testDatagramService(t *testing.T, open Provider) {
	if noDatagrams(t, open(t)) {
		return
	}
	a, b := newDgram(t, open(t)), newDgram(t, open(t))
	qkey := uint32(testQKey)
	if quirksOf(b.dev).NoServiceQKeys {
		qkey = rdma.UDQKey
	}
	l, err := b.dev.ListenUD(port, func(r rdma.UDRequest) {
		if r.Remote().Addr() != a.dev.Addr() || r.Local().Addr() != b.dev.Addr() || r.Local().Port() != port ||
			len(r.PrivateData()) != 180 || r.PKey() != 0xffff {
			t.Errorf("asked by %v for %v, partition %#x, with %d bytes", r.Remote(), r.Local(), r.PKey(), len(r.PrivateData()))
		}
		if bytes.HasPrefix(r.PrivateData(), []byte("no")) {
			r.Reject(rdma.SIDRNoQP, nil)
			return
		}
		if err := r.Accept(b.qp.Num(), qkey, make([]byte, 137)); err == nil {
			t.Error("137 bytes of private data were sent")
		}
		if qkey != testQKey {
			refused(t, "a Q_Key of the service's own", r.Accept(b.qp.Num(), testQKey, nil))
		}
		if err := r.Accept(b.qp.Num(), qkey, []byte("here")); err != nil {
			t.Error(err)
		}
		if err := r.Accept(b.qp.Num(), qkey, nil); err == nil {
			t.Error("answered twice")
		}
	})
	ok(t, err)
	if l.Addr().Port() != port || l.Addr().Addr() != b.dev.Addr() {
		t.Errorf("listens on %v", l.Addr())
	}
	if _, err := b.dev.ListenUD(port, func(rdma.UDRequest) {}); err == nil {
		t.Error("two services on one port")
	}
	// Listen and ListenUD have separate ports.
	c, err := b.dev.Listen(port, func(r rdma.ConnRequest) { r.Reject(rejectConsumer, nil) })
	ok(t, err)
	ok(t, c.Close())

	got := a.ask(rdma.ResolveParams{Remote: l.Addr(), PrivateData: []byte("hello")})
	ok(t, got.Err)
	if got.AH.Remote != b.dev.Addr() || got.AH.QPN != b.qp.Num() || got.AH.QKey != qkey ||
		!bytes.HasPrefix(got.PrivateData, []byte("here")) || got.PKey != 0xffff {
		t.Errorf("%+v", got)
	}
	b.recv(0)
	got.AH.QKey = testQKey // of b; a service of the kernel reports another
	a.say(rdma.SendWR{ID: 1, SGL: a.out(5), AH: &got.AH})
	if wc := b.succeeded(0); wc.ByteLen != rdma.GRHLen+5 {
		t.Errorf("%+v", wc)
	}
	if got := a.ask(rdma.ResolveParams{Remote: l.Addr(), PrivateData: []byte("no")}); got.Err == nil {
		t.Error("a refusal is an answer")
	}
	for i, p := range []rdma.ResolveParams{
		{},
		{Remote: netip.AddrPortFrom(netip.IPv6Loopback(), port)},
		{Remote: l.Addr(), PrivateData: make([]byte, 181)},
		{Remote: l.Addr(), PKey: 0x8123},
	} {
		var err error
		a.on(func() { _, err = a.dev.ResolveUD(a.loop, p) })
		if !errors.Is(err, rdma.ErrInvalidWR) {
			t.Errorf("question %d: %v", i, err)
		}
	}
	var noConn error
	a.on(func() { _, noConn = a.dev.Dial(a.loop, rdma.DialParams{Remote: l.Addr(), QP: a.cfg, On: a.events}) })
	if !errors.Is(noConn, rdma.ErrInvalidWR) {
		t.Errorf("a connection of datagrams: %v", noConn)
	}
	// A canceled resolution gets no answer. The answer to a later one shows that enough time has
	// passed.
	a.do(func() error {
		cancel, err := a.dev.ResolveUD(a.loop, rdma.ResolveParams{
			Remote: l.Addr(),
			On:     func(rdma.UDAddress) { t.Error("an abandoned question was answered") },
		})
		if err == nil {
			cancel()
			cancel()
		}
		return err
	})
	ok(t, a.ask(rdma.ResolveParams{Remote: l.Addr()}).Err)
	ok(t, l.Close())
	if err := l.Close(); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	if got := a.ask(rdma.ResolveParams{Remote: l.Addr()}); got.Err == nil {
		t.Error("nobody listens, and there is an answer")
	}
	// When a device is closed, its resolutions without an answer fail.
	last := make(chan error, 2)
	nobody := netip.AddrPortFrom(a.dev.Addr().Next(), port)
	a.do(func() error {
		_, err := a.dev.ResolveUD(a.loop, rdma.ResolveParams{Remote: nobody, On: func(r rdma.UDAddress) { last <- r.Err }})
		return err
	})
	ok(t, a.dev.Close())
	if err := <-last; !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("the device was closed: %v", err)
	}
}
