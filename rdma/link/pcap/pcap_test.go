package pcap

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma/wire"
)

// TestRecordIPv6: lengths, addresses, traffic class, and the UDP checksum, which IPv6 requires.
func TestRecordIPv6(t *testing.T) {
	f := wire.Flow{
		Src:     netip.MustParseAddr("2001:db8::1"),
		Dst:     netip.MustParseAddr("2001:db8::2"),
		SrcPort: 0xc001,
		TOS:     0xb9,
	}
	dgram := []byte("seventeen bytes!!")
	b := AppendRecord(nil, time.Unix(1, 2), &f, dgram, 0)
	ip := b[recordHdrLen:]
	if len(ip) != ipv6Len+udpLen+len(dgram) || binary.LittleEndian.Uint32(b[8:]) != uint32(len(ip)) {
		t.Fatalf("%d bytes: % x", len(ip), b)
	}
	if ip[0] != 0x6b || ip[1] != 0x90 || !bytes.Equal(ip[8:24], f.Src.AsSlice()) ||
		!bytes.Equal(ip[24:40], f.Dst.AsSlice()) {
		t.Errorf("header % x", ip[:ipv6Len])
	}
	if sum := fold(sum16(protoUDP+uint32(udpLen+len(dgram)), ip[8:])); sum != 0xffff {
		t.Errorf("the UDP checksum does not add up: %#x", sum)
	}
}
