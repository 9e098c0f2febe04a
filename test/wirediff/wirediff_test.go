package wirediff_test

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rdmatest/requests"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wire/wiretest"
	"github.com/rstored/rstored/test/wirediff"
)

var (
	kernelPlayed = wirediff.Played{Client: netip.MustParseAddr("10.99.0.3"), Server: netip.MustParseAddr("10.99.0.2")}
	oursPlayed   = wirediff.Played{
		Client: netip.MustParseAddr("127.97.1.2"), Server: netip.MustParseAddr("127.97.1.1"), Ours: wirediff.Client | wirediff.Server,
	}
)

// kernel is the sequence as two Linux kernels have played it: testdata/kernel.pcap is
// what the case wire-diff of test/guest has captured of them.
func kernel(t *testing.T) []*wirediff.Session {
	t.Helper()
	pcap, err := os.ReadFile("testdata/kernel.pcap")
	if err != nil {
		t.Fatal(err)
	}
	all, err := wirediff.Sessions(pcap)
	if err != nil {
		t.Fatal(err)
	}
	got, err := wirediff.Of(all, kernelPlayed)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestOursLikeKernel plays the sequence between two devices of ours, and holds every
// packet against those of the kernel.
func TestOursLikeKernel(t *testing.T) {
	all, err := wirediff.Read(playOurs(t))
	if err != nil {
		t.Fatal(err)
	}
	got, err := wirediff.Of(all, oursPlayed)
	if err != nil {
		t.Fatal(err)
	}
	r, err := wirediff.Compare(kernel(t), got, oursPlayed)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Diffs) > 0 {
		t.Error(r)
	}
	if unmet := wirediff.Unmet(r); len(unmet) > 0 {
		t.Errorf("differences that are none: %q", unmet)
	}
	t.Log(r)
}

// recorder is what two devices have received. Requests are made one at a time, so the
// order is that of the wire.
type recorder struct {
	mu     sync.Mutex
	frames []wiretest.Frame
}

// recorded is a link of the recorder. Its clock is slow, so that on a busy host no
// request is sent again because an answer took longer than the shortest timeout.
type recorded struct {
	link.Link
	r     *recorder
	begin rdma.Time
}

// slower is by how much the clock is slow.
const slower = 50

func (l recorded) Now() rdma.Time { return l.begin + (l.Link.Now()-l.begin)/slower }

func (l recorded) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	if deadline > 0 {
		deadline = l.begin + (deadline-l.begin)*slower
	}
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

func playOurs(t *testing.T) []wiretest.Frame {
	t.Helper()
	var r recorder
	for _, part := range requests.Parts() {
		all, err := requests.Parse(part)
		if err != nil {
			t.Fatal(err)
		}
		r.play(t, all)
	}
	return r.frames
}

