package udp

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// TestIPv6 sends over ::1. Both ends have this address.
func TestIPv6(t *testing.T) {
	l, err := Open(Config{Addr: netip.IPv6Loopback()})
	if err != nil {
		t.Skip(err) // a host without IPv6
	}
	defer l.Close()
	f := &wire.Flow{Src: l.LocalAddr(), Dst: l.LocalAddr(), TOS: 2}
	batch, rx := wire.NewBatch(8), link.NewRx(8, 1<<16)
	for i := range 5 {
		batch.Add(f, &wire.Packet{Op: wire.SendOnly, PSN: wire.PSN(i)}, [][]byte{{1, 2, 3}})
	}
	if err := l.Send(batch); err != nil {
		t.Fatal(err)
	}
	from := &wire.Flow{Dst: l.LocalAddr()}
	for got := 0; got < 5; {
		n, err := l.Recv(rx, l.Now()+rdma.Second)
		if err != nil || n == 0 {
			t.Fatalf("after %d datagrams: %v", got, err)
		}
		for _, d := range rx.D {
			from.Src, from.SrcPort = d.Src, d.SrcPort
			if ok, exact, _ := wire.VerifyICRC(from, d.Data, 0); !ok || !exact || d.TOS != 2 {
				t.Errorf("checksum %v, TOS %d", ok, d.TOS)
			}
			got++
		}
	}
}

// TestShardsShareAnAddress: the kernel chooses the socket by the QP number.
func TestShardsShareAnAddress(t *testing.T) {
	const shards = 4
	addr := netip.MustParseAddr("127.91.3.1")
	var group [shards]*Link
	for i := range group {
		group[i] = opened(t, Config{Addr: addr, Shard: i, Shards: shards, NoGRO: true})
	}
	if _, err := Open(Config{Addr: addr, Shard: 0, Shards: shards}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("another group on the address: %v", err)
	}
	a := opened(t, Config{Addr: netip.MustParseAddr("127.91.3.2"), NoGSO: true})
	f := &wire.Flow{Src: a.LocalAddr(), Dst: addr}
	batch := wire.NewBatch(64)
	want := map[uint32]int{}
	for i := range uint32(32) {
		qpn := 0xabc000 + i*5
		batch.Add(f, &wire.Packet{Op: wire.Acknowledge, DestQPN: qpn}, nil)
		want[qpn] = int(qpn % shards)
	}
	batch.Add(f, &wire.Packet{Op: wire.Acknowledge, DestQPN: wire.QP1}, nil)
	want[wire.QP1] = 0
	if err := a.Send(batch); err != nil {
		t.Fatal(err)
	}
	for i, l := range group {
		rx := link.NewRx(64, 1<<16)
		if _, err := l.Recv(rx, l.Now()+rdma.Second); err != nil {
			t.Fatal(err)
		}
		for _, d := range rx.D {
			if q := wire.DestQPN(d.Data); want[q] != i {
				t.Errorf("QP %#x came to socket %d", q, i)
			} else {
				delete(want, q)
			}
		}
	}
	if len(want) != 0 {
		t.Errorf("%d datagrams did not come", len(want))
	}
}

func TestSourceFor(t *testing.T) {
	for _, s := range []string{"127.0.0.1", "127.3.4.5"} {
		if a, err := SourceFor(netip.MustParseAddr(s)); err != nil || a.IsValid() {
			t.Errorf("%s: %v, %v", s, a, err)
		}
	}
	l := opened(t, Config{})
	if !l.LocalAddr().IsLoopback() {
		t.Errorf("an address by choice: %v", l.LocalAddr())
	}
}

func FuzzParseControl(f *testing.F) {
	c := make([]byte, controlMax)
	n := putControl(c, 0, unix.IPPROTO_UDP, udpGRO, 4, 4112)
	n = putControl(c, n, unix.IPPROTO_IP, unix.IP_TOS, 4, 3)
	f.Add(c[:n])
	f.Fuzz(func(t *testing.T, b []byte) {
		c := make([]byte, controlMax) // aligned, as the receiver's
		parseControl(c[:copy(c, b)])
	})
}

