package rdmatest

import (
	"errors"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// end is one side of a connection whose queues and queue pair the test uses directly. Its fields
// belong to the loop, or to a test that waits for the loop.
type end struct {
	t        testing.TB
	dev      rdma.Device
	loop     rdma.Loop
	pd       rdma.PD
	cq       rdma.CQ
	conn     rdma.Conn
	up       chan error
	wcs      chan rdma.WC
	note     chan struct{} // one for each event of the completion queue
	qpEvents chan rdma.QPEvent
	cfg      rdma.QPConfig
}

// newEnd makes an end without a connection. o changes the options of its completion queue.
func newEnd(t testing.TB, d rdma.Device, o rdma.CQOptions) *end {
	t.Helper()
	e := &end{
		t: t, dev: d, loop: d.Loops()[0], up: make(chan error, 1), wcs: make(chan rdma.WC, 1024),
		note: make(chan struct{}, 1024), qpEvents: make(chan rdma.QPEvent, 16),
	}
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
		PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, Caps: rdma.QPCaps{
			MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2,
			MaxInline: 64,
		},
		OnEvent: func(v rdma.QPEvent) { e.qpEvents <- v },
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

// do runs fn on the loop and fails the test if fn returns an error.
func (e *end) do(fn func() error) {
	e.t.Helper()
	var err error
	e.on(func() { err = fn() })
	ok(e.t, err)
}

// completion waits for the next completion.
func (e *end) completion() rdma.WC {
	e.t.Helper()
	return await(e.t, e.wcs, "no completion")
}

// succeeded waits for the next completion. It must be a success of request id.
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
	await(e.t, e.note, "no event")
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

// errOtherLoop means that a request came to another loop than that of the end.
var errOtherLoop = errors.New("another loop got the request")

// join connects a to b. A device with several loops gives each request to another loop. b rejects
// requests until its own loop gets one.
func join(a, b *end, port uint16) {
	a.t.Helper()
	t := a.t
	params := rdma.ConnParams{ResponderResources: 8, InitiatorDepth: 8}
	l, err := b.dev.Listen(port, func(r rdma.ConnRequest) {
		if r.Loop() != b.loop {
			r.Reject(rejectConsumer, nil)
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
			errs[i] = await(t, e.up, "not connected")
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

// recv posts a receive.
func (e *end) recv(id uint64, sgl []rdma.SGE) {
	e.t.Helper()
	e.do(func() error { return e.conn.QP().PostRecv([]rdma.RecvWR{{ID: id, SGL: sgl}}) })
}

// exec posts a request and waits for the next completion, which must be a success of this request.
func (e *end) exec(wr rdma.SendWR) {
	e.t.Helper()
	const id = 1 << 40
	wr.ID, wr.Flags = id, wr.Flags|rdma.Signaled
	e.post(wr)
	e.succeeded(id)
}

func (e *end) post(wrs ...rdma.SendWR) {
	e.t.Helper()
	e.do(func() error { return e.conn.QP().PostSend(wrs) })
}

// whole is a region as a gather or scatter list.
func whole(m rdma.MR) []rdma.SGE { return part(m, 0, len(m.Bytes())) }

// transfer is a READ, WRITE or SEND between a list and a region of the peer.
func transfer(op rdma.SendOp, sgl []rdma.SGE, to rdma.MR) rdma.SendWR {
	return rdma.SendWR{Op: op, SGL: sgl, RemoteAddr: to.Addr(), RKey: to.RKey()}
}

// part is bytes of a region as a gather or scatter list.
func part(m rdma.MR, off, n int) []rdma.SGE {
	return []rdma.SGE{{Buf: m.Bytes()[off : off+n], LKey: m.LKey()}}
}

// settle waits until the loop has had a turn.
func (e *end) settle() {
	e.t.Helper()
	for range 2 {
		e.on(func() {})
	}
}
