package tickle

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// announcement is a gratuitous ARP request for an address (RFC 5227 section 3), as Ethernet
// payload.
//
//	+---------+---------+-----+-----+-----------+------------+----------+------------+----------+
//	| Ethernet| IPv4    | 6   | 4   | request 1 | MAC        | address  | 0          | address  |
//	+---------+---------+-----+-----+-----------+------------+----------+------------+----------+
//	0         2         4     5     6           8            14         18           24         28
func announcement(mac net.HardwareAddr, a netip.Addr) []byte {
	b := make([]byte, 28)
	binary.BigEndian.PutUint16(b, 1)
	binary.BigEndian.PutUint16(b[2:], unix.ETH_P_IP)
	b[4], b[5] = 6, 4
	binary.BigEndian.PutUint16(b[6:], 1)
	copy(b[8:], mac)
	copy(b[14:], a.AsSlice())
	copy(b[24:], a.AsSlice())
	return b
}

// advertisement is an unsolicited neighbor advertisement of an address, with the override flag (RFC
// 4861 sections 4.4 and 7.2.6). The kernel adds the checksum.
//
//	+------+------+----------+--------------+---------+-------------------------+
//	| 136  | 0    | checksum | override flag| address | option 2, length 1, MAC |
//	+------+------+----------+--------------+---------+-------------------------+
//	0      1      2          4              8         24                        32
func advertisement(mac net.HardwareAddr, a netip.Addr) []byte {
	b := make([]byte, 32)
	b[0], b[4] = 136, 1<<5
	copy(b[8:], a.AsSlice())
	b[24], b[25] = 2, 1
	copy(b[26:], mac)
	return b
}

// Announce tells the network that this host has an address, by ARP, or by neighbor discovery for
// IPv6. It sends on the Ethernet interface with the address, and does nothing if there is none. It
// needs CAP_NET_RAW: without it the error is EPERM.
func Announce(a netip.Addr) error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range all {
		if len(i.HardwareAddr) != 6 || i.Flags&net.FlagUp == 0 {
			continue
		}
		list, err := i.Addrs()
		if err != nil {
			return err
		}
		for _, x := range list {
			if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr().Unmap() == a.WithZone("") {
				if err := announce(&i, p.Addr().Unmap()); err != nil {
					return fmt.Errorf("%s on %s: %w", a, i.Name, err)
				}
			}
		}
	}
	return nil
}

func announce(i *net.Interface, a netip.Addr) error {
	if a.Is4() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		arp := binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP)
		to := unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(arp), Ifindex: i.Index, Halen: 6}
		copy(to.Addr[:], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
		return unix.Sendto(fd, announcement(i.HardwareAddr, a), 0, &to)
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	from := unix.SockaddrInet6{Addr: a.As16()}
	if a.IsLinkLocalUnicast() {
		from.ZoneId = uint32(i.Index)
	}
	if err := unix.Bind(fd, &from); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
		return err
	}
	all := unix.SockaddrInet6{Addr: netip.IPv6LinkLocalAllNodes().As16(), ZoneId: uint32(i.Index)}
	return unix.Sendto(fd, advertisement(i.HardwareAddr, a), 0, &all)
}
