package wirediff_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire/wiretest"
	"github.com/rstored/rstored/test/rdma/requests"
	"github.com/rstored/rstored/test/wirediff"
)

var (
	kernels     = wirediff.Played{Client: netip.MustParseAddr("10.99.0.3"), Server: netip.MustParseAddr("10.99.0.2")}
	kernelCalls = wirediff.Played{
		Client: netip.MustParseAddr("10.99.0.2"), Server: netip.MustParseAddr("10.99.0.1"),
		Ours: wirediff.Server,
	}
	oursCalls = wirediff.Played{
		Client: netip.MustParseAddr("10.99.0.1"), Server: netip.MustParseAddr("10.99.0.2"),
		Ours: wirediff.Client,
	}
)

// recording is the sequence as it was played by Linux 6.1 and ours: what the case
// wire-diff of test/guest has captured. RSTORED_GUEST_RECORDING=file has it make
// another, which a change of the sequence needs.
var recording = sync.OnceValues(func() ([]byte, error) {
	f, err := os.Open("testdata/wire.pcap.gz")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
})

func recorded(t *testing.T, p wirediff.Played) []*wirediff.Session {
	t.Helper()
	pcap, err := recording()
	if err != nil {
		t.Fatal(err)
	}
	all, err := wirediff.Sessions(pcap)
	if err != nil {
		t.Fatal(err)
	}
	got, err := wirediff.Of(all, p)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func compare(t *testing.T, kernel, got []*wirediff.Session, p wirediff.Played) *wirediff.Report {
	t.Helper()
	r, err := wirediff.Compare(kernel, got, p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func compareLosses(t *testing.T, a, b []*wirediff.Session, pa, pb wirediff.Played) *wirediff.Report {
	t.Helper()
	r, err := wirediff.CompareLosses(a, b, pa, pb)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestOursLikeKernel plays the sequence between two devices of ours, and holds every
// packet against those of the kernel.
func TestOursLikeKernel(t *testing.T) {
	frames, ours := playOurs(t)
	all, err := wirediff.Read(frames)
	if err != nil {
		t.Fatal(err)
	}
	got, err := wirediff.Of(all, ours)
	if err != nil {
		t.Fatal(err)
	}
	none(t, compare(t, recorded(t, kernels), got, ours),
		compareLosses(t, recorded(t, kernelCalls), got, kernelCalls, ours),
		compareLosses(t, recorded(t, oursCalls), got, oursCalls, ours))
}

// TestRecorded holds ours in the recording against the kernel's.
func TestRecorded(t *testing.T) {
	none(t, compare(t, recorded(t, kernels), recorded(t, kernelCalls), kernelCalls),
		compare(t, recorded(t, kernels), recorded(t, oursCalls), oursCalls),
		compareLosses(t, recorded(t, kernelCalls), recorded(t, oursCalls), kernelCalls, oursCalls))
}

// none: nothing differs but what is listed, and all of that does.
func none(t *testing.T, reports ...*wirediff.Report) {
	t.Helper()
	for _, r := range reports {
		if len(r.Diffs) > 0 {
			t.Error(r)
		}
		t.Log(r)
	}
	if unmet := wirediff.Unmet(reports...); len(unmet) > 0 {
		t.Errorf("differences that are none: %q", unmet)
	}
}

// recorder is what two devices have received. Requests are made one at a time, so the
// order is that of the wire.
type recorder struct {
	mu     sync.Mutex
	frames []wiretest.Frame
}

// tapped is a link of the recorder.
type tapped struct {
	link.Link
	r *recorder
}

func (l tapped) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	n, err := l.Link.Recv(rx, deadline)
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	for _, d := range rx.D[:n] {
		l.r.frames = append(l.r.frames, wiretest.Frame{
			Number: len(l.r.frames) + 1, Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort, TOS: d.TOS, Datagram: bytes.Clone(d.Data),
		})
	}
	return n, err
}

func playOurs(t *testing.T) ([]wiretest.Frame, wirediff.Played) {
	t.Helper()
	var r recorder
	played := wirediff.Played{Ours: wirediff.Client | wirediff.Server}
	for _, part := range requests.Parts() {
		all, err := requests.Parse(part)
		if err != nil {
			t.Fatal(err)
		}
		r.play(t, &played, all)
	}
	return r.frames, played
}

// play plays a part between two devices, of any addresses the first time.
func (r *recorder) play(t *testing.T, played *wirediff.Played, all []requests.Connection) {
	t.Helper()
	loss := requests.NewLoss(false)
	open := func(addr netip.Addr, wrap func(int, link.Link) link.Link) *roce.Device {
		// The kernel's packets are of 1024 bytes.
		dev, err := roce.Open(roce.Config{Addr: addr, PathMTUMax: 1024, LocalICRC: true, Wrap: wrap})
		if err != nil {
			t.Fatal(err)
		}
		return dev
	}
	slower := rdma.Time(200)
	if all[0].Loses {
		slower = 10 // timeouts are what is compared
	}
	tap := func(_ int, l link.Link) link.Link { return tapped{requests.Slow(l, slower), r} }
	server := open(played.Server, tap)
	client := open(played.Client, func(i int, l link.Link) link.Link { return tap(i, loss.Wrap(i, l)) })
	defer func() { _ = server.Close() }()
	defer func() { _ = client.Close() }()
	played.Server, played.Client = server.Addr(), client.Addr()
	s, err := requests.Listen(server, nil, all)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	if err := requests.Call(ctx, client, loss, server.Addr(), all); err != nil {
		cancel()
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	// The last one's DREP is on its way.
	for !r.over(t) {
		select {
		case <-ctx.Done():
			t.Fatal("a connection is not over")
		case <-time.After(time.Millisecond):
		}
	}
}

// over reports whether the end of every connection was seen.
func (r *recorder) over(t *testing.T) bool {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	all, err := wirediff.Read(r.frames)
	if err != nil {
		t.Fatal(err)
	}
	return !slices.ContainsFunc(all, func(s *wirediff.Session) bool { return !s.Over })
}

// change changes the first packet of a session that is so.
func change(t *testing.T, all []*wirediff.Session, name string, is func(p *wirediff.Packet) bool,
	do func(p *wirediff.Packet),
) {
	t.Helper()
	for _, s := range all {
		for i := range s.Requests {
			if s.Name == name && is(&s.Requests[i]) {
				do(&s.Requests[i])
				return
			}
		}
	}
	t.Fatalf("no such packet in %s", name)
}
