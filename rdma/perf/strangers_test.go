package perf_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/perf"
)

// dial connects with any private data.
func dial(t *testing.T, at netip.AddrPort, private []byte) (*endpoint.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return endpoint.Dial(ctx, open(t), at, endpoint.Config{
		Params: rdma.ConnParams{PrivateData: private, ResponderResources: 4, InitiatorDepth: 4}, RecvSize: 4096,
	})
}

// TestStrangers: the server refuses private data of other programs and versions with a text.
func TestStrangers(t *testing.T) {
	good := perf.EncodeRequest(perf.Write, 0, 4096, 4, 1)
	changed := func(at int, to byte) []byte {
		b := append([]byte(nil), good...)
		b[at] = to
		return b
	}
	for _, c := range []struct {
		name    string
		private []byte
		why, n  string
	}{
		{"nothing", nil, "no request for a measurement", "refused_malformed 1"},
		{"text", []byte("GET / HTTP/1.1\r\n\r\n"), "no request for a measurement", "refused_malformed 1"},
		{"a later version", changed(4, 2), "the client speaks version 2", "refused_version 1"},
		{"an unknown operation", changed(5, 99), "no request for a measurement", "refused_malformed 1"},
		{"an unknown flag", changed(6, 0x80), "no request for a measurement", "refused_malformed 1"},
		{"latency both ways", changed(6, 3), "no request for a measurement", "refused_malformed 1"},
		{
			"something after the end", append(append([]byte(nil), good...), 1), "no request for a measurement",
			"refused_malformed 1",
		},
		{"size 0", perf.EncodeRequest(perf.Write, 0, 0, 4, 1), "no request for a measurement", "refused_malformed 1"},
		{
			"an atomic of 4096 bytes", perf.EncodeRequest(perf.FetchAdd, 0, 4096, 4, 1), "no request for a measurement",
			"refused_malformed 1",
		},
		{"4 GiB", perf.EncodeRequest(perf.Write, 0, 1<<32-1, 4, 1), "a size of 4294967295", "refused_limit 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, at := serve(t, everyone(nil))
			_, err := dial(t, at, c.private)
			var no *endpoint.RejectedError
			if !errors.As(err, &no) || !strings.Contains(string(no.PrivateData), c.why) {
				t.Errorf("%v; want a refusal: %s", err, c.why)
			}
			if got := counted(s); sorts(got) != sorts(c.n) {
				t.Errorf("counted %q, want %q", got, c.n)
			}
		})
	}
}

// TestMisuse: illegal messages end the connection and are counted.
func TestMisuse(t *testing.T) {
	const bidirectional = 2
	for _, c := range []struct {
		name  string
		flags uint8
		send  [][]byte
		n     string
	}{
		{"not a message", 0, [][]byte{make([]byte, 8)}, "accepted 1, ended_misused 1"},
		{"half a message", 0, [][]byte{perf.EncodeMessage(3, 0, 0, 0)[:20]}, "accepted 1, ended_misused 1"},
		{"a report", 0, [][]byte{perf.EncodeMessage(4, 1, 8, 1)}, "accepted 1, ended_misused 1"},
		{"go in one direction", 0, [][]byte{perf.EncodeMessage(1, 1, 8, 1)}, "accepted 1, ended_misused 1"},
		{"go beyond the size", bidirectional, [][]byte{perf.EncodeMessage(1, 1, 4097, 1)}, "accepted 1, ended_misused 1"},
		{
			"go twice", bidirectional,
			[][]byte{perf.EncodeMessage(1, 1, 8, 0), perf.EncodeMessage(1, 2, 8, 0)},
			"accepted 1, ended_misused 1",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, at := serve(t, everyone(nil))
			conn, err := dial(t, at, perf.EncodeRequest(perf.Send, c.flags, 4096, 4, 1))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			buf, err := conn.Register(make([]byte, 64), rdma.LocalWrite)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range c.send {
				n := copy(buf.Bytes(), b)
				_, _ = conn.Do(ctx, rdma.SendWR{Op: rdma.OpSendImm, SGL: []rdma.SGE{{Buf: buf.Bytes()[:n], LKey: buf.LKey()}}})
			}
			select {
			case <-conn.Done():
			case <-ctx.Done():
				t.Fatal("the server goes on")
			}
			if got := counted(s); got != c.n {
				t.Errorf("counted %q, want %q", got, c.n)
			}
		})
	}
}

