package rc

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// rxe models the requester of the Linux kernel's rdma_rxe for SENDs of one packet. After a NAK it
// sends only the oldest packet and stops, without a timer, until another acknowledgement arrives.
// It ignores a second NAK unless an ACK came in between.
type rxe struct {
	una, next int // packets acknowledged, and sent
	total     int
	retried   bool // a NAK had an effect, and no ACK has come since
	stuck     bool // does not continue any more
}

// hear handles an ACK or NAK that acknowledges all packets before psn. It returns the packets that
// rxe sends.
func (x *rxe) hear(psn int, nak bool) (sends []int) {
	if psn > x.una {
		x.una, x.retried = psn, false
	}
	switch {
	case x.stuck:
		return nil
	case !nak:
		x.retried = false
	case !x.retried && x.una < x.next:
		x.retried = true
		return []int{x.una}
	}
	return nil
}

const (
	repeatStart = 0xfffff0 // PSNs wrap in the test
)

// repeatWorld is a QP of ours whose peer is an rxe.
type repeatWorld struct {
	t     *testing.T
	p     *pair
	x     rxe
	rnd   *rand.Rand
	loss  float64
	wire  []repeatFlight
	delay rdma.Time
	naks  int
	acks  int
}

type repeatFlight struct {
	at  rdma.Time
	psn int // of a request to us, from 0
}

func newRepeatWorld(t *testing.T, seed uint64, total int) *repeatWorld {
	w := &repeatWorld{
		t: t, p: newPair(t, 1024, repeatStart-1, 1<<16), rnd: rand.New(rand.NewPCG(seed, 2)),
		delay: 20 * rdma.Microsecond,
	}
	w.x.total = total
	w.p.s[0].q.req.measured(w.p.now, 2*w.delay) // of replies
	for range total {
		w.p.recv(0, 0, 64)
	}
	return w
}

func (w *repeatWorld) send(psns ...int) {
	for _, n := range psns {
		w.x.next = max(w.x.next, n+1)
		if w.loss == 0 || w.rnd.Float64() >= w.loss {
			w.wire = append(w.wire, repeatFlight{w.p.now + w.delay, n})
		}
	}
}

func (w *repeatWorld) packet(n int) *wire.Packet {
	q := w.p.s[0].q
	return &wire.Packet{
		Op: wire.SendOnly, AckReq: true, PKey: wire.DefaultPKey, DestQPN: q.Num(), PSN: wire.PSN(repeatStart).Add(n),
		Payload: []byte("call"), Src: q.flow.Dst, Dst: q.flow.Src,
	}
}

// step moves to the next event, and reports false if there is none.
func (w *repeatWorld) step() bool {
	q := w.p.s[0].q
	for q.HasWork(w.p.now) {
		w.p.batch.Reset()
		q.Transmit(w.p.now, w.p.batch)
		for i := range w.p.batch.D {
			var p wire.Packet
			raw := append([]byte(nil), w.p.batch.D[i].Hdr...)
			if err := p.Parse(append(raw, 0, 0, 0, 0)); err != nil || p.Op != wire.Acknowledge {
				w.t.Fatalf("sent %v, %v", p.Op, err)
			}
			psn := int(p.PSN.Sub(wire.PSN(repeatStart)))
			nak := p.AETH.Syndrome == wire.NAKSequence
			if nak {
				w.naks++
			} else {
				w.acks++
				psn++
			}
			if w.loss == 0 || w.rnd.Float64() >= w.loss {
				w.send(w.x.hear(psn, nak)...)
			}
		}
	}
	next := q.Deadline()
	for _, f := range w.wire {
		next = rdma.Earlier(next, f.at)
	}
	if next == 0 {
		return false
	}
	w.p.now = max(w.p.now, next)
	rest := w.wire[:0:0]
	for _, f := range w.wire {
		if f.at <= w.p.now {
			q.Receive(w.p.now, w.packet(f.psn))
		} else {
			rest = append(rest, f)
		}
	}
	w.wire = rest
	if d := q.Deadline(); d != 0 && d <= w.p.now {
		q.Expire(w.p.now)
	}
	w.p.poll(w.p.s[0])
	return true
}

