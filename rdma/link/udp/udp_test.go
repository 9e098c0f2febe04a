package udp

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

func opened(t testing.TB, cfg Config) *Link {
	t.Helper()
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestEveryPathVerifies sends datagrams of many sizes with each combination of kernel offloads.
// Every datagram arrives with a valid ICRC and the right bytes.
func TestEveryPathVerifies(t *testing.T) {
	for _, c := range []struct {
		name  string
		a, b  string
		noGSO bool
		noGRO bool
	}{
		{"GSO and GRO", "127.91.0.1", "127.91.0.2", false, false},
		{"GSO alone", "127.91.0.3", "127.91.0.4", false, true},
		{"GRO alone", "127.91.0.5", "127.91.0.6", true, false},
		{"neither", "127.91.0.7", "127.91.0.8", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := opened(t, Config{Addr: netip.MustParseAddr(c.a), NoGSO: c.noGSO, NoGRO: c.noGRO})
			b := opened(t, Config{Addr: netip.MustParseAddr(c.b), NoGSO: c.noGSO, NoGRO: c.noGRO})
			f := &wire.Flow{Src: a.LocalAddr(), Dst: b.LocalAddr()}
			batch := wire.NewBatch(128)
			data := make([]byte, 4096)
			for i := range data {
				data[i] = byte(i * 7)
			}
			sizes := []int{4096}
			for range 40 {
				sizes = append(sizes, 1024)
			}
			sizes = append(sizes, 1023, 0, 1, 2, 3, 4096, 4096, 4096, 17)
			for i, n := range sizes {
				p := wire.Packet{Op: wire.WriteMiddle, PSN: wire.PSN(i), PKey: wire.DefaultPKey}
				if i == 0 {
					p.Op = wire.WriteFirst
				}
				batch.Add(f, &p, [][]byte{data[:n/2], data[n/2 : n]})
			}
			if err := a.Send(batch); err != nil {
				t.Fatal(err)
			}
			rx := link.NewRx(8, 1<<16)
			var p wire.Packet
			from := &wire.Flow{Dst: b.LocalAddr()}
			for i, deadline := 0, b.Now()+5*rdma.Second; i < len(sizes); {
				_, err := b.Recv(rx, deadline)
				if err != nil || b.Now() > deadline {
					t.Fatalf("after %d datagrams: %v", i, err)
				}
				for _, d := range rx.D {
					from.Src, from.SrcPort = d.Src, d.SrcPort
					if ok, _, _ := wire.VerifyICRC(from, d.Data, 0); !ok {
						t.Errorf("datagram %d of %d bytes does not verify", i, len(d.Data))
					}
					if err := p.Parse(d.Data); err != nil || p.PSN != wire.PSN(i) || !bytes.Equal(p.Payload, data[:sizes[i]]) {
						t.Errorf("datagram %d: %v PSN %d, %d bytes", i, err, p.PSN, len(p.Payload))
					}
					i++
				}
			}
			if s := a.Stats(); s.GSOActive == c.noGSO || s.GSOActive != (s.TxSegmented > 0) {
				t.Errorf("segmentation %v, %d segmented datagrams", s.GSOActive, s.TxSegmented)
			}
			if s := b.Stats(); s.GROActive == c.noGRO || (s.GROActive && !c.noGSO) != (s.RxMerged > 0) {
				t.Errorf("coalescing %v, %d coalesced datagrams", s.GROActive, s.RxMerged)
			}
		})
	}
}

