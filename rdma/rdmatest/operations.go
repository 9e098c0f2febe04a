package rdmatest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
)

func testSizes(t *testing.T, open Provider) {
	const most = 8 << 20
	p := newPair(t, open, endpoint.Config{RecvDepth: 2, RecvSize: most})
	mtu := int(p.a.Negotiated().PathMTU)
	src, dst := p.region(p.a, most, 1, anyAccess), p.region(p.b, most, 2, anyAccess)
	back := p.region(p.a, most, 3, rdma.LocalWrite)
	sizes := []int{0, 1, 2, 3, 4, 5, mtu - 1, mtu, mtu + 1, 2 * mtu, 2*mtu + 1, 3*mtu - 1, 65536, 1<<20 + 17, most}
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			clear(dst.Bytes())
			clear(back.Bytes())
			settle(p.b)
			ok(t, p.a.Write(p.ctx, src, 0, n, endpoint.RemoteOf(dst)))
			settle(p.b)
			if !bytes.Equal(dst.Bytes()[:n], src.Bytes()[:n]) {
				t.Fatal("WRITE: the bytes differ")
			}
			if i := firstNonZero(dst.Bytes()[n:]); i >= 0 {
				t.Fatalf("WRITE: it wrote %d bytes beyond its end", i)
			}
			ok(t, p.a.Read(p.ctx, back, 0, n, endpoint.RemoteOf(dst)))
			settle(p.a)
			if !bytes.Equal(back.Bytes()[:n], src.Bytes()[:n]) {
				t.Fatal("READ: the bytes differ")
			}
			if i := firstNonZero(back.Bytes()[n:]); i >= 0 {
				t.Fatalf("READ: it wrote %d bytes beyond its end", i)
			}
			ok(t, p.a.Send(p.ctx, src, 0, n))
			m, err := p.b.Recv(p.ctx)
			ok(t, err)
			if m.Len != n || !bytes.Equal(m.Data, src.Bytes()[:n]) {
				t.Fatalf("SEND: %d bytes arrived", m.Len)
			}
		})
	}
}

func firstNonZero(b []byte) int {
	for i, c := range b {
		if c != 0 {
			return i
		}
	}
	return -1
}

// unsupported checks that a request fails with ErrUnsupported, because the device says that it does
// not have the operation.
func unsupported(t *testing.T, p *pair, w rdma.SendWR) {
	t.Helper()
	if _, err := p.a.Do(p.ctx, w); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("operation %d of a device that has none: %v", w.Op, err)
	}
}

func testImmediate(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	src, dst := p.region(p.a, 10000, 1, anyAccess), p.region(p.b, 10000, 2, anyAccess)
	if iwarp(p.devs[0]) {
		unsupported(t, p, rdma.SendWR{Op: rdma.OpSendImm})
		unsupported(t, p, rdma.SendWR{Op: rdma.OpWriteImm, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		return
	}
	for _, n := range []int{0, 100, 10000} {
		_, err := p.a.Do(p.ctx, rdma.SendWR{
			Op: rdma.OpWriteImm, SGL: part(src, 0, n),
			RemoteAddr: dst.Addr(), RKey: dst.RKey(), Imm: 0xdeadbeef,
		})
		ok(t, err)
		m, err := p.b.Recv(p.ctx)
		ok(t, err)
		if !m.HasImm || m.Imm != 0xdeadbeef || m.Len != n || m.Data != nil || !bytes.Equal(dst.Bytes()[:n], src.Bytes()[:n]) {
			t.Errorf("WRITE with immediate of %d bytes: %+v", n, m)
		}
		k := min(n, 4096)
		_, err = p.a.Do(p.ctx, rdma.SendWR{
			Op: rdma.OpSendImm, SGL: part(src, 0, k),
			Imm: 7,
		})
		ok(t, err)
		m, err = p.b.Recv(p.ctx)
		ok(t, err)
		if !m.HasImm || m.Imm != 7 || !bytes.Equal(m.Data, src.Bytes()[:k]) {
			t.Errorf("SEND with immediate of %d bytes: %+v", k, m)
		}
		settle(p.b)
	}
}

func testGatherScatter(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	src, dst := p.region(p.a, 20000, 1, anyAccess), p.region(p.b, 20000, 2, anyAccess)
	cut := func(m rdma.MR, at ...int) (l []rdma.SGE) {
		for i := 1; i < len(at); i++ {
			l = append(l, rdma.SGE{Buf: m.Bytes()[at[i-1]:at[i]], LKey: m.LKey()})
		}
		return l
	}
	// The elements end inside of packets, are empty, or are longer than packets.
	_, err := p.a.Do(p.ctx, rdma.SendWR{
		Op: rdma.OpWrite, SGL: cut(src, 0, 1, 1, 9001, 20000), RemoteAddr: dst.Addr(),
		RKey: dst.RKey(),
	})
	ok(t, err)
	settle(p.b)
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("a gathered WRITE arrived wrong")
	}
	back := p.region(p.a, 20000, 3, rdma.LocalWrite)
	_, err = p.a.Do(p.ctx, rdma.SendWR{
		Op: rdma.OpRead, SGL: cut(back, 0, 4097, 4098, 12000, 20000),
		RemoteAddr: dst.Addr(), RKey: dst.RKey(),
	})
	ok(t, err)
	if !bytes.Equal(src.Bytes(), back.Bytes()) {
		t.Error("a scattered READ arrived wrong")
	}
}

// testPageEnds moves short data across the end of a page, at the source and at the destination,
// with several requests in flight.
func testPageEnds(t *testing.T, open Provider) {
	const page, lanes = 4096, 8
	p := newPair(t, open, endpoint.Config{})
	src, back := p.region(p.a, (lanes+2)*page, 1, anyAccess), p.region(p.a, (lanes+2)*page, 3, rdma.LocalWrite)
	dst := p.region(p.b, (lanes+2)*page, 2, anyAccess)
	end := func(m rdma.MR, lane int) int { return page - int(m.Addr()%page) + lane*page }
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for _, n := range []int{2, 3, 5, 8, 17, 31, 32, 33, 64} {
				for _, before := range []int{1, n / 2, n - 1} {
					from, to, at := end(src, lane)-before, end(dst, lane)-before, end(back, lane)-before
					err := p.a.Write(p.ctx, src, from, n, endpoint.RemoteOf(dst).At(to))
					if err == nil {
						err = p.a.Read(p.ctx, back, at, n, endpoint.RemoteOf(dst).At(to))
					}
					if err != nil {
						t.Errorf("%d bytes, %d of them before the end of a page: %v", n, before, err)
						return
					}
					settle(p.b)
					if want := src.Bytes()[from : from+n]; !bytes.Equal(dst.Bytes()[to:to+n], want) ||
						!bytes.Equal(back.Bytes()[at:at+n], want) {
						t.Errorf("%d bytes, %d of them before the end of a page: %x is there and %x here, not %x", n, before,
							dst.Bytes()[to:to+n], back.Bytes()[at:at+n], want)
					}
					settle(p.b) // the test has read dst before b's loop writes there again
				}
			}
		})
	}
	all.Wait()
}

