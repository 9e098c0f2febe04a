package rc

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/rstored/rstored/rdma"
)

func (p *pair) poll(s *side) {
	var wc [8]rdma.WC
	for n := s.q.PollSend(wc[:]); n > 0; n = s.q.PollSend(wc[:]) {
		s.sent = append(s.sent, wc[:n]...)
	}
	for n := s.q.PollRecv(wc[:]); n > 0; n = s.q.PollRecv(wc[:]) {
		s.got = append(s.got, wc[:n]...)
	}
}

// until runs turns until done returns true, within limit of virtual time.
func (p *pair) until(limit rdma.Time, done func() bool) {
	p.t.Helper()
	end := p.now + limit
	for !done() {
		if more := p.turn(); !more && !done() || p.now > end {
			p.t.Fatalf("stuck after %d packets: %+v %+v\nA una %v psn %v next %v epsn %v err %v\nB una %v psn %v next %v "+
				"epsn %v err %v", p.packet, *p.s[0].q.n, *p.s[1].q.n,
				p.s[0].q.req.una, p.s[0].q.req.psn, p.s[0].q.req.next, p.s[0].q.resp.epsn, p.s[0].q.err,
				p.s[1].q.req.una, p.s[1].q.req.psn, p.s[1].q.req.next, p.s[1].q.resp.epsn, p.s[1].q.err)
		}
	}
}

func (s *side) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Buf: s.buf[off : off+n], LKey: pairKey}}
}

func (p *pair) post(i int, w ...rdma.SendWR) {
	p.t.Helper()
	if err := p.s[i].q.PostSend(p.now, w); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) recv(i int, off, n int) {
	p.t.Helper()
	if err := p.s[i].q.PostRecv(p.now, []rdma.RecvWR{{ID: uint64(off), SGL: p.s[i].sge(off, n)}}); err != nil {
		p.t.Fatal(err)
	}
}

func TestOperations(t *testing.T) {
	for _, mtu := range []rdma.MTU{256, 512, 1024, 2048, 4096} {
		p := newPair(t, mtu, 0xfffff0, 1<<20)
		a, b := p.s[0], p.s[1]
		rnd := rand.NewChaCha8([32]byte{byte(mtu >> 8)})
		for _, n := range []int{0, 1, 3, 255, 256, 257, 1023, 4096, 4097, 100_001} {
			_, _ = rnd.Read(a.buf)
			_, _ = rnd.Read(b.buf)
			want := append([]byte(nil), a.buf[:n]...)
			other := append([]byte(nil), b.buf[:n]...)
			a.sent, b.got = nil, nil
			p.recv(1, 200_000, n)
			p.recv(1, 400_000, n)
			p.post(0,
				rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGL: a.sge(0, n)},
				rdma.SendWR{ID: 2, Op: rdma.OpWrite, SGL: a.sge(0, n), RemoteAddr: pairVA + 600_000, RKey: pairKey},
				rdma.SendWR{
					ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGL: a.sge(800_000, n), RemoteAddr: pairVA,
					RKey: pairKey,
				},
				rdma.SendWR{ID: 4, Op: rdma.OpSendImm, Flags: rdma.Signaled | rdma.Fence, SGL: a.sge(0, n), Imm: 77},
			)
			p.until(rdma.Second, func() bool { return len(a.sent) == 3 && len(b.got) == 2 })
			for i, id := range []uint64{1, 3, 4} {
				if a.sent[i].ID != id || a.sent[i].Status != rdma.Success {
					t.Errorf("completion %d: %+v", i, a.sent[i])
				}
			}
			if b.got[0].ByteLen != uint32(n) || b.got[1].Imm != 77 || b.got[1].Flags != rdma.WithImm {
				t.Errorf("receives: %+v", b.got)
			}
			for what, got := range map[string][]byte{
				"SEND": b.buf[200_000:][:n], "SEND_IMM": b.buf[400_000:][:n],
				"WRITE": b.buf[600_000:][:n],
			} {
				if !bytes.Equal(got, want) {
					t.Errorf("MTU %d, %d bytes: %s placed other bytes", mtu, n, what)
				}
			}
			if !bytes.Equal(a.buf[800_000:][:n], other) {
				t.Errorf("MTU %d, %d bytes: READ brought other bytes", mtu, n)
			}
		}
	}
}

// seeds returns the seeds to run: one from RSTORED_SEED, or n fixed ones.
func seeds(t *testing.T, n uint64) []uint64 {
	if s := os.Getenv("RSTORED_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		return []uint64{v}
	}
	var v []uint64
	for i := range n {
		v = append(v, i+1)
	}
	return v
}