// TestNAKRepeats: one packet of four is lost. The peer sends only this packet and stops. The
// repeated ACKs and NAKs make it continue within milliseconds. They end when all packets have
// arrived.
func TestNAKRepeats(t *testing.T) {
	w := newRepeatWorld(t, 1, 4)
	w.x.next = 1 // packet 0 is lost
	w.send(1, 2, 3)
	start := w.p.now
	for w.step() {
	}
	if got := len(w.p.s[0].got); got != 4 || w.p.s[0].q.State() != rdma.StateRTS {
		t.Fatalf("%d of 4 messages arrived; %v", got, w.p.s[0].q.Err())
	}
	if d := w.p.now - start; d > 20*rdma.Millisecond {
		t.Errorf("it took %d ms", d/rdma.Millisecond)
	}
	if c := w.p.s[0].q.Counters(); c.TxNAKRepeats == 0 || c.TxNAKRepeats > 6 || c.PeerStopped != 0 {
		t.Errorf("%d repeated NAKs", c.TxNAKRepeats)
	}
	if at := w.p.s[0].q.Deadline(); at != 0 {
		t.Errorf("a deadline at %d with nothing missing", at)
	}
}

// TestNAKRepeatsAfterHandover: another process continues with the queue pair while a packet is
// missing. It repeats ACK and NAK to the peer that has stopped.
func TestNAKRepeatsAfterHandover(t *testing.T) {
	for after := range 12 { // steps of the world
		w := newRepeatWorld(t, 1, 4)
		w.x.next = 1 // packet 0 is lost
		w.send(1, 2, 3)
		start := w.p.now
		for i := 0; w.step(); i++ {
			b := w.p.s[0]
			if i != after {
				continue
			}
			s, err := b.q.Export()
			if err != nil {
				t.Fatal(err)
			}
			q := New(Config{Num: b.q.Num(), PD: 1, Mem: b.mem, Caps: b.q.cfg.Caps})
			if err := q.Import(w.p.now, &s); err != nil {
				t.Fatal(err)
			}
			b.q = q
			for range 4 - len(b.got) {
				w.p.recv(0, 0, 64)
			}
		}
		if got := len(w.p.s[0].got); got != 4 || w.p.s[0].q.State() != rdma.StateRTS {
			t.Errorf("after step %d: %d of 4 messages arrived; %v", after, got, w.p.s[0].q.Err())
		}
		if d := w.p.now - start; d > 40*rdma.Millisecond {
			t.Errorf("after step %d: the last of it came after %v ms", after, d/rdma.Millisecond)
		}
	}
}

// TestNAKRepeatsOverALossyWire: packets are lost in both directions. All messages of such a peer
// arrive, no connection ends, and no silence is long.
func TestNAKRepeatsOverALossyWire(t *testing.T) {
	for _, seed := range seeds(t, 200) {
		w := newRepeatWorld(t, seed, 60)
		w.loss = []float64{0.02, 0.05}[seed%2]
		last, most := w.p.now, rdma.Time(0)
		for got := 0; ; {
			// Eight calls are in flight. The last ones are sent repeatedly, because only a packet
			// behind a loss shows the loss.
			for w.x.next < min(got+8, w.x.total) {
				w.send(w.x.next)
			}
			if !w.step() {
				if got == w.x.total {
					break
				}
				w.send(w.x.next - 1)
			}
			if n := len(w.p.s[0].got); n > got {
				most = max(most, w.p.now-last)
				last, got = w.p.now, n
			}
			if q := w.p.s[0].q; q.State() != rdma.StateRTS {
				t.Fatalf("seed %d: %v after %d messages", seed, q.Err(), got)
			}
		}
		if most > nakRepeatEnd/2 {
			t.Errorf("seed %d: nothing for %d ms", seed, most/rdma.Millisecond)
		}
	}
}

// TestPeerStopped: a peer that does not continue is given up after nakRepeatEnd, with no more
// repetitions than fit this time.
func TestPeerStopped(t *testing.T) {
	w := newRepeatWorld(t, 1, 4)
	w.x.stuck = true
	w.send(1, 2)
	start := w.p.now
	for w.step() {
	}
	q := w.p.s[0].q
	if d := w.p.now - start; q.State() != rdma.StateErr || !errors.Is(q.Err(), ErrPeerStopped) || d < nakRepeatEnd ||
		d > nakRepeatEnd+rdma.Second {
		t.Errorf("%v, %v after %d ms", q.State(), q.Err(), d/rdma.Millisecond)
	}
	if !strings.Contains(q.Err().Error(), "192.0.2.2") {
		t.Errorf("%v", q.Err())
	}
	if c := q.Counters(); c.PeerStopped != 1 || c.TxNAKRepeats < 8 || c.TxNAKRepeats > 24 || w.acks > 24 || w.naks > 25 {
		t.Errorf("%d repeated NAKs, %d ACKs, %d NAKs", c.TxNAKRepeats, w.acks, w.naks)
	}
}