func testAtomics(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	at, old := p.region(p.b, 16, 0, anyAccess), p.region(p.a, 8, 0, rdma.LocalWrite)
	if !rdma.LimitsOf(p.devs[0]).Atomics {
		unsupported(t, p, transfer(rdma.OpFetchAdd, part(old, 0, 8), at))
		unsupported(t, p, transfer(rdma.OpCompareSwap, part(old, 0, 8), at))
		return
	}
	word := func(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
	to := endpoint.RemoteOf(at).At(8)
	settle(p.b)
	clear(at.Bytes())
	settle(p.b)
	ok(t, p.a.FetchAdd(p.ctx, old, 0, to, 5))
	if v := word(old.Bytes()); v != 0 {
		t.Errorf("FETCH_ADD returned %d", v)
	}
	ok(t, p.a.FetchAdd(p.ctx, old, 0, to, ^uint64(0)))
	if v := word(old.Bytes()); v != 5 {
		t.Errorf("the second FETCH_ADD returned %d", v)
	}
	ok(t, p.a.CompareSwap(p.ctx, old, 0, to, 99, 1))
	if v := word(old.Bytes()); v != 4 {
		t.Errorf("COMPARE_SWAP of another value returned %d", v)
	}
	ok(t, p.a.CompareSwap(p.ctx, old, 0, to, 4, 77))
	settle(p.b)
	if v := word(at.Bytes()[8:]); v != 77 || word(at.Bytes()) != 0 {
		t.Errorf("COMPARE_SWAP left %d", v)
	}
}

func testOrderOfList(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{})
	const n = 256 << 10
	src, dst := p.region(p.a, n, 1, anyAccess), p.region(p.b, n, 2, anyAccess)
	for i := range 20 {
		copy(src.Bytes(), pattern(n, byte(i)))
		wc, err := p.a.Do(p.ctx,
			transfer(rdma.OpWrite, whole(src), dst),
			rdma.SendWR{Op: rdma.OpSend, SGL: part(src, 0, 8)})
		ok(t, err)
		if wc.Op != rdma.WCSend {
			t.Errorf("the list completed with %v", wc.Op)
		}
		_, err = p.b.Recv(p.ctx)
		ok(t, err)
		// The message shows that the data before it has arrived.
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Fatalf("round %d: a SEND overtook the WRITE before it", i)
		}
		settle(p.b) // the test has read dst before the next WRITE
	}
}

func testReceiverNotReady(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{RecvDepth: 1})
	if iwarp(p.devs[1]) {
		t.Skip("a SEND that finds no receive ends the connection")
	}
	m := p.region(p.a, 5000, 1, 0)
	const n = 8
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			if err := p.a.Send(p.ctx, m, i, 4000); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i := range n {
		time.Sleep(3 * time.Millisecond)
		got, err := p.b.Recv(p.ctx)
		ok(t, err)
		if !bytes.Equal(got.Data, m.Bytes()[i:i+4000]) {
			t.Fatalf("message %d arrived wrong", i)
		}
	}
	ok(t, <-sent)
}

func testQueueFull(t *testing.T, open Provider) {
	p := newPair(t, open, endpoint.Config{SendDepth: 4, SendSGE: 2})
	m := p.region(p.a, 100, 1, 0)
	sge := rdma.SGE{Buf: m.Bytes()[:10], LKey: m.LKey()}
	w := rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{sge}}
	if _, err := p.a.Do(p.ctx, w, w, w, w, w); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("5 requests in a queue of 4: %v", err)
	}
	if _, err := p.a.Do(p.ctx, rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{sge, sge, sge}}); !errors.Is(err,
		rdma.ErrInvalidWR) {
		t.Errorf("3 elements where 2 are allowed: %v", err)
	}
	_, err := p.a.Do(p.ctx, w, w, w, w)
	ok(t, err)
	for range 4 {
		_, err := p.b.Recv(p.ctx)
		ok(t, err)
	}
}
