package wiretest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Frame is one RoCEv2 packet of a capture. Datagram aliases the capture.
type Frame struct {
	Number   int   // of the packet in the capture, counted from 1 as tshark does
	Time     int64 // when it was captured, in nanoseconds since 1970
	Src, Dst netip.Addr
	SrcPort  uint16
	TOS      uint8  // TOS or traffic class
	ID       uint16 // IPv4 identification, 0 for IPv6
	DF       bool   // IPv4 only
	Datagram []byte // BTH to ICRC
}

// ErrFormat is returned for what is not a pcap file of Ethernet frames.
var ErrFormat = errors.New("wiretest: not a pcap file of Ethernet frames")

// The pcap file format. The first word of the file header shows the byte order and the unit of
// times.
//
//	file header, 24 bytes     magic, ..., link type at 20
//	record header, 16 bytes   seconds, fraction, bytes in the file, bytes on the wire
const (
	magicMicro   = 0xa1b2c3d4
	magicNano    = 0xa1b23c4d
	fileHeader   = 24
	recordHeader = 16
	linkEthernet = 1

	etherLen  = 14
	etherVLAN = 0x8100
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd

	protoUDP = 17
	udpLen   = 8
	rocePort = 4791
	flagDF   = 0x4000
)

// records calls each for every packet of a capture, with its number and its time in
// nanoseconds since 1970; whole is false for one that was cut short.
func records(pcap []byte, each func(n int, at int64, b []byte, whole bool) error) error {
	if len(pcap) < fileHeader {
		return ErrFormat
	}
	var order binary.ByteOrder = binary.LittleEndian
	if m := order.Uint32(pcap); m != magicMicro && m != magicNano {
		order = binary.BigEndian
		if m = order.Uint32(pcap); m != magicMicro && m != magicNano {
			return ErrFormat
		}
	}
	if order.Uint32(pcap[20:])&0xffff != linkEthernet {
		return ErrFormat
	}
	unit := int64(1000)
	if order.Uint32(pcap) == magicNano {
		unit = 1
	}
	rest := pcap[fileHeader:]
	for n := 1; len(rest) > 0; n++ {
		if len(rest) < recordHeader {
			return fmt.Errorf("wiretest: packet %d has no whole record header", n)
		}
		captured, length := order.Uint32(rest[8:]), order.Uint32(rest[12:])
		if uint64(captured) > uint64(len(rest)-recordHeader) {
			return fmt.Errorf("wiretest: packet %d ends behind the file", n)
		}
		at := int64(order.Uint32(rest))*1e9 + int64(order.Uint32(rest[4:]))*unit
		b := rest[recordHeader : recordHeader+int(captured)]
		rest = rest[recordHeader+int(captured):]
		if err := each(n, at, b, captured == length); err != nil {
			return fmt.Errorf("wiretest: packet %d: %w", n, err)
		}
	}
	return nil
}

var errCut = errors.New("it was not captured whole")

// Frames lists the RoCEv2 packets of a capture in order. It skips packets of other protocols. A
// RoCEv2 packet that was cut short or fragmented is an error: a test would otherwise not notice
// that it is missing.
func Frames(pcap []byte) (out []Frame, err error) {
	err = records(pcap, func(n int, at int64, b []byte, whole bool) error {
		f, ok, err := frame(b)
		if err != nil || !ok {
			return err
		}
		if !whole {
			return errCut
		}
		f.Number, f.Time = n, at
		out = append(out, f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// frame takes an Ethernet frame apart; ok is false if it is not RoCEv2.
func frame(b []byte) (f Frame, ok bool, err error) {
	if len(b) < etherLen {
		return f, false, nil
	}
	kind, b := binary.BigEndian.Uint16(b[12:]), b[etherLen:]
	if kind == etherVLAN && len(b) >= 4 {
		kind, b = binary.BigEndian.Uint16(b[2:]), b[4:]
	}
	switch {
	case kind == etherIPv4 && len(b) >= 20 && b[9] == protoUDP:
		ihl := int(b[0]&0xf) * 4
		if ihl != 20 || len(b) < ihl+udpLen || binary.BigEndian.Uint16(b[6:])&^flagDF != 0 {
			return f, false, errors.New("an IPv4 packet with options or of fragments")
		}
		f.TOS, f.ID, f.DF = b[1], binary.BigEndian.Uint16(b[4:]), b[6]&(flagDF>>8) != 0
		f.Src, f.Dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		b = b[ihl:]
	case kind == etherIPv6 && len(b) >= 40+udpLen && b[6] == protoUDP:
		f.TOS = b[0]<<4 | b[1]>>4
		f.Src, f.Dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		b = b[40:]
	default:
		return f, false, nil
	}
	if binary.BigEndian.Uint16(b[2:]) != rocePort {
		return f, false, nil
	}
	f.SrcPort = binary.BigEndian.Uint16(b)
	n := int(binary.BigEndian.Uint16(b[4:]))
	if n < udpLen || n > len(b) {
		return f, false, fmt.Errorf("a UDP length of %d with %d bytes there", n, len(b))
	}
	f.Datagram = b[udpLen:n] // Ethernet padding lies behind it
	return f, true, nil
}