// TestNoRepeats: a NAK is not repeated if it is an RNR NAK, if a guessed PSN far ahead has caused
// it, or if the round trip is longer than the interval of repetition.
func TestNoRepeats(t *testing.T) {
	t.Run("not ready", func(t *testing.T) {
		w := newRepeatWorld(t, 1, 0)
		w.send(0, 1, 2) // no receive is posted
		for w.step() {
		}
		if c := w.p.s[0].q.Counters(); c.TxRNR != 1 || c.TxNAKRepeats != 0 || w.p.s[0].q.State() != rdma.StateRTS {
			t.Errorf("%d RNR NAKs, %d repeated NAKs", c.TxRNR, c.TxNAKRepeats)
		}
	})
	t.Run("a sequence number that was guessed", func(t *testing.T) {
		w := newRepeatWorld(t, 1, 4)
		for _, n := range []int{nakRepeatSpan + 1, 1 << 20, 1<<23 - 1} {
			w.send(n)
		}
		for w.step() {
		}
		if c := w.p.s[0].q.Counters(); c.TxNAKRepeats != 0 || w.p.s[0].q.State() != rdma.StateRTS {
			t.Errorf("%d repeated NAKs, %v", c.TxNAKRepeats, w.p.s[0].q.Err())
		}
	})
	t.Run("a long way", func(t *testing.T) {
		// The round trip is known to be 12 ms. The first repetition waits for the peer's answer to
		// the NAK.
		p := newPair(t, 1024, 7, 1<<16)
		p.delay = 6 * rdma.Millisecond
		send := func(i int) {
			p.post(i, rdma.SendWR{
				Op: rdma.OpWrite, SGL: p.s[i].sge(0, 9000), RemoteAddr: pairVA, RKey: pairKey,
				Flags: rdma.Signaled,
			})
		}
		for n := range 10 {
			send(0)
			send(1)
			p.until(10*rdma.Second, func() bool { return len(p.s[0].sent) > n && len(p.s[1].sent) > n })
		}
		send(0)
		p.batch.Reset()
		p.s[0].q.Transmit(p.now, p.batch)
		for i := range p.batch.D {
			if i != 1 { // it is lost
				p.fly(1, &p.batch.D[i])
			}
		}
		p.until(10*rdma.Second, func() bool { return len(p.s[0].sent) == 11 })
		if c := p.s[1].q.Counters(); c.TxNAKRepeats != 0 || c.TxNAKSequence == 0 {
			t.Errorf("%d repeated NAKs, %d NAKs", c.TxNAKRepeats, c.TxNAKSequence)
		}
	})
}

// TestRepeatedACKs: a duplicate shows that its ACK was lost. The ACK is repeated a few times,
// because it may be lost again and the peer may send no more duplicates. It is not repeated once
// the peer sends new packets, and not on one host, where the peer is rstored.
func TestRepeatedACKs(t *testing.T) {
	for _, c := range []struct{ goesOn, local bool }{{}, {goesOn: true}, {local: true}, {true, true}} {
		goesOn := c.goesOn
		w := newRepeatWorld(t, 1, 3)
		if c.local {
			w.p.s[0].q.OmitICRC()
		}
		w.send(0, 1)
		for w.step() {
		}
		w.acks = 0
		w.send(0)
		w.step()
		w.step()
		if goesOn {
			w.send(2)
		}
		start := w.p.now
		for w.step() {
		}
		q := w.p.s[0].q
		least, most := 1+ackRepeats, 1+ackRepeats
		switch {
		case goesOn:
			least, most = 2, 3
		case c.local:
			least, most = 1, 1
		}
		if w.acks < least || w.acks > most || w.naks != 0 || q.State() != rdma.StateRTS || q.Deadline() != 0 {
			t.Errorf("%+v: %d ACKs, want %d to %d, %d NAKs, %v", c, w.acks, least, most, w.naks, q.State())
		}
		if d := w.p.now - start; d > rdma.Second {
			t.Errorf("it took %d ms", d/rdma.Millisecond)
		}
	}
}
