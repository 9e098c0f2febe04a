package rdmatest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// Benchmark measures a provider by operation and size. It compares the results with two loops on
// the same machine in the same run: datagrams of the same size over the same sockets, with checksum
// and one copy but without a protocol ("of-udp"), and TCP over loopback ("of-tcp").
func Benchmark(b *testing.B, open Provider, openLink func(testing.TB) link.Link) {
	udp, tcp := bareUDP(b, openLink(b), openLink(b)), bareTCP(b)
	b.Logf("bare UDP %.0f MB/s, TCP %.0f MB/s", udp/1e6, tcp/1e6)
	for _, op := range []struct {
		name  string
		op    rdma.SendOp
		depth int
	}{{"WRITE", rdma.OpWrite, 16}, {"READ", rdma.OpRead, 8}, {"SEND", rdma.OpSend, 8}} {
		for _, size := range []int{64, 4096, 65536, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", op.name, size), func(b *testing.B) {
				rate := stream(b, open, op.op, size, op.depth)
				b.ReportMetric(rate/udp, "of-udp")
				b.ReportMetric(rate/tcp, "of-tcp")
			})
		}
	}
	b.Run("Latency/WRITE/8", func(b *testing.B) { stream(b, open, rdma.OpWrite, 8, 1) })
	b.Run("Latency/SEND/8", func(b *testing.B) { stream(b, open, rdma.OpSend, 8, 1) })
}

// Posts measures small requests, for which the cost of the request is all that counts: one at a
// time, and 16 in flight.
func Posts(b *testing.B, open Provider) {
	for _, depth := range []int{1, 16} {
		b.Run(fmt.Sprintf("WRITE/%d", depth), func(b *testing.B) { stream(b, open, rdma.OpWrite, 64, depth) })
		b.Run(fmt.Sprintf("READ/%d", depth), func(b *testing.B) { stream(b, open, rdma.OpRead, 64, depth) })
		b.Run(fmt.Sprintf("SEND/%d", depth), func(b *testing.B) { stream(b, open, rdma.OpSend, 64, depth) })
	}
}

// stream keeps depth requests in flight from a callback of the completion queue, and returns bytes
// per second.
func stream(b *testing.B, open Provider, op rdma.SendOp, size, depth int) float64 {
	const recvs = 64
	p := newPair(b, open, endpoint.Config{RecvDepth: -1})
	da, db := p.devs[0], p.devs[1]
	la, lb := da.Loops()[0], db.Loops()[0]
	pa, err := da.AllocPD()
	ok(b, err)
	pb, err := db.AllocPD()
	ok(b, err)
	ma, err := pa.Register(make([]byte, size*depth), anyAccess)
	ok(b, err)
	mb, err := pb.Register(make([]byte, size*max(depth, recvs)), anyAccess)
	ok(b, err)

	// The passive side posts each receive again as soon as it completes.
	recv := make([]rdma.RecvWR, 1)
	post := func(c rdma.Conn, id uint64) error {
		at := int(id) * size
		recv[0] = rdma.RecvWR{ID: id, SGL: append(recv[0].SGL[:0], rdma.SGE{Buf: mb.Bytes()[at : at+size], LKey: mb.LKey()})}
		return c.QP().PostRecv(recv)
	}
	var conn rdma.Conn
	var cqb rdma.CQ
	var wcb [recvs]rdma.WC
	cqb, err = db.CreateCQ(lb, rdma.CQOptions{Depth: 2 * recvs, OnEvent: func() {
		for n := cqb.Poll(wcb[:]); n > 0; n = cqb.Poll(wcb[:]) {
			for i := range wcb[:n] {
				if wcb[i].Status == rdma.Success {
					_ = post(conn, wcb[i].ID) // fails at the end
				}
			}
		}
	}})
	ok(b, err)
	caps := rdma.QPCaps{MaxSendWR: depth + 1, MaxRecvWR: recvs, MaxSendSGE: 1, MaxRecvSGE: 1}
	params := rdma.ConnParams{ResponderResources: 16, InitiatorDepth: 16}
	l, err := db.Listen(port+1, func(r rdma.ConnRequest) {
		_, _ = r.Accept(rdma.QPConfig{PD: pb, SendCQ: cqb, RecvCQ: cqb, Caps: caps}, params, func(c rdma.Conn) error {
			conn = c
			for i := range recvs {
				if err := post(c, uint64(i)); err != nil {
					return err
				}
			}
			return nil
		}, nil)
	})
	ok(b, err)
	defer l.Close()

	var (
		left, under int
		wrs         = make([]rdma.SendWR, 1)
		active      rdma.Conn
		done        = make(chan error, 1)
		wca         [64]rdma.WC
		cqa         rdma.CQ
	)
	next := func(id uint64) {
		if left == 0 {
			return
		}
		left--
		under++
		at := int(id) * size
		wrs[0] = rdma.SendWR{
			ID: id, Op: op, Flags: rdma.Signaled, SGL: append(wrs[0].SGL[:0],
				rdma.SGE{Buf: ma.Bytes()[at : at+size], LKey: ma.LKey()}),
			RemoteAddr: mb.Addr() + uint64(at), RKey: mb.RKey(),
		}
		if err := active.QP().PostSend(wrs); err != nil {
			done <- err
		}
	}
	cqa, err = da.CreateCQ(la, rdma.CQOptions{Depth: 2 * depth, OnEvent: func() {
		for n := cqa.Poll(wca[:]); n > 0; n = cqa.Poll(wca[:]) {
			for i := range wca[:n] {
				under--
				if wca[i].Status != rdma.Success {
					done <- fmt.Errorf("completed with %v", wca[i].Status)
					return
				}
				next(wca[i].ID)
			}
		}
		if left == 0 && under == 0 {
			select {
			case done <- nil:
			default:
			}
		}
	}})
	ok(b, err)
	up := make(chan error, 2)
	la.Submit(func() {
		c, err := da.Dial(la, rdma.DialParams{
			Remote: l.Addr(), QP: rdma.QPConfig{PD: pa, SendCQ: cqa, RecvCQ: cqa, Caps: caps}, Params: params,
			On: func(_ rdma.Conn, e rdma.ConnEvent) { up <- e.Err },
		})
		active = c
		if err != nil {
			up <- err
		}
	})
	ok(b, <-up)
	run := func(n int) {
		la.Submit(func() {
			left = n
			for i := range depth {
				next(uint64(i))
			}
		})
		ok(b, <-done)
	}
	run(4 * depth) // warm up
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	run(b.N)
	d := time.Since(start)
	b.StopTimer()
	closed := make(chan struct{})
	la.Submit(func() { active.Close(); close(closed) })
	<-closed
	return float64(b.N) * float64(size) / d.Seconds()
}

