package udp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// A client accepts a reply only from the address that it has called. A socket on all addresses gets
// that address with each datagram, and sends the reply from it: IP_PKTINFO of ip(7), RFC 3542
// section 6.

// sender sends datagrams by a socket.
type sender struct {
	raw syscall.RawConn
	six bool // a socket of IPv6, which takes IPv4 addresses in the mapped form
}

// wantLocal makes the socket report the local address of each datagram.
func wantLocal(c *net.UDPConn) (s sender, err error) {
	if s.raw, err = c.SyscallConn(); err != nil {
		return s, err
	}
	e := s.raw.Control(func(fd uintptr) {
		var domain int
		domain, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		s.six = domain == unix.AF_INET6
		// A socket of IPv6 needs both options. A socket of IPv4 refuses the first.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
		err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1))
	})
	return s, errors.Join(e, err)
}

// send sends a datagram from one of the host's addresses. It never waits. If the neighbors that
// datagrams are for do not answer, the socket's buffer fills, and further datagrams are lost, as
// any datagram can be.
func (s *sender) send(b []byte, from local, to netip.AddrPort) (n int, err error) {
	var at unix.Sockaddr
	if s.six {
		six := &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
		if to.Addr().Zone() != "" {
			six.ZoneId = from.link
		}
		at = six
	} else {
		at = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	if e := s.raw.Write(func(fd uintptr) bool {
		n, err = unix.SendmsgN(int(fd), b, fromLocal(from.addr), at, unix.MSG_DONTWAIT)
		return true
	}); e != nil {
		return 0, e
	}
	return max(n, 0), err
}

// local is where a datagram arrived.
type local struct {
	addr netip.Addr
	link uint32 // index of the interface, with IPv6
}

// localOf returns where a datagram arrived. unicast is false for a broadcast or multicast address.
// An IPv4 datagram at an IPv6 socket has both control messages. Only that of IPv4 shows a
// broadcast.
func localOf(oob []byte) (at local, unicast bool) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return at, false
	}
	for _, m := range list {
		switch {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			// The address of this host, and the destination address in the header.
			here, to := netip.AddrFrom4([4]byte(m.Data[4:])), netip.AddrFrom4([4]byte(m.Data[8:]))
			return local{addr: here}, here == to && !to.IsMulticast()
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO &&
			len(m.Data) >= unix.SizeofInet6Pktinfo:
			at = local{netip.AddrFrom16([16]byte(m.Data)).Unmap(), binary.NativeEndian.Uint32(m.Data[16:])}
			unicast = !at.addr.IsMulticast()
		}
	}
	return at, unicast
}

// fromLocal makes the control message that sets the source address of a datagram.
func fromLocal(a netip.Addr) []byte {
	if a.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
}
