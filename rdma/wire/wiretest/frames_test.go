package wiretest

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// capture makes a pcap file of Ethernet frames in the byte order given.
func capture(order binary.ByteOrder, magic uint32, frames ...[]byte) []byte {
	b := make([]byte, fileHeader)
	order.PutUint32(b, magic)
	order.PutUint32(b[20:], linkEthernet)
	for _, f := range frames {
		var h [recordHeader]byte
		order.PutUint32(h[0:], 1700000000)
		order.PutUint32(h[4:], 123456)
		order.PutUint32(h[8:], uint32(len(f)))
		order.PutUint32(h[12:], uint32(len(f)))
		b = append(append(b, h[:]...), f...)
	}
	return b
}

func ether(kind uint16, vlan bool, body []byte) []byte {
	b := make([]byte, 12, 64)
	if vlan {
		b = append(b, 0x81, 0, 0, 7)
	}
	return append(binary.BigEndian.AppendUint16(b, kind), body...)
}

func ip4(id, port uint16, payload string) []byte {
	b := make([]byte, 20, 64)
	b[0], b[1], b[6], b[8], b[9] = 0x45, 0xc2, 0x40, 64, protoUDP
	binary.BigEndian.PutUint16(b[4:], id)
	copy(b[12:], []byte{192, 0, 2, 1, 192, 0, 2, 2})
	return append(b, udp(port, payload)...)
}

func ip6(payload string) []byte {
	b := make([]byte, 40, 64)
	b[0], b[1], b[6] = 0x6c, 0x20, protoUDP
	b[8], b[23], b[24], b[39] = 0x20, 1, 0x20, 2
	return append(b, udp(rocePort, payload)...)
}

func udp(port uint16, payload string) []byte {
	b := binary.BigEndian.AppendUint16(nil, 0xc001)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, uint16(udpLen+len(payload)))
	return append(append(b, 0, 0), payload...)
}

func TestFrames(t *testing.T) {
	roce := ether(etherIPv4, false, append(ip4(0x718c, rocePort, "datagram"), 0, 0, 0)) // Ethernet padding
	for _, c := range []struct {
		name string
		pcap []byte
		time int64
	}{
		{
			"little endian", capture(binary.LittleEndian, magicMicro, ether(0x0806, false, make([]byte, 28)), roce),
			1700000000_123456000,
		},
		{
			"big endian, nanoseconds", capture(binary.BigEndian, magicNano, ether(etherIPv4, false, ip4(1, 53, "name")), roce),
			1700000000_000123456,
		},
		{
			"VLAN", capture(binary.LittleEndian, magicMicro, nil, ether(etherIPv4, true, ip4(0x718c, rocePort, "datagram"))),
			1700000000_123456000,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs, err := Frames(c.pcap)
			if err != nil || len(fs) != 1 {
				t.Fatalf("%d frames, %v", len(fs), err)
			}
			f := fs[0]
			if f.Number != 2 || f.Time != c.time || f.ID != 0x718c || !f.DF || f.TOS != 0xc2 || f.SrcPort != 0xc001 ||
				string(f.Datagram) != "datagram" ||
				f.Src != netip.MustParseAddr("192.0.2.1") || f.Dst != netip.MustParseAddr("192.0.2.2") {
				t.Errorf("%+v", f)
			}
		})
	}
	fs, err := Frames(capture(binary.LittleEndian, magicMicro, ether(etherIPv6, false, ip6("six"))))
	if err != nil || len(fs) != 1 || fs[0].TOS != 0xc2 || fs[0].Src != netip.MustParseAddr("2000::1") ||
		string(fs[0].Datagram) != "six" {
		t.Errorf("IPv6: %+v, %v", fs, err)
	}
}

func TestFramesRefuses(t *testing.T) {
	whole := capture(binary.LittleEndian, magicMicro, ether(etherIPv4, false, ip4(1, rocePort, "datagram")))
	cut := capture(binary.LittleEndian, magicMicro, ether(etherIPv4, false, ip4(1, rocePort, "datagram")))
	binary.LittleEndian.PutUint32(cut[fileHeader+12:], 5000)
	fragment := ip4(1, rocePort, "datagram")
	fragment[6] = 0x20
	cooked := capture(binary.LittleEndian, magicMicro)
	cooked[20] = 113
	for _, c := range []struct {
		name string
		pcap []byte
	}{
		{"empty", nil},
		{"another format", make([]byte, 100)},
		{"another link type", cooked},
		{"half a record header", whole[:fileHeader+5]},
		{"half a packet", whole[:len(whole)-1]},
		{"a packet cut short", cut},
		{"a fragment", capture(binary.LittleEndian, magicMicro, ether(etherIPv4, false, fragment))},
	} {
		if fs, err := Frames(c.pcap); err == nil {
			t.Errorf("%s: %d frames and no error", c.name, len(fs))
		}
	}
}
