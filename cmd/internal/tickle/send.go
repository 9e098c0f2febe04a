package tickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// segmentLen is the length of a TCP header without options.
const segmentLen = 20

// segment is a TCP segment with ACK and without data (RFC 9293 section 3.1), with its checksum. Its
// sequence numbers match those of a connection only by chance, once in some thousand.
//
//	0             2            4          8          12     13    14       16         18       20
//	+-------------+------------+----------+----------+------+-----+--------+----------+--------+
//	| source port | dest. port | sequence | acknowl. | 5<<4 | ACK | window | checksum | urgent |
//	+-------------+------------+----------+----------+------+-----+--------+----------+--------+
func segment(c Conn) []byte {
	b := make([]byte, segmentLen)
	binary.BigEndian.PutUint16(b, c.Local.Port())
	binary.BigEndian.PutUint16(b[2:], c.Remote.Port())
	b[12], b[13] = segmentLen/4<<4, 1<<4
	binary.BigEndian.PutUint16(b[16:], checksum(b, c.Local.Addr(), c.Remote.Addr()))
	return b
}

// checksum returns the checksum of a segment behind the pseudo header of its addresses (RFC 9293
// section 3.1).
func checksum(b []byte, from, to netip.Addr) uint16 {
	var s uint32
	add := func(b []byte) {
		for i := 0; i < len(b); i += 2 {
			s += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	add(from.AsSlice())
	add(to.AsSlice())
	add(b)
	s += unix.IPPROTO_TCP + uint32(len(b))
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// Send sends each client one segment from the server's address, which this host must have. It needs
// CAP_NET_RAW: without it the error is EPERM. It returns how many were sent, and the first error. An
// address that the host does not have is tried once.
func Send(list []Conn) (sent int, err error) {
	var missing netip.Addr
	for _, c := range list {
		if c.Local.Addr() == missing {
			continue
		}
		e := send(c)
		if errors.Is(e, unix.EADDRNOTAVAIL) {
			missing = c.Local.Addr()
		}
		switch {
		case e == nil:
			sent++
		case errors.Is(e, unix.EPERM):
			return sent, e
		case err == nil:
			err = fmt.Errorf("%s to %s: %w", c.Local.Addr(), c.Remote, e)
		}
	}
	return sent, err
}

func send(c Conn) error {
	family := unix.AF_INET6
	var from, to unix.Sockaddr
	if c.Local.Addr().Is4() {
		family = unix.AF_INET
		from, to = &unix.SockaddrInet4{Addr: c.Local.Addr().As4()}, &unix.SockaddrInet4{Addr: c.Remote.Addr().As4()}
	} else {
		from, to = &unix.SockaddrInet6{Addr: c.Local.Addr().As16()}, &unix.SockaddrInet6{Addr: c.Remote.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, from); err != nil {
		return err
	}
	return unix.Sendto(fd, segment(c), 0, to)
}
