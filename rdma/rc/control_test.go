package rc

import (
	"bytes"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

const (
	ms  = rdma.Millisecond
	us  = rdma.Microsecond
	rtt = 100 * us
)

// rounds lets the window grow for n round trips, and returns its size in packets.
func rounds(w *window, n int, queued bool) int {
	for range n {
		w.grow(w.packets(), queued)
	}
	return w.packets()
}

// TestWindow: the window doubles at first, and halves at a loss. After a timeout it doubles up to
// half of its old size, and then grows by half a packet in a round trip.
func TestWindow(t *testing.T) {
	var w window
	w.start(200, false)
	if n := w.packets(); n != windowStart {
		t.Errorf("%d packets at the start", n)
	}
	if a, b := rounds(&w, 1, true), rounds(&w, 1, true); a != 128 || b != 200 {
		t.Errorf("%d and %d packets after a round trip and two", a, b)
	}
	w.lost(ms, rtt, true)
	if w.lost(ms+rtt/2, rtt, true); w.packets() != 100 {
		t.Errorf("%d packets after two losses in a round trip", w.packets())
	}
	if n := rounds(&w, 8, true); n != 104 && n != 103 {
		t.Errorf("%d packets after eight round trips with a queue", n)
	}
	was := w.packets()
	w.timedOut()
	if w.answered(false); w.packets() != windowMin {
		t.Errorf("%d packets after a silence", w.packets())
	}
	if n := rounds(&w, 4, true); n != windowMin<<4 {
		t.Errorf("%d packets four round trips later", n)
	}
	if n := rounds(&w, 4, true); n < was/2 || n > was/2+3 {
		t.Errorf("%d packets eight round trips later, %d before", n, was)
	}
	was = w.packets()
	w.timedOut()
	w.timedOut()
	if w.answered(true); w.packets() != was {
		t.Errorf("%d packets after a silence in which nothing was lost, %d before", w.packets(), was)
	}
	for i := range 100 {
		w.lost(rdma.Time(2+i)*ms, rtt, true)
	}
	if w.size != sizeMin || w.packets() != windowMin {
		t.Errorf("%d packets, size %d, after many losses", w.packets(), w.size)
	}
	if n := rounds(&w, 400, true); n != 200 || w.limited() {
		t.Errorf("%d packets in the end", n)
	}
}

// TestWindowDamage: without a queue a loss shrinks the window by an eighth. One of mildMax+1 losses
// halves it, to show whether there is a queue.
func TestWindowDamage(t *testing.T) {
	var w window
	w.start(128, false)
	rounds(&w, 1, false)
	now := ms
	for i, want := range []int{64, 56, 49, 42} {
		if w.lost(now, rtt, false); w.packets() != want {
			t.Errorf("%d packets after loss %d, want %d", w.packets(), i, want)
		}
		now += ms
	}
	if n := rounds(&w, 8, false); n < 60 || n > 70 {
		t.Errorf("%d packets after eight round trips without a queue", n)
	}
	halves := 0
	for range 4 * (mildMax + 1) {
		w.size = 64 * windowUnit
		if w.lost(now, rtt, false); w.packets() == 32 {
			halves++
		}
		now += ms
	}
	if halves != 4 {
		t.Errorf("%d halves in %d losses", halves, 4*(mildMax+1))
	}
	var fixed window
	fixed.start(128, true)
	fixed.lost(now, rtt, true)
	fixed.timedOut()
	if fixed.marked(now, rtt) || fixed.packets() != 128 {
		t.Errorf("a fixed window of %d packets", fixed.packets())
	}
}

// TestWindowMarks: a rare notification shrinks the window a little, frequent ones by half.
func TestWindowMarks(t *testing.T) {
	var w window
	w.start(128, false)
	w.size = w.most
	now := ms
	if !w.marked(now, rtt) || w.packets() != 64 {
		t.Errorf("%d packets after the first notification", w.packets())
	}
	if w.marked(now+rtt/2, rtt) {
		t.Error("two in a round trip")
	}
	now += 10 * ms
	w.size = 100 * windowUnit
	if w.marked(now, rtt); w.packets() < 99 {
		t.Errorf("%d packets of 100 after the first notification in 100 round trips", w.packets())
	}
	for range 100 {
		now += rtt
		w.marked(now, rtt)
	}
	w.size = 100 * windowUnit
	now += rtt
	if w.marked(now, rtt); w.packets() > 53 {
		t.Errorf("%d packets of 100 after notifications in all round trips", w.packets())
	}
}

// TestPacer: the pacer allows its rate, and no more at once than the burst.
func TestPacer(t *testing.T) {
	const rate, size = 100e6, 1000 - headerCharge
	var p pacer
	p.charge(0, size)
	if p.paced(0) {
		t.Error("a wait without a rate")
	}
	p.set(0, rate, 5000)
	at, sent, most := rdma.Time(0), 0, 0
	for at < 10*ms {
		run := 0
		for !p.paced(at) {
			p.charge(at, size)
			run++
		}
		sent, most = sent+run, max(most, run)
		if p.until <= at || p.until > at+ms {
			t.Fatalf("at %d: nothing before %d", at, p.until)
		}
		at = p.until
	}
	if sent < 990 || sent > 1010 {
		t.Errorf("%d packets of 1000 bytes in 10 ms at 100 MB/s", sent)
	}
	if most > 5 {
		t.Errorf("%d packets at once", most)
	}
	run := 0
	at += 100 * ms
	for ; !p.paced(at); run++ {
		p.charge(at, size)
	}
	if run > 6 {
		t.Errorf("%d packets at once after a pause", run)
	}
	p.set(at, 0, 0)
	if p.paced(at) {
		t.Error("a wait after the rate was lifted")
	}
}

// TestCNP: the QP answers marked data with a CNP, at most one in 50 microseconds. The CNP has the
// connection's QPN, the BECN bit and 16 bytes of zero (annex A17.9.3).
func TestCNP(t *testing.T) {
	for _, c := range []struct {
		what string
		ecn  uint8
		gap  rdma.Time
		want int
	}{
		{"unmarked", ect0, 100 * us, 0},
		{"marked, far apart", ecnCE, 100 * us, 8},
		{"marked, close together", ecnCE, 10 * us, 2},
	} {
		p, _, q := lone(t, 1)
		got := 0
		for i := range 8 {
			op := wire.WriteMiddle
			if i == 0 {
				op = wire.WriteFirst
			}
			hear(p, q, wire.Packet{
				Op: op, PSN: wire.PSN(7 + i), RETH: wire.RETH{VA: pairVA, RKey: pairKey, Len: 4096},
				Payload: bytesOf(256), ECN: c.ecn,
			})
			for _, k := range say(p, q) {
				if k.Op != wire.CNP {
					continue
				}
				got++
				if !k.BECN || k.MigReq || k.AckReq || k.PSN != 0 || !bytes.Equal(k.Payload, make([]byte, 16)) ||
					k.DestQPN != q.attr.DestQPN {
					t.Errorf("%s: %+v", c.what, k)
				}
			}
			p.now += c.gap
		}
		if got != c.want || q.n.TxCNP != uint64(c.want) {
			t.Errorf("%s: %d CNPs, want %d", c.what, got, c.want)
		}
	}
}

// TestTrafficClass: packets with data are ECN-capable, packets without data are not. Both keep the
// DSCP.
func TestTrafficClass(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		q := New(Config{Num: 1, Fixed: fixed})
		q.attr.TrafficClass = 0xab
		q.flows()
		want := uint8(0xa8 | ect0)
		if fixed {
			want = 0xa8
		}
		if q.flow.TOS != 0xa8 || q.data.TOS != want {
			t.Errorf("fixed %v: %#x and %#x with data", fixed, q.flow.TOS, q.data.TOS)
		}
	}
}