// bareTime is the duration of the two loops for comparison.
const bareTime = 300 * time.Millisecond

// bareUDP sends full packets in batches over one link and takes them from the
// other, checks them and copies their payload. Each batch is acknowledged.
func bareUDP(t testing.TB, tx, rx link.Link) float64 {
	const packets, mtu = 256, 4096
	ack := wire.NewBatch(1)
	var stop atomic.Bool
	ended := make(chan struct{})
	defer func() {
		stop.Store(true)
		rx.Wake()
		<-ended
	}()
	go func() {
		defer close(ended)
		in := link.NewRx(32, 1<<16)
		f, back := &wire.Flow{}, &wire.Flow{Src: rx.LocalAddr(), Dst: tx.LocalAddr()}
		place := make([]byte, packets*mtu)
		var p wire.Packet
		for got := 0; !stop.Load(); {
			if _, err := rx.Recv(in, 0); err != nil {
				return
			}
			for i := range in.D {
				d := &in.D[i]
				f.Src, f.Dst, f.SrcPort = d.Src, d.Dst, d.SrcPort
				if ok, _, _ := wire.VerifyICRC(f, d.Data, 0); !ok || p.Parse(d.Data) != nil {
					t.Error("a packet arrived damaged")
				}
				copy(place[got%packets*mtu:], p.Payload)
				if got++; got%packets == 0 {
					ack.Reset()
					ack.Add(back, &wire.Packet{Op: wire.Acknowledge}, nil)
					_ = rx.Send(ack)
				}
			}
		}
	}()
	f := &wire.Flow{Src: tx.LocalAddr(), Dst: rx.LocalAddr()}
	data := make([]byte, packets*mtu)
	out, in := wire.NewBatch(packets), link.NewRx(1, 1<<16)
	sent, start := 0, time.Now()
	parts := make([][]byte, 1)
	for time.Since(start) < bareTime {
		out.Reset()
		for i := range packets {
			parts[0] = data[i*mtu : (i+1)*mtu]
			out.Add(f, &wire.Packet{Op: wire.WriteMiddle, PSN: wire.PSN(i)}, parts)
		}
		if err := tx.Send(out); err != nil {
			t.Fatal(err)
		}
		sent += packets * mtu
		for deadline := tx.Now() + rdma.Second; ; {
			if n, err := tx.Recv(in, deadline); err != nil || tx.Now() > deadline {
				t.Fatal("a batch was lost on loopback: ", err)
			} else if n > 0 {
				break
			}
		}
	}
	return float64(sent) / time.Since(start).Seconds()
}

// bareTCP copies over a TCP connection of the loopback interface.
func bareTCP(t testing.TB) float64 {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const chunk = 1 << 20
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, chunk)
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, chunk)
	sent, start := 0, time.Now()
	for time.Since(start) < bareTime {
		n, err := c.Write(buf)
		if err != nil {
			t.Fatal(err)
		}
		sent += n
	}
	return float64(sent) / time.Since(start).Seconds()
}