// TestLossyWire runs random programs in both directions over a wire that loses, repeats, reorders
// and corrupts packets. Memory and completions must be those of a perfect wire.
func TestLossyWire(t *testing.T) {
	for _, seed := range seeds(t, 120) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		mtu := rdma.MTU(256) << rnd.IntN(5)
		p := newPair(t, mtu, rnd.Uint32N(1<<24), 1<<20)
		p.rnd = rnd
		p.loss = []float64{0, 0.01, 0.05, 0.20}[rnd.IntN(4)]
		p.dup, p.mix, p.bits = rnd.Float64()*0.05, rnd.Float64()*0.05, rnd.Float64()*0.02
		runProgram(t, p, rnd)
		if t.Failed() {
			t.Fatalf("replay with RSTORED_SEED=%d go test -run %s ./rdma/rc", seed, t.Name())
		}
	}
}

// TestSlowPeer: the QP learns the longer round trip of a peer that becomes slow, although it does
// not measure the ACK after a timeout. After that nothing is sent twice.
func TestSlowPeer(t *testing.T) {
	p := newPair(t, rdma.MTU(1024), 1, 1<<16)
	write := func() {
		n := len(p.s[0].sent) + 1
		p.post(0, rdma.SendWR{
			Op: rdma.OpWrite, SGL: p.s[0].sge(0, 100), RemoteAddr: pairVA, RKey: pairKey,
			Flags: rdma.Signaled,
		})
		p.until(rdma.Second, func() bool { return len(p.s[0].sent) == n })
	}
	for range 100 {
		write()
	}
	if n := p.s[0].q.Counters().AckTimeouts; n != 0 {
		t.Fatalf("%d timeouts of a peer that is quick", n)
	}
	p.delay = 1500 * rdma.Microsecond // each way
	for range 100 {
		write()
	}
	if n := p.s[0].q.Counters().AckTimeouts; n == 0 || n > 4 {
		t.Errorf("%d timeouts, want one or two", n)
	}
}

// runProgram posts random requests on both sides. The memory of each side has three parts: sources
// of its sends, memory that the peer writes, and destinations of READs and receives.
func runProgram(t *testing.T, p *pair, rnd *rand.Rand) {
	const third = 300_000
	var model [2][]byte
	var counterModel [2]uint64
	const counterAt = 1<<20 - 64
	for i, s := range p.s {
		for j := range third {
			s.buf[j] = byte(rnd.Uint32())
		}
		model[i] = append([]byte(nil), s.buf...)
	}
	want := [2][]uint64{}
	recvs := [2]int{}
	at := [2]int{third, third}
	bring := [2]int{2 * third, 2 * third}
	for n := range 12 {
		i := rnd.IntN(2)
		o := 1 - i
		size := rnd.IntN(20_000)
		if rnd.IntN(3) == 0 {
			size = rnd.IntN(300)
		}
		from := rnd.IntN(third - size)
		w := rdma.SendWR{ID: uint64(n), Flags: rdma.Signaled, RKey: pairKey}
		switch rnd.IntN(5) {
		case 0, 1:
			w.Op, w.SGL, w.RemoteAddr = rdma.OpWrite, p.s[i].sge(from, size), pairVA+uint64(at[o])
			copy(model[o][at[o]:], model[i][from:from+size])
			at[o] += size
		case 2:
			w.Op, w.SGL = rdma.OpSend, p.s[i].sge(from, size)
			p.recv(o, bring[o], size)
			copy(model[o][bring[o]:], model[i][from:from+size])
			bring[o] += size
			recvs[o]++
		case 3:
			w.Op, w.SGL, w.RemoteAddr = rdma.OpRead, p.s[i].sge(bring[i], size), pairVA+uint64(from)
			copy(model[i][bring[i]:], model[o][from:from+size])
			bring[i] += size
		case 4:
			w.Op, w.SGL, w.RemoteAddr, w.SwapAdd = rdma.OpFetchAdd, p.s[i].sge(bring[i], 8), pairVA+counterAt, uint64(n+1)
			binary.NativeEndian.PutUint64(model[i][bring[i]:], counterModel[o])
			counterModel[o] += uint64(n + 1)
			bring[i] += 8
		}
		p.post(i, w)
		want[i] = append(want[i], uint64(n))
	}
	p.until(600*rdma.Second, func() bool {
		return len(p.s[0].sent) == len(want[0]) && len(p.s[1].sent) == len(want[1]) && len(p.s[0].got) == recvs[0] &&
			len(p.s[1].got) == recvs[1]
	})
	for i, s := range p.s {
		for j, wc := range s.sent {
			if wc.ID != want[i][j] || wc.Status != rdma.Success {
				t.Errorf("side %d completion %d: %+v, want ID %d", i, j, wc, want[i][j])
			}
		}
		binary.NativeEndian.PutUint64(model[i][counterAt:], counterModel[i])
		if !bytes.Equal(s.buf, model[i]) {
			t.Errorf("side %d: memory differs from the model", i)
		}
	}
}
