//go:build rdmacore && linux && cgo

package verbs

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
)

// sockaddr is a sockaddr_in or sockaddr_in6, as the connection manager takes and gives addresses:
//
//	       0       2     4           8            24       28
//	IPv4   family  port  address
//	IPv6   family  port  flow label  address      scope
//
// Family and scope are in the host's order, the port is in the network's.
type sockaddr = [28]byte

func toSockaddr(a netip.AddrPort) (out sockaddr) {
	binary.BigEndian.PutUint16(out[2:], a.Port())
	if x := a.Addr().Unmap(); x.Is4() {
		binary.NativeEndian.PutUint16(out[:], syscall.AF_INET)
		copy(out[4:], x.AsSlice())
		return out
	}
	binary.NativeEndian.PutUint16(out[:], syscall.AF_INET6)
	copy(out[8:], a.Addr().AsSlice())
	if z := a.Addr().Zone(); z != "" {
		if i, err := net.InterfaceByName(z); err == nil {
			binary.NativeEndian.PutUint32(out[24:], uint32(i.Index))
		}
	}
	return out
}

// fromSockaddr returns the invalid address for other families.
func fromSockaddr(b *sockaddr) netip.AddrPort {
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b[:]) {
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case syscall.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port)
	}
	return netip.AddrPort{}
}
