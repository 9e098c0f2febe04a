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
	if err := d.Capture(ctx, control.CaptureSpec{}, &shared{}); err == nil || !strings.Contains(err.Error(), "is running") {
		t.Errorf("a second capture: %v", err)
	}
	if err := d.Capture(ctx, control.CaptureSpec{Device: "127.0.0.1"}, &shared{}); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a capture of another device: %v", err)
	}

	dev, err := roce.Open(roce.Config{Addr: netip.MustParseAddr(testAddr())})
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

// TestRecordIPv6: lengths, addresses, traffic class and the UDP checksum, which
// IPv6 demands.
func TestRecordIPv6(t *testing.T) {
	f := wire.Flow{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"), SrcPort: 0xc001, TOS: 0xb9}
	dgram := []byte("seventeen bytes!!")
	b := appendRecord(nil, time.Unix(1, 2), &f, dgram, 0)
	ip := b[recordHdrLen:]
	if len(ip) != ipv6Len+udpLen+len(dgram) || binary.LittleEndian.Uint32(b[8:]) != uint32(len(ip)) {
		t.Fatalf("%d bytes: % x", len(ip), b)
	}
	if ip[0] != 0x6b || ip[1] != 0x90 || !bytes.Equal(ip[8:24], f.Src.AsSlice()) || !bytes.Equal(ip[24:40], f.Dst.AsSlice()) {
		t.Errorf("header % x", ip[:ipv6Len])
	}
	if sum := fold(sum16(protoUDP+uint32(udpLen+len(dgram)), ip[8:])); sum != 0xffff {
		t.Errorf("the UDP checksum does not add up: %#x", sum)
	}
}

// checkPcap checks a pcap file and counts its packets by opcode.
func checkPcap(t *testing.T, b []byte) (n int, set map[wire.Opcode]int) {
	t.Helper()
	set = make(map[wire.Opcode]int)
	if !bytes.Equal(b[:fileHdrLen], fileHeader()) {
		t.Fatalf("file header % x", b[:fileHdrLen])
	}
	for b = b[fileHdrLen:]; len(b) >= recordHdrLen; n++ {
		size := int(binary.LittleEndian.Uint32(b[8:]))
		if len(b) < recordHdrLen+size {
			break // the rest is under way
		}
		ip := b[recordHdrLen : recordHdrLen+size]
		b = b[recordHdrLen+size:]
		if fold(sum16(0, ip[:ipv4Len])) != 0xffff {
			t.Errorf("packet %d: bad IP header checksum", n)
		}
		f := wire.Flow{
			Src: netip.AddrFrom4([4]byte(ip[12:16])), Dst: netip.AddrFrom4([4]byte(ip[16:20])),
			SrcPort: binary.BigEndian.Uint16(ip[20:]), TOS: ip[1],
		}
		dgram := ip[ipv4Len+udpLen:]
		id := binary.BigEndian.Uint16(ip[4:])
		want := f.ICRC(id, dgram[:len(dgram)-wire.ICRCLen], nil, 0)
		if got := binary.LittleEndian.Uint32(dgram[len(dgram)-wire.ICRCLen:]); got != want {
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
