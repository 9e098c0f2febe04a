package udp

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A client only takes a reply from the address that it has called. A socket on all addresses learns
// that address with each datagram, and sends from it: IP_PKTINFO of ip(7), RFC 3542 section 6.

// wantLocal has the socket tell the local address of each datagram.
func wantLocal(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		// A socket of both families has both options; one of IPv4 refuses the first.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
		err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
	}); e != nil {
		return e
	}
	return err
}

// localOf returns the address that a datagram was sent to. unicast is false if that is not an
// address of this host alone. A datagram of IPv4 at a socket of both families has both messages, and
// only that of IPv4 shows a broadcast.
func localOf(oob []byte) (local netip.Addr, unicast bool) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return local, false
	}
	for _, m := range list {
		switch {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			// The address of this host, and the one in the header.
			here, to := netip.AddrFrom4([4]byte(m.Data[4:])), netip.AddrFrom4([4]byte(m.Data[8:]))
			return here, here == to && !to.IsMulticast()
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO &&
			len(m.Data) >= unix.SizeofInet6Pktinfo:
			local = netip.AddrFrom16([16]byte(m.Data)).Unmap()
			unicast = !local.IsMulticast()
		}
	}
	return local, unicast
}

// fromLocal is the control message that has a datagram sent from an address.
func fromLocal(a netip.Addr) []byte {
	if a.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
}