// TestSleep: a packet, a wake and a deadline each end the sleep of a loop, whether the loop is busy
// or not.
func TestSleep(t *testing.T) {
	for _, busy := range []bool{false, true} {
		a, b := opened(t, Config{}), opened(t, Config{})
		f := &wire.Flow{Src: a.LocalAddr(), Dst: b.LocalAddr()}
		rx := link.NewRx(8, 1<<16)
		set := func() {
			b.wait.mean = 0
			if busy {
				b.wait.mean = 2 * busyMax * meanUnit
			}
		}
		for range 3 {
			set()
			if n, err := b.Recv(rx, b.Now()+rdma.Millisecond); n != 0 || err != nil {
				t.Fatalf("busy %v: a deadline: %d, %v", busy, n, err)
			}
			set()
			go func() {
				for b.wait.state.Load() == running { // until it sleeps
					runtime.Gosched()
				}
				b.Wake()
			}()
			if n, err := b.Recv(rx, 0); n != 0 || err != nil {
				t.Fatalf("busy %v: a wake: %d, %v", busy, n, err)
			}
			b.Wake() // before the sleep
			if n, err := b.Recv(rx, 0); n != 0 || err != nil {
				t.Fatalf("busy %v: a wake before: %d, %v", busy, n, err)
			}
			set()
			sent := make(chan error, 1)
			go func() {
				for b.wait.state.Load() == running {
					runtime.Gosched()
				}
				batch := wire.NewBatch(1)
				batch.Add(f, &wire.Packet{Op: wire.SendOnly, PKey: wire.DefaultPKey}, [][]byte{{1, 2, 3}})
				sent <- a.Send(batch)
			}()
			if n, err := b.Recv(rx, b.Now()+20*rdma.Second); n != 1 || err != nil {
				t.Fatalf("busy %v: a packet: %d, %v", busy, n, err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRunsOfOneQueuePair: datagrams for two queue pairs in one batch arrive at the sockets of the
// shards of these queue pairs.
func TestRunsOfOneQueuePair(t *testing.T) {
	a := opened(t, Config{})
	first := opened(t, Config{Shards: 2})
	shards := []*Link{first, opened(t, Config{Addr: first.LocalAddr(), Shard: 1, Shards: 2})}
	f := &wire.Flow{Src: a.LocalAddr(), Dst: first.LocalAddr()}
	const each = 5
	batch := wire.NewBatch(2 * each)
	for i := range 2 * each {
		batch.Add(f, &wire.Packet{
			Op: wire.WriteMiddle, PKey: wire.DefaultPKey, DestQPN: uint32(2 + i/each),
			PSN: wire.PSN(i),
		}, [][]byte{make([]byte, 1024)})
	}
	if err := a.Send(batch); err != nil {
		t.Fatal(err)
	}
	for i, l := range shards {
		rx := link.NewRx(8, 1<<16)
		var p wire.Packet
		for n := 0; n < each; {
			if _, err := l.Recv(rx, l.Now()+5*rdma.Second); err != nil || len(rx.D) == 0 {
				t.Fatalf("shard %d: %d datagrams, %v", i, n, err)
			}
			for _, d := range rx.D {
				if err := p.Parse(d.Data); err != nil || int(p.DestQPN) != 2+i {
					t.Errorf("shard %d: a datagram for QP %d, %v", i, p.DestQPN, err)
				}
				n++
			}
		}
	}
}

// TestSuspectedPeer: the link sends without segmentation to a peer that is suspected to receive
// wrong segments, and with segmentation to others.
func TestSuspectedPeer(t *testing.T) {
	a, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var peers [2]*Link
	for i := range peers {
		if peers[i], err = Open(Config{}); err != nil {
			t.Fatal(err)
		}
		defer peers[i].Close()
	}
	var _ link.Segmenter = a
	batch := wire.NewBatch(32)
	segmented := func(to *Link) uint64 {
		t.Helper()
		before := a.Stats().TxSegmented
		batch.Reset()
		f := &wire.Flow{Src: a.LocalAddr(), Dst: to.LocalAddr()}
		for i := range 32 {
			batch.Add(f, &wire.Packet{Op: wire.WriteMiddle, PSN: wire.PSN(i)}, [][]byte{make([]byte, 256)})
		}
		if err := a.Send(batch); err != nil {
			t.Fatal(err)
		}
		return a.Stats().TxSegmented - before
	}
	is := func(what string, first, second, off uint64) {
		t.Helper()
		if n, m, s := segmented(peers[0]), segmented(peers[1]), a.Stats(); n != first || m != second ||
			s.GSOPeersOff != off || !s.GSOActive {
			t.Errorf("%s: %d and %d datagrams are segments; %+v", what, n, m, s)
		}
	}
	is("at first", 32, 32, 0)
	if a.Suspect(peers[0].LocalAddr()) {
		t.Error("one suspicion is enough")
	}
	is("in the trial", 0, 32, 0)
	for range 200 {
		segmented(peers[0])
	}
	is("after the trial", 32, 32, 0)
	if !a.Suspect(peers[0].LocalAddr()) {
		t.Error("it is not decided")
	}
	is("at the end", 0, 32, 1)
}
