package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rdmatest/netns"
	"github.com/rstored/rstored/rdma/wire"
)

// TestForgedPathMTU: a forged ICMP message with a small path MTU stops no packet. An attacker needs
// only the two addresses to forge one, because both ports are always 4791.
func TestForgedPathMTU(t *testing.T) {
	const mtu = 4200
	left, right := netns.Pair(t, mtu, []string{"192.0.2.1/24", "fd00::1/64"}, []string{"192.0.2.2/24", "fd00::2/64"})
	for _, c := range []struct {
		name, from, to string
		forge          func(from, to netip.Addr) error
		learnt         string
	}{
		{"fragmentation needed", "192.0.2.1", "192.0.2.2", fragmentationNeeded, "mtu 600"},
		{"packet too big", "fd00::1", "fd00::2", packetTooBig, "mtu 1280"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a, b *Link
			var err, errB error
			left.Do(func() { a, err = Open(Config{Addr: netip.MustParseAddr(c.from)}) })
			right.Do(func() { b, errB = Open(Config{Addr: netip.MustParseAddr(c.to)}) })
			if err = errors.Join(err, errB); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { a.Close(); b.Close() })
			right.Do(func() { err = c.forge(a.LocalAddr(), b.LocalAddr()) })
			if err != nil {
				t.Fatal(err)
			}
			// The kernel accepts the ICMP message. Otherwise the test would prove nothing.
			route := ""
			for range 200 {
				if route, err = left.Run("ip", "route", "get", c.to); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(route, c.learnt) {
					break
				}
				time.Sleep(25 * time.Millisecond)
			}
			if !strings.Contains(route, c.learnt) {
				t.Fatalf("the forged message has no effect on the route: %s", route)
			}
			const packets = 40
			f := &wire.Flow{Src: a.LocalAddr(), Dst: b.LocalAddr()}
			batch := wire.NewBatch(64)
			for i := range packets {
				batch.Add(f, &wire.Packet{Op: wire.WriteMiddle, PSN: wire.PSN(i)}, [][]byte{make([]byte, 4096)})
			}
			if err := a.Send(batch); err != nil {
				t.Fatal(err)
			}
			rx := link.NewRx(8, 1<<16)
			from := &wire.Flow{Dst: b.LocalAddr()}
			for got, deadline := 0, b.Now()+20*rdma.Second; got < packets; {
				n, err := b.Recv(rx, deadline)
				if err != nil || b.Now() > deadline {
					t.Fatalf("%d of %d full-size packets arrived: %v", got, packets, err)
				}
				for i := range rx.D {
					d := &rx.D[i]
					from.Src, from.SrcPort = d.Src, d.SrcPort
					if ok, exact, _ := wire.VerifyICRC(from, d.Data, d.Nth); !ok || !exact {
						t.Errorf("a packet does not verify: %v, %v", ok, exact)
					}
				}
				got += n
			}
		})
	}
	t.Run("a smaller interface leads there", func(t *testing.T) {
		// The packets leave by another interface than the one of our address. They fail for their
		// length, not for segmentation.
		third := netns.New(t)
		left.Join(t, "small-left", third, "small-right", 1500)
		left.Addr(t, "198.51.100.1/24", "small-left")
		third.Addr(t, "198.51.100.2/24", "small-right")
		var a *Link
		var err error
		left.Do(func() { a, err = Open(Config{Addr: netip.MustParseAddr("192.0.2.1")}) })
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if !a.Stats().GSOActive {
			t.Skip("the kernel has no segmentation offload")
		}
		f := &wire.Flow{Src: a.LocalAddr(), Dst: netip.MustParseAddr("198.51.100.2")}
		batch := wire.NewBatch(8)
		for i := range 4 {
			batch.Add(f, &wire.Packet{Op: wire.WriteMiddle, PSN: wire.PSN(i)}, [][]byte{make([]byte, 4000)})
		}
		var big *link.TooBigError
		if err := a.Send(batch); !errors.As(err, &big) || big.Dst != f.Dst {
			t.Errorf("got %v", err)
		}
		if s := a.Stats(); !s.GSOActive || s.GSODisabled != 0 || s.TxTooBig != 4 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("longer than the interface", func(t *testing.T) {
		for _, c := range []struct{ from, to string }{{"192.0.2.1", "192.0.2.2"}, {"fd00::1", "fd00::2"}} {
			var a *Link
			var err error
			left.Do(func() { a, err = Open(Config{Addr: netip.MustParseAddr(c.from)}) })
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			batch := wire.NewBatch(1)
			batch.Add(&wire.Flow{Src: a.LocalAddr(), Dst: netip.MustParseAddr(c.to)}, &wire.Packet{Op: wire.WriteMiddle},
				[][]byte{make([]byte, 4200)})
			var big *link.TooBigError
			if err := a.Send(batch); !errors.As(err, &big) || big.Dst != netip.MustParseAddr(c.to) || big.MTU != mtu ||
				big.Size <= mtu {
				t.Errorf("%s: %v", c.from, err)
			}
		}
	})
}

// udpHeader makes the UDP header of a packet between two RDMA sockets.
func udpHeader() []byte {
	b := binary.BigEndian.AppendUint16(nil, wire.Port)
	b = binary.BigEndian.AppendUint16(b, wire.Port)
	b = binary.BigEndian.AppendUint16(b, 4096+28)
	return binary.BigEndian.AppendUint16(b, 0)
}

// fragmentationNeeded sends an ICMP message from the host from: a packet to the address to does not
// fit 600 bytes (RFC 1191).
func fragmentationNeeded(from, to netip.Addr) error {
	src, dst := from.As4(), to.As4()
	b := []byte{3, 4, 0, 0, 0, 0, 600 >> 8, 600 & 0xff}
	b = append(b, 0x45, 0, 0x10, 0x38, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	b = append(append(b, src[:]...), dst[:]...)
	binary.BigEndian.PutUint16(b[18:], checksum(b[8:28]))
	b = append(b, udpHeader()...)
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return rawSend(unix.AF_INET, unix.IPPROTO_ICMP, &unix.SockaddrInet4{Addr: src}, b)
}

// packetTooBig is fragmentationNeeded for IPv6, with 1280 bytes (RFC 4443 section 3.2). The kernel
// adds the checksum.
func packetTooBig(from, to netip.Addr) error {
	src, dst := from.As16(), to.As16()
	b := []byte{2, 0, 0, 0, 0, 0, 1280 >> 8, 1280 & 0xff}
	b = append(b, 0x60, 0, 0, 0, 0x10, 0x24, unix.IPPROTO_UDP, 64)
	b = append(append(b, src[:]...), dst[:]...)
	b = append(b, udpHeader()...)
	return rawSend(unix.AF_INET6, unix.IPPROTO_ICMPV6, &unix.SockaddrInet6{Addr: src}, b)
}

func rawSend(family, proto int, to unix.Sockaddr, b []byte) error {
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return fmt.Errorf("a raw socket: %w", err)
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, b, 0, to)
}

// checksum is the Internet checksum of b (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
