package udp

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of sendmmsg and recvmmsg.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// sockaddr holds a sockaddr_in or a sockaddr_in6.
type sockaddr [unix.SizeofSockaddrInet6]byte

// Offsets of the fields of sockaddr_in and sockaddr_in6.
const (
	saPort   = 2
	saAddr4  = 4
	saAddr6  = 8
	saScope6 = 24
)

// put fills in an address and returns its length.
func (s *sockaddr) put(a netip.Addr, port uint16, scope uint32) uint32 {
	binary.BigEndian.PutUint16(s[saPort:], port)
	if a.Is4() {
		binary.NativeEndian.PutUint16(s[:], unix.AF_INET)
		b := a.As4()
		copy(s[saAddr4:], b[:])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(s[:], unix.AF_INET6)
	b := a.As16()
	binary.NativeEndian.PutUint32(s[saPort+2:], 0)
	copy(s[saAddr6:], b[:])
	binary.NativeEndian.PutUint32(s[saScope6:], 0)
	if a.IsLinkLocalUnicast() {
		binary.NativeEndian.PutUint32(s[saScope6:], scope)
	}
	return unix.SizeofSockaddrInet6
}

// get reads an address, without zone.
func (s *sockaddr) get() (netip.Addr, uint16) {
	port := binary.BigEndian.Uint16(s[saPort:])
	if binary.NativeEndian.Uint16(s[:]) == unix.AF_INET {
		return netip.AddrFrom4([4]byte(s[saAddr4 : saAddr4+4])), port
	}
	return netip.AddrFrom16([16]byte(s[saAddr6 : saAddr6+16])), port
}

// A control message is a header and a value, both padded to the word size.
var cmsgHeader = unix.CmsgLen(0)

// controlMax is room for the control messages of one message: at most two, with an int each.
const controlMax = 64

// putControl appends a control message to c, whose first n bytes are used.
func putControl(c []byte, n, level, typ, size, v int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c[n]))
	h.Level, h.Type = int32(level), int32(typ)
	h.SetLen(unix.CmsgLen(size))
	if size == 2 {
		binary.NativeEndian.PutUint16(c[n+cmsgHeader:], uint16(v))
	} else {
		binary.NativeEndian.PutUint32(c[n+cmsgHeader:], uint32(v))
	}
	return n + unix.CmsgSpace(size)
}

// parseControl reads the segment size and the traffic class out of the control
// messages of a received message; what is absent is 0.
func parseControl(c []byte) (segment int, tos uint8) {
	for len(c) >= cmsgHeader {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
		n := int(h.Len)
		if n < cmsgHeader || n > len(c) {
			return segment, tos
		}
		v := c[cmsgHeader:n]
		switch {
		case h.Level == unix.IPPROTO_UDP && h.Type == udpGRO && len(v) >= 4:
			segment = int(binary.NativeEndian.Uint32(v))
		case h.Level == unix.IPPROTO_UDP && h.Type == udpGRO && len(v) >= 2:
			segment = int(binary.NativeEndian.Uint16(v))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && len(v) >= 1:
			tos = v[0]
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && len(v) >= 4:
			tos = uint8(binary.NativeEndian.Uint32(v))
		}
		next := unix.CmsgSpace(n - cmsgHeader)
		if next >= len(c) {
			break
		}
		c = c[next:]
	}
	return segment, tos
}