func TestAddressTaken(t *testing.T) {
	opened(t, Config{Addr: netip.MustParseAddr("127.91.1.1")})
	_, err := Open(Config{Addr: netip.MustParseAddr("127.91.1.1")})
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "rdma_rxe") {
		t.Errorf("got %v", err)
	}
	for _, a := range []string{"192.0.2.77", "0.0.0.0"} {
		if _, err := Open(Config{Addr: netip.MustParseAddr(a)}); err == nil || !strings.Contains(err.Error(), a) {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func TestWake(t *testing.T) {
	l := opened(t, Config{Addr: netip.MustParseAddr("127.91.1.2")})
	rx := link.NewRx(8, 1<<16)
	l.Wake()
	if n, err := l.Recv(rx, 0); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	start := l.Now()
	if n, err := l.Recv(rx, start+5*rdma.Millisecond); n != 0 || err != nil || l.Now() < start+5*rdma.Millisecond {
		t.Errorf("%d, %v after %d ns", n, err, l.Now()-start)
	}
	done := make(chan struct{})
	go func() { _, _ = l.Recv(rx, 0); close(done) }()
	l.Wake()
	<-done
}

// TestNoAllocs: sending and receiving a segmented run, and a wake, allocate nothing.
func TestNoAllocs(t *testing.T) {
	a := opened(t, Config{Addr: netip.MustParseAddr("127.91.2.1")})
	b := opened(t, Config{Addr: netip.MustParseAddr("127.91.2.2")})
	f := &wire.Flow{Src: a.LocalAddr(), Dst: b.LocalAddr(), TOS: 2}
	batch, rx := wire.NewBatch(64), link.NewRx(8, 1<<16)
	parts := [][]byte{make([]byte, 4096)}
	round := func() {
		batch.Reset()
		for i := range 40 {
			batch.Add(f, &wire.Packet{Op: wire.WriteMiddle, PSN: wire.PSN(i)}, parts)
		}
		batch.Add(f, &wire.Packet{Op: wire.Acknowledge}, nil)
		if err := a.Send(batch); err != nil {
			t.Error(err)
		}
		for n, deadline := 0, b.Now()+rdma.Second; n < len(batch.D) && b.Now() < deadline; {
			k, err := b.Recv(rx, deadline)
			if err != nil {
				t.Error(err)
			}
			n += k
			for i := range rx.D {
				if rx.D[i].TOS != 2 {
					t.Errorf("sent with TOS 2, arrived with %d", rx.D[i].TOS)
				}
			}
		}
		if n, _ := b.Recv(rx, b.Now()+rdma.Microsecond); n != 0 {
			t.Errorf("%d datagrams more than were sent", n)
		}
	}
	round()
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}

// TestTooBig sends datagrams over the MTU, alone and in a run, between datagrams that fit.
func TestTooBig(t *testing.T) {
	a := opened(t, Config{Addr: netip.MustParseAddr("127.91.2.3")})
	b := opened(t, Config{Addr: netip.MustParseAddr("127.91.2.4")})
	a.mtu = 1500 // the MTU in the error
	f := &wire.Flow{Src: a.LocalAddr(), Dst: b.LocalAddr()}
	batch, rx := wire.NewBatch(8), link.NewRx(8, 1<<16)
	big := make([]byte, 65500) // no IP packet holds it with its headers
	for _, p := range [][]byte{big[:100], big, big[:200]} {
		batch.Add(f, &wire.Packet{Op: wire.WriteMiddle}, [][]byte{p})
	}
	var e *link.TooBigError
	if err := a.Send(batch); !errors.As(err, &e) || e.Dst != b.LocalAddr() || !strings.Contains(err.Error(), "1500") {
		t.Errorf("got %v", err)
	}
	got := 0
	for got < 2 {
		n, err := b.Recv(rx, b.Now()+rdma.Second)
		if err != nil || n == 0 {
			t.Fatalf("%d of the 2 that fit arrived; %v", got, err)
		}
		got += n
	}
	if s := a.Stats(); s.TxTooBig != 1 || s.TxDatagrams != 2 || !s.GSOActive {
		t.Errorf("%+v", s)
	}
}

// TestSegmentationGivenUp: the kernel refuses a segmented send, and the link sends without
// segmentation.
func TestSegmentationGivenUp(t *testing.T) {
	a := opened(t, Config{Addr: netip.MustParseAddr("127.91.2.5")})
	b := opened(t, Config{Addr: netip.MustParseAddr("127.91.2.6")})
	// Segmentation needs UDP checksums. Without them the kernel returns EINVAL.
	if err := unix.SetsockoptInt(a.fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
		t.Fatal(err)
	}
	f := &wire.Flow{Src: a.LocalAddr(), Dst: b.LocalAddr()}
	batch, rx := wire.NewBatch(32), link.NewRx(32, 1<<16)
	for i := range 20 {
		batch.Add(f, &wire.Packet{Op: wire.WriteMiddle, PSN: wire.PSN(i)}, [][]byte{make([]byte, 1000)})
	}
	if err := a.Send(batch); err != nil {
		t.Fatal(err)
	}
	from := &wire.Flow{Dst: b.LocalAddr()}
	for got := 0; got < 20; {
		n, err := b.Recv(rx, b.Now()+rdma.Second)
		if err != nil || n == 0 {
			t.Fatalf("after %d datagrams: %v", got, err)
		}
		for _, d := range rx.D {
			from.Src, from.SrcPort = d.Src, d.SrcPort
			if ok, exact, _ := wire.VerifyICRC(from, d.Data, 0); !ok || !exact {
				t.Error("the checksum is not that of a datagram sent alone")
			}
			got++
		}
	}
	if s := a.Stats(); s.GSOActive || s.GSODisabled != 1 || s.TxDatagrams != 20 {
		t.Errorf("%+v", s)
	}
}
