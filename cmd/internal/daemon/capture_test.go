package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"

	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs/nfs3"
)

// shared is a buffer for two goroutines.
type shared struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *shared) bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.b.Bytes())
}

// TestCapture records a connection and a call of it, and checks that every
// packet is a whole one with the checksums it had on the wire, and so with the
// right IPv4 identification.
func TestCapture(t *testing.T) {
	cfg := testConfig(t, t.TempDir()+"=/a")
	cfg.TCPListen = nil
	server := netip.MustParseAddr(testAddr())
	cfg.RDMAListen = []string{netip.AddrPortFrom(server, config.RDMAPort).String()}
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	capture, hangUp := context.WithCancel(ctx)
	var file shared
	ended := make(chan error, 1)
	go func() { ended <- ctl.Capture(capture, control.CaptureSpec{}, &file) }()
	for len(file.bytes()) == 0 { // the header says that it has begun
		time.Sleep(time.Millisecond)
	}
	if err := d.Capture(ctx, control.CaptureSpec{}, &shared{}); err == nil ||
		!strings.Contains(err.Error(), "is running") {
		t.Errorf("a second capture: %v", err)
	}
	if err := d.Capture(ctx, control.CaptureSpec{Device: "127.0.0.1"}, &shared{}); err == nil ||
		!strings.Contains(err.Error(), "not found") {
		t.Errorf("a capture of another device: %v", err)
	}

	dev, err := roce.Open(roce.Config{Addr: netip.MustParseAddr(testAddr()), LocalICRC: true})
	if err != nil {
		t.Fatal(err)
	}
	c, err := rpcrdma.Dial(ctx, dev, netip.AddrPortFrom(server, config.RDMAPort), rpcrdma.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Call(ctx, &rpc.Request{Prog: nfs3.Program, Vers: nfs3.Version}); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	opcodes := func() (n int, set map[wire.Opcode]int) { return checkPcap(t, file.bytes()) }
	for n, _ := opcodes(); n < 8 && ctx.Err() == nil; n, _ = opcodes() {
		time.Sleep(5 * time.Millisecond)
	}
	hangUp()
	if err := <-ended; err != nil {
		t.Errorf("capture: %v", err)
	}
	_, set := opcodes()
	if set[wire.UDSendOnly] < 3 || set[wire.SendOnly]+set[wire.SendOnlyInv] < 2 || set[wire.Acknowledge] < 1 {
		t.Errorf("captured %v", set)
	}
}

// TestCaptureOfAll: without the name of a device, packets of all devices in user space are
// recorded, as a host has several addresses.
func TestCaptureOfAll(t *testing.T) {
	cfg := testConfig(t, t.TempDir()+"=/a")
	cfg.TCPListen, cfg.RDMAListen = nil, nil
	servers := []netip.Addr{netip.MustParseAddr(testAddr()), netip.MustParseAddr(testAddr())}
	for _, a := range servers {
		cfg.RDMAListen = append(cfg.RDMAListen, netip.AddrPortFrom(a, config.RDMAPort).String())
	}
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	ctx, hangUp := context.WithTimeout(t.Context(), 30*time.Second)
	defer hangUp()
	var file shared
	ended := make(chan error, 1)
	go func() { ended <- ctl.Capture(ctx, control.CaptureSpec{}, &file) }()
	for len(file.bytes()) == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := d.Capture(ctx, control.CaptureSpec{Device: servers[1].String()}, &shared{}); err == nil ||
		!strings.Contains(err.Error(), "is running") {
		t.Errorf("a second capture of one of them: %v", err)
	}
	for _, a := range servers {
		dev, err := roce.Open(roce.Config{Addr: netip.MustParseAddr(testAddr()), LocalICRC: true})
		if err != nil {
			t.Fatal(err)
		}
		c, err := rpcrdma.Dial(ctx, dev, netip.AddrPortFrom(a, config.RDMAPort), rpcrdma.ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Close(), dev.Close()
	}
	for both := false; !both && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		both = bytes.Contains(file.bytes(), servers[0].AsSlice()) && bytes.Contains(file.bytes(), servers[1].AsSlice())
	}
	hangUp()
	<-ended
	checkPcap(t, file.bytes())
	for _, a := range servers {
		if !bytes.Contains(file.bytes(), a.AsSlice()) {
			t.Errorf("no packet of %v was captured", a)
		}
	}
	// A queue pair that no device has is not found, and nothing is left of the capture before.
	err := d.Capture(t.Context(), control.CaptureSpec{QPN: 0xfffffe}, &shared{})
	if err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a queue pair that there is not: %v", err)
	}
}

// Lengths in a pcap file, and of the headers of its packets.
const (
	fileHdrLen   = 24
	recordHdrLen = 16
	ipv4Len      = 20
	udpLen       = 8
)

// sum16 is the Internet checksum of b (RFC 1071), which is 0 over a header with a good one.
func sum16(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// checkPcap checks a pcap file and counts its packets by opcode.
func checkPcap(t *testing.T, b []byte) (n int, set map[wire.Opcode]int) {
	t.Helper()
	set = make(map[wire.Opcode]int)
	// Times in nanoseconds, version 2.4, packets that begin with an IP header.
	if le := binary.LittleEndian; le.Uint32(b) != 0xa1b23c4d || le.Uint32(b[4:]) != 4<<16|2 || le.Uint32(b[20:]) != 101 {
		t.Fatalf("file header % x", b[:fileHdrLen])
	}
	for b = b[fileHdrLen:]; len(b) >= recordHdrLen; n++ {
		size := int(binary.LittleEndian.Uint32(b[8:]))
		if len(b) < recordHdrLen+size {
			break // the rest is under way
		}
		ip := b[recordHdrLen : recordHdrLen+size]
		b = b[recordHdrLen+size:]
		if sum16(ip[:ipv4Len]) != 0 {
			t.Errorf("packet %d: bad IP header checksum", n)
		}
		f := wire.Flow{
			Src: netip.AddrFrom4([4]byte(ip[12:16])), Dst: netip.AddrFrom4([4]byte(ip[16:20])),
			SrcPort: binary.BigEndian.Uint16(ip[20:]), TOS: ip[1],
		}
		dgram := ip[ipv4Len+udpLen:]
		id := binary.BigEndian.Uint16(ip[4:])
		want := f.ICRC(id, dgram[:len(dgram)-wire.ICRCLen], nil, 0)
		got := binary.LittleEndian.Uint32(dgram[len(dgram)-wire.ICRCLen:])
		if got != want {
			t.Errorf("packet %d: ICRC %#x, and %#x by the identification %d that was written", n, got, want, id)
		}
		var p wire.Packet
		if err := p.Parse(dgram); err != nil {
			t.Errorf("packet %d: %v", n, err)
		}
		set[p.Op]++
	}
	return n, set
}
