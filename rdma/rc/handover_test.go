package rc

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/rstored/rstored/rdma"
)

const (
	callSize  = 3000 // several packets
	replySize = 700
	bulkSize  = 20_000
	bulkAt    = 1 << 18 // of the caller's memory: WRITE goes there
	readAt    = 1 << 19 // and READ comes from there
)

// service is a pair in which side 1 serves numbered calls of side 0: for each call a READ, a WRITE
// and a reply with the number.
type service struct {
	*pair
	calls, replies int // sent, arrived
	served         int
	posted         int // receives of the server, with those in kept
	next           int // receive to be posted
	reading        int // calls whose READ is in flight
	held           bool
	kept           []rdma.WC // completed receives that are not served yet
}

func (s *service) receive() {
	const slots = 8
	for ; s.posted < slots; s.posted++ {
		s.recv(1, s.next%(2*slots)*4096, callSize)
		s.next++
	}
}

func (s *service) call() {
	a := s.s[0]
	at := s.calls % 16 * 4096
	binary.BigEndian.PutUint64(a.buf[at:], uint64(s.calls))
	s.recv(0, 1<<17+s.calls%32*1024, replySize)
	s.post(0, rdma.SendWR{ID: uint64(s.calls), Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(at, callSize)})
	s.calls++
}

// serve does what has become possible on both sides.
func (s *service) serve() {
	a, b := s.s[0], s.s[1]
	s.kept = append(s.kept, b.got...)
	b.got = b.got[:0]
	for len(s.kept) > 0 && !s.held {
		wc := s.kept[0]
		s.kept = s.kept[1:]
		if wc.Status != rdma.Success {
			s.t.Fatalf("a receive of the server: %+v", wc)
		}
		s.posted--
		if n := binary.BigEndian.Uint64(b.buf[wc.ID:]); n != uint64(s.served) || wc.ByteLen != callSize {
			s.t.Fatalf("call %d of %d bytes where %d comes", n, wc.ByteLen, s.served)
		}
		s.post(1, rdma.SendWR{
			ID: uint64(s.served), Op: rdma.OpRead, Flags: rdma.Signaled, SGL: b.sge(1<<19, bulkSize),
			RemoteAddr: pairVA + readAt, RKey: pairKey,
		})
		s.served++
		s.reading++
	}
	for _, wc := range b.sent {
		if wc.Status != rdma.Success {
			s.t.Fatalf("a request of the server: %+v", wc)
		}
		if wc.Op != rdma.WCRead {
			continue
		}
		s.reading--
		at := 1<<18 + int(wc.ID)%32*1024
		binary.BigEndian.PutUint64(b.buf[at:], wc.ID)
		s.post(1,
			rdma.SendWR{Op: rdma.OpWrite, SGL: b.sge(1<<19, bulkSize), RemoteAddr: pairVA + bulkAt, RKey: pairKey},
			rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled, SGL: b.sge(at, replySize)})
	}
	b.sent = b.sent[:0]
	s.receive()
	for _, wc := range a.got {
		if n := binary.BigEndian.Uint64(a.buf[wc.ID:]); wc.Status != rdma.Success || n != uint64(s.replies) {
			s.t.Fatalf("reply %d where %d comes: %+v", n, s.replies, wc)
		}
		s.replies++
	}
	a.got = a.got[:0]
	for _, wc := range a.sent {
		if wc.Status != rdma.Success {
			s.t.Fatalf("a call: %+v", wc)
		}
	}
	a.sent = a.sent[:0]
}

// move exports the server's QP and imports it into another QP, which replaces it.
func (s *service) move() {
	b := s.s[1]
	out, err := b.q.Export()
	if err != nil {
		s.t.Fatal(err)
	}
	var stream bytes.Buffer
	if err := gob.NewEncoder(&stream).Encode(out); err != nil {
		s.t.Fatal(err)
	}
	var in Snapshot
	if err := gob.NewDecoder(&stream).Decode(&in); err != nil {
		s.t.Fatal(err)
	}
	q := New(Config{Num: b.q.Num(), PD: 1, Mem: b.mem, Caps: b.q.cfg.Caps})
	if err := q.Import(s.now, &in); err != nil {
		s.t.Fatal(err)
	}
	b.q, s.posted, s.held = q, len(s.kept), false
	s.receive()
}