// TestFlood: a client that does not wait for answers fills the server's queue. The server then ends
// the connection.
func TestFlood(t *testing.T) {
	const latency = 1
	s, at := serve(t, everyone(nil))
	conn, err := dial(t, at, perf.EncodeRequest(perf.Send, latency, 8, 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	buf, err := conn.Register(make([]byte, 64), rdma.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	// The client has no receives. The answers of the server wait, because each gets an RNR NAK.
	for conn.Err() == nil && ctx.Err() == nil {
		wrs := make([]rdma.SendWR, 8)
		for i := range wrs {
			wrs[i] = rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{{Buf: buf.Bytes()[:8], LKey: buf.LKey()}}}
		}
		_, _ = conn.Do(ctx, wrs...)
	}
	<-conn.Done()
	if got := counted(s); got != "accepted 1, ended_misused 1" {
		t.Errorf("counted %q", got)
	}
}

// TestNobody: if nothing listens on the port, the error says so.
func TestNobody(t *testing.T) {
	_, err := run(t, netip.AddrPortFrom(open(t).Addr(), perf.Port),
		perf.Options{Op: perf.Write, Sizes: []int{2}, Iterations: 1, Depth: 1, QPs: 1})
	var c *perf.ConnectError
	if !errors.As(err, &c) || c.Reason != 8 {
		t.Errorf("%v", err)
	}
}

// TestCancel: a run that is canceled, before it connects or during a test, frees everything.
func TestCancel(t *testing.T) {
	for _, after := range []time.Duration{0, 50 * time.Millisecond} {
		_, at := serve(t, everyone(nil))
		ctx, cancel := context.WithTimeout(context.Background(), after)
		o := perf.Options{Op: perf.Send, Sizes: []int{64}, Iterations: 1 << 40, Depth: 4, QPs: 2, Bidirectional: true}
		if err := perf.Run(ctx, open(t), at, o, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
}

// TestAllocations: a message allocates nothing, on either side.
func TestAllocations(t *testing.T) {
	const n = 20000
	for _, o := range []perf.Options{
		{Op: perf.Write, Depth: 64, QPs: 2},
		{Op: perf.Send, Depth: 64, QPs: 1, Bidirectional: true},
		{Op: perf.Send, Depth: 1, QPs: 1, Latency: true},
	} {
		_, at := serve(t, everyone(nil))
		o.Sizes, o.Iterations = []int{64, 64}, n
		var before, after runtime.MemStats
		err := perf.Run(context.Background(), open(t), at, o, func(perf.Result) {
			before = after
			runtime.ReadMemStats(&after)
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := after.Mallocs - before.Mallocs; got > n/20 {
			t.Errorf("%+v: %d allocations for %d messages", o, got, n)
		}
	}
}

// BenchmarkMessage measures one message, with both sides in one process. It must allocate nothing.
func BenchmarkMessage(b *testing.B) {
	for _, c := range []struct {
		name string
		o    perf.Options
	}{
		{"write bw", perf.Options{Op: perf.Write, Depth: 128, QPs: 1}},
		{"send bw both ways", perf.Options{Op: perf.Send, Depth: 128, QPs: 1, Bidirectional: true}},
		{"write lat", perf.Options{Op: perf.Write, Depth: 1, QPs: 1, Latency: true}},
	} {
		b.Run(c.name, func(b *testing.B) {
			_, at := serve(b, everyone(nil))
			o := c.o
			o.Sizes, o.Iterations = []int{64, 64}, b.N
			first := true
			dev := open(b)
			b.ReportAllocs()
			b.SetBytes(64)
			err := perf.Run(context.Background(), dev, at, o, func(perf.Result) {
				if first { // to warm up
					b.ResetTimer()
					first = false
				}
			})
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
