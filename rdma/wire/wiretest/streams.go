package wiretest

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Stream is one direction of a TCP connection of a capture: what was sent, in order.
type Stream struct {
	Src, Dst netip.AddrPort
	Data     []byte

	next uint32 // sequence number behind Data
}

// TCP, as much as is needed to put a stream together.
const (
	protoTCP = 6
	tcpLen   = 20
	flagSYN  = 0x02
)

var errGap = errors.New("a TCP stream with a gap")

// Streams puts the TCP streams over IPv4 of a capture together. A stream with a gap is an error: a
// test would otherwise not notice what is missing. A stream that began before the capture is read
// from its first captured packet on.
func Streams(pcap []byte) ([]*Stream, error) {
	type key struct{ src, dst netip.AddrPort }
	open := make(map[key]*Stream)
	var out []*Stream
	err := records(pcap, func(_ int, _ int64, b []byte, whole bool) error {
		if len(b) < etherLen+20 || binary.BigEndian.Uint16(b[12:]) != etherIPv4 {
			return nil
		}
		ip := b[etherLen:]
		ihl, total := int(ip[0]&0xf)*4, int(binary.BigEndian.Uint16(ip[2:]))
		if ip[9] != protoTCP || ihl < 20 || total < ihl+tcpLen {
			return nil
		}
		if !whole || total > len(ip) {
			return errCut
		}
		seg := ip[ihl:total] // Ethernet padding lies behind it
		off := int(seg[12]>>4) * 4
		if off < tcpLen || off > len(seg) {
			return errCut
		}
		k := key{
			netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:])), binary.BigEndian.Uint16(seg)),
			netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:])), binary.BigEndian.Uint16(seg[2:])),
		}
		seq, syn := binary.BigEndian.Uint32(seg[4:]), seg[13]&flagSYN != 0
		data := seg[off:]
		s := open[k]
		if syn {
			seq++
		}
		if s == nil || syn && seq != s.next-uint32(len(s.Data)) {
			s = &Stream{Src: k.src, Dst: k.dst, next: seq}
			open[k] = s
			out = append(out, s)
		}
		behind := int32(s.next - seq) // what was seen already
		if behind < 0 {
			if len(data) == 0 {
				return nil
			}
			return errGap
		}
		if int(behind) < len(data) {
			s.Data = append(s.Data, data[behind:]...)
			s.next = seq + uint32(len(data))
		}
		return nil
	})
	return out, err
}