// TestHandover moves the server's end of a connection from QP to QP, while calls go over a wire
// that loses, repeats and reorders packets. Each call is served once, in order.
func TestHandover(t *testing.T) {
	for _, seed := range seeds(t, 6) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		s := &service{pair: newPair(t, rdma.MTU(256)<<rnd.IntN(5), rnd.Uint32N(1<<24), 1<<20)}
		s.rnd = rnd
		s.loss = []float64{0, 0.01, 0.05}[rnd.IntN(3)]
		s.dup, s.mix = rnd.Float64()*0.05, rnd.Float64()*0.05
		s.receive()
		const calls, moves = 60, 5
		moved, hold := 0, 0
		s.until(30*rdma.Second, func() bool {
			s.serve()
			if s.calls < calls && s.calls-s.replies < 12 && (rnd.IntN(3) == 0 || s.calls == s.replies) {
				s.call()
			}
			q := s.s[1].q
			switch {
			case !s.held && moved < moves && (s.served >= hold || s.replies == calls):
				s.held = true
			case s.held && s.reading == 0 && q.Quiescent() && (rnd.IntN(4) == 0 || s.calls-s.replies == len(s.kept)):
				s.move()
				moved++
				hold = s.served + rnd.IntN(calls/moves)
			}
			return s.calls == calls && s.replies == calls && moved == moves
		})
		if t.Failed() {
			t.Fatalf("replay with RSTORED_SEED=%d go test -run %s ./rdma/rc", seed, t.Name())
		}
	}
}

// TestExportRefused: a QP with anything in flight cannot be exported.
func TestExportRefused(t *testing.T) {
	p := newPair(t, 1024, 5, 1<<16)
	a := p.s[0]
	p.recv(1, 0, 100)
	p.post(0, rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, 100)})
	if _, err := a.q.Export(); a.q.Quiescent() || !errors.Is(err, rdma.ErrBadTransition) {
		t.Fatalf("exported with a request under way: %v", err)
	}
	p.until(rdma.Second, func() bool { return len(a.sent) == 1 })
	if _, err := a.q.Export(); err != nil {
		t.Fatal(err)
	}
	if err := a.q.Modify(p.now, rdma.QPAttr{State: rdma.StateErr}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.q.Export(); err == nil {
		t.Fatal("exported in ERR")
	}
}

// TestOmittedICRCIsHandedOver: a QP that omits the ICRC does so in all its packets, and after a
// handover as well.
func TestOmittedICRCIsHandedOver(t *testing.T) {
	p := newPair(t, 1024, 5, 1<<16)
	q := p.s[0].q
	for _, omit := range []bool{false, true} {
		if omit {
			q.OmitICRC()
		}
		out, err := q.Export()
		if err != nil {
			t.Fatal(err)
		}
		next := New(Config{Num: q.Num(), PD: 1, Mem: p.s[0].mem, Caps: q.cfg.Caps})
		if err := next.Import(p.now, &out); err != nil {
			t.Fatal(err)
		}
		for _, q := range []*QP{q, next} {
			if q.OmitsICRC() != omit || q.flow.NoICRC != omit || q.data.NoICRC != omit || q.about.NoICRC != omit {
				t.Errorf("omit %v: %v, %v, %v, %v", omit, q.OmitsICRC(), q.flow.NoICRC, q.data.NoICRC, q.about.NoICRC)
			}
		}
	}
}

// TestWideWindow: a widened window grows to localWindow packets, unless it is fixed. An export in
// between does not change that.
func TestWideWindow(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		p := newPair(t, 1024, 5, 1<<16)
		q := p.s[0].q
		q.cfg.Fixed = fixed
		q.req.window.start(sendWindow, fixed)
		q.Widen()
		want := localWindow
		if fixed {
			want = sendWindow
		}
		for range 2 {
			q.req.window.grow(4*localWindow, false)
			q.req.window.grow(4*localWindow, false)
			q.req.window.grow(4*localWindow, false)
			if n := q.req.window.packets(); n != want {
				t.Errorf("fixed %v: a window of %d packets", fixed, n)
			}
			out, err := q.Export()
			if err != nil {
				t.Fatal(err)
			}
			q = New(Config{Num: q.Num(), PD: 1, Mem: p.s[0].mem, Caps: q.cfg.Caps, Fixed: fixed})
			if err := q.Import(p.now, &out); err != nil {
				t.Fatal(err)
			}
			if n := q.req.window.packets(); n != sendWindow {
				t.Errorf("fixed %v: a window of %d packets is restored", fixed, n)
			}
			q.Widen()
		}
	}
}
