package udp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma/wire"
)

// Socket options that x/sys does not name under the protocol's own level.
const (
	udpSegment   = 103 // UDP_SEGMENT
	udpGRO       = 104 // UDP_GRO
	udpNoCheck6R = 102 // UDP_NO_CHECK6_RX
)

// loopbackTries bounds the search for a free loopback address.
const loopbackTries = 64

// openLoopback opens a link on a free address of 127.0.0.0/8.
func openLoopback(cfg Config) (*Link, error) {
	var err error
	for range loopbackTries {
		// 127.0.x.y is for addresses that are configured by hand.
		r := rand.Uint32()
		cfg.Addr = netip.AddrFrom4([4]byte{127, byte(1 + r%254), byte(r >> 8), byte(1 + r>>16%254)})
		var l *Link
		if l, err = open(cfg); err == nil {
			return l, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, err
}

// SourceFor is the local address for packets to remote. It is the address that routing chooses, or
// the invalid address if remote is on this host: a server there has port 4791 of its address, so
// Open chooses a free loopback address.
func SourceFor(remote netip.Addr) (netip.Addr, error) {
	remote = remote.Unmap()
	if remote.IsLoopback() && remote.Is4() {
		return netip.Addr{}, nil
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, wire.Port)))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("there is no route to %v: %w", remote, err)
	}
	defer c.Close()
	local := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	if local.WithZone("") == remote.WithZone("") && remote.Is4() {
		return netip.Addr{}, nil
	}
	return local, nil
}

// interfaceOf finds the MTU of the interface that has addr, and for a link-local address its index.
func interfaceOf(addr netip.Addr) (mtu int, scope uint32, err error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return 0, 0, fmt.Errorf("listing network interfaces: %w", err)
	}
	for _, i := range ifs {
		if addr.Zone() != "" && addr.Zone() != i.Name {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, _ := netip.AddrFromSlice(n.IP)
			ip = ip.Unmap()
			if ip != addr.WithZone("") && !(ip.IsLoopback() && ip.Is4() && addr.IsLoopback() && n.Contains(addr.AsSlice())) {
				continue
			}
			if addr.Is6() && addr.IsLinkLocalUnicast() {
				scope = uint32(i.Index)
			}
			return i.MTU, scope, nil
		}
	}
	return 0, 0, fmt.Errorf("%v is not an address of this host: no network interface has it", addr)
}

// socket opens and binds the socket.
func (l *Link) socket() (int, error) {
	family := unix.AF_INET
	var sa unix.Sockaddr
	if l.addr.Is4() {
		sa = &unix.SockaddrInet4{Port: int(l.port), Addr: l.addr.As4()}
	} else {
		family = unix.AF_INET6
		sa = &unix.SockaddrInet6{Port: int(l.port), Addr: l.addr.As16(), ZoneId: l.scope}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, fmt.Errorf("opening the RDMA socket: %w", err)
	}
	if family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil && l.cfg.Shards > 1 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		if err == nil && l.cfg.Shard == 0 {
			err = free(sa, family)
		}
	}
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err != nil {
		unix.Close(fd)
		return -1, bindError(l.addr, err)
	}
	return fd, nil
}

// free checks that no process has the address. SO_REUSEPORT would let this socket join those of
// another process of the same user.
func free(sa unix.Sockaddr, family int) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, sa)
}

// bindError says why the address cannot be bound, and what to do.
func bindError(addr netip.Addr, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		if _, e := os.Stat("/sys/module/rdma_rxe"); e == nil {
			return fmt.Errorf("UDP port %d on %v is taken: the kernel's rdma_rxe module is loaded and holds the port on all "+
				"addresses; unload it, or run in another network namespace: %w", wire.Port, addr, err)
		}
		hint := "a client on the host of its server takes another address, for example 127.0.0.x"
		if addr.IsLoopback() {
			hint = "each process on a host needs an address of its own, here another 127.0.0.x"
			if addr.Is6() {
				hint = "IPv6 has one loopback address, and each process needs an address of its own; use 127.0.0.1 on the host " +
					"itself"
			}
		}
		return fmt.Errorf("UDP port %d on %v is taken by another RDMA process, or the kernel's rdma_rxe module, and "+
			"RoCEv2 knows no other port: %s: %w", wire.Port, addr, hint, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%v is not an address of this host: %w", addr, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("not allowed to take UDP port %d on %v: %w", wire.Port, addr, err)
	}
	return fmt.Errorf("taking UDP port %d on %v: %w", wire.Port, addr, err)
}

// setup sets the options of the bound socket. It fails if an option that the link needs is missing.
// Without the others the link is slower.
func (l *Link) setup() error {
	set := func(level, opt, v int) error { return unix.SetsockoptInt(l.fd, level, opt, v) }
	var err error
	if l.addr.Is4() {
		// PROBE sets DF, without which the identification is unknown and every ICRC wrong. Unlike
		// DO it takes the MTU of the interface, not what ICMP messages say of the path. Anybody can
		// forge those, as both ports are always 4791, and connections have a path MTU of their own.
		err = set(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		_ = set(unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	} else {
		err = set(unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
		if err == nil {
			// Soft RoCE and network cards send no UDP checksum.
			err = set(unix.IPPROTO_UDP, udpNoCheck6R, 1)
		}
		_ = set(unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
	}
	if err != nil {
		return fmt.Errorf("setting up the RDMA socket on %v: %w", l.addr, err)
	}
	l.stats.RcvBufBytes = l.buffer(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, l.cfg.ReceiveBuffer)
	l.stats.SndBufBytes = l.buffer(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, l.cfg.SendBuffer)
	if !l.cfg.NoGSO {
		// A kernel without the option fails the read.
		_, e := unix.GetsockoptInt(l.fd, unix.IPPROTO_UDP, udpSegment)
		l.tx.gso = e == nil
	}
	if !l.cfg.NoGRO {
		l.rx.gro = set(unix.IPPROTO_UDP, udpGRO, 1) == nil
	} else if l.cfg.Sockets != nil {
		_ = set(unix.IPPROTO_UDP, udpGRO, 0) // an earlier process may have set it
	}
	if l.cfg.Shards > 1 {
		if err := l.steer(); err != nil {
			return fmt.Errorf("sharing %v between %d sockets: %w", l.addr, l.cfg.Shards, err)
		}
	}
	return nil
}

// buffer sets the size of a socket buffer, beyond the limit of the system if that is permitted, and
// returns the size that the kernel granted. The kernel doubles the requested size.
func (l *Link) buffer(force, plain, size int) int {
	if unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, force, size/2) != nil {
		_ = unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, plain, size/2)
	}
	n, _ := unix.GetsockoptInt(l.fd, unix.SOL_SOCKET, plain)
	return n
}

// qpnWord is the offset in the BTH of the word whose low 24 bits are the
// destination QPN; QP1, the connection manager's, belongs to the first socket.
const (
	qpnWord = 4
	qpnMask = 0xffffff
	gsiQPN  = 1
)

// steer makes the kernel choose the socket by the destination QPN. The program belongs to the group
// of sockets, and each socket that joins sets the same program.
func (l *Link) steer() error {
	prog := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: qpnWord},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: qpnMask},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 2, K: gsiQPN},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: uint32(l.cfg.Shards - 1)},
		{Code: unix.BPF_RET | unix.BPF_A},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	p := unix.SockFprog{Len: uint16(len(prog)), Filter: (*unix.SockFilter)(unsafe.Pointer(&prog[0]))}
	return unix.SetsockoptSockFprog(l.fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &p)
}