func (r *recorder) play(t *testing.T, all []requests.Connection) {
	t.Helper()
	open := func(addr netip.Addr) *roce.Device {
		// The kernel's packets are of 1024 bytes.
		dev, err := roce.Open(roce.Config{Addr: addr, PathMTUMax: 1024, Wrap: func(_ int, l link.Link) link.Link { return recorded{l, r, l.Now()} }})
		if err != nil {
			t.Fatal(err)
		}
		return dev
	}
	server, client := open(oursPlayed.Server), open(oursPlayed.Client)
	defer func() { _ = server.Close() }()
	defer func() { _ = client.Close() }()
	s, err := requests.Listen(server, all)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	if err := requests.Call(ctx, client, server.Addr(), all); err != nil {
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

// TestNotices: each kind of mistake is found, and told of in the connection where it is.
func TestNotices(t *testing.T) {
	first := func(op wire.Opcode, change func(p *wirediff.Packet)) func(s []*wirediff.Session) {
		return func(s []*wirediff.Session) {
			for i := range s[0].Asked {
				if s[0].Asked[i].Op == op {
					change(&s[0].Asked[i])
					return
				}
			}
			t.Fatalf("no %v", op)
		}
	}
	for _, c := range []struct {
		name string
		do   func(s []*wirediff.Session)
	}{
		{"opcode", first(wire.SendOnlyImm, func(p *wirediff.Packet) { p.Op = wire.SendOnly })},
		{"PSN", first(wire.WriteLast, func(p *wirediff.Packet) { p.At++ })},
		{"AckReq", first(wire.WriteOnly, func(p *wirediff.Packet) { p.AckReq = false })},
		{"Solicited", first(wire.SendMiddle, func(p *wirediff.Packet) { p.Solicited = true })},
		{"MigReq", first(wire.ReadRespLast, func(p *wirediff.Packet) { p.MigReq = true })},
		{"P_Key", first(wire.SendOnly, func(p *wirediff.Packet) { p.PKey = 0x7fff })},
		{"pad", first(wire.SendLast, func(p *wirediff.Packet) { p.Pad = 0 })},
		{"RETH length", first(wire.WriteFirst, func(p *wirediff.Packet) { p.RETH.Len-- })},
		{"RETH address", first(wire.ReadRequest, func(p *wirediff.Packet) { p.RETH.VA++ })},
		{"RETH key", first(wire.ReadRequest, func(p *wirediff.Packet) { p.RETH.RKey ^= 1 })},
		{"syndrome", first(wire.Acknowledge, func(p *wirediff.Packet) { p.AETH.Syndrome = 0x1e })},
		{"MSN", first(wire.AtomicAck, func(p *wirediff.Packet) { p.AETH.MSN-- })},
		{"immediate", first(wire.WriteOnlyImm, func(p *wirediff.Packet) { p.Imm++ })},
		{"AtomicETH", first(wire.CompareSwap, func(p *wirediff.Packet) { p.Atomic.Compare++ })},
		{"AtomicAckETH", first(wire.AtomicAck, func(p *wirediff.Packet) { p.AtomicAck++ })},
		{"IETH", first(wire.SendOnlyInv, func(p *wirediff.Packet) { p.InvRKey++ })},
		{"payload length", first(wire.SendOnlyInv, func(p *wirediff.Packet) { p.Payload = append(p.Payload, 0) })},
		{"payload", first(wire.ReadRespMiddle, func(p *wirediff.Packet) { p.Payload = bytes.Repeat([]byte{1}, len(p.Payload)) })},
		{"a packet less", func(s []*wirediff.Session) { s[0].Asked = slices.Delete(s[0].Asked, 20, 21) }},
		{"a request twice", func(s []*wirediff.Session) { s[0].Asked = slices.Insert(s[0].Asked, 20, s[0].Asked[20]) }},
		{"no ACK at the end", func(s []*wirediff.Session) { s[0].Asked = s[0].Asked[:len(s[0].Asked)-1] }},
		{"no hello", func(s []*wirediff.Session) { s[0].Told = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := kernel(t)
			c.do(got)
			r, err := wirediff.Compare(kernel(t), got, wirediff.Played{})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Diffs) != 1 || !strings.HasPrefix(r.Diffs[0], "good, ") {
				t.Errorf("noticed: %v", r)
			}
		})
	}
}

// TestPassesOver: what is a matter of time is no difference.
func TestPassesOver(t *testing.T) {
	for _, c := range []struct {
		name, in string
		do       func(s *wirediff.Session)
	}{
		{"nothing", "good", func(*wirediff.Session) {}},
		{"an ACK twice", "good", func(s *wirediff.Session) { s.Asked = slices.Insert(s.Asked, 2, s.Asked[1]) }},
		{"a message cut by its NAK", "long-write-wrong-key", func(s *wirediff.Session) {
			s.Asked = slices.DeleteFunc(s.Asked, func(p wirediff.Packet) bool { return p.At > 0 })
		}},
		{"not ready twice", "not-ready", func(s *wirediff.Session) {
			i := slices.IndexFunc(s.Asked, func(p wirediff.Packet) bool { return p.AETH.Syndrome == wire.SyndromeRNR })
			s.Asked = slices.Insert(s.Asked, i+1, s.Asked[i-1], s.Asked[i])
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := kernel(t)
			for _, s := range got {
				if s.Name == c.in {
					c.do(s)
				}
			}
			r, err := wirediff.Compare(kernel(t), got, wirediff.Played{})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Diffs) != 0 {
				t.Errorf("noticed: %v", r)
			}
		})
	}
}
