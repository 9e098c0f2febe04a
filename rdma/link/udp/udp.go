// Package udp is the link over an ordinary UDP socket: no root, no module, no
// raw packets. It sends and receives in batches, with segmentation and
// coalescing by the kernel (UDP_SEGMENT, UDP_GRO) where it has them.
//
// The ICRC covers the IPv4 identification, which a UDP socket neither sets nor
// shows. An unconnected socket with path MTU discovery on sends 0, and k in
// segment k of a segmented send; so the socket is never connected.
package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

const (
	// Sizes of one batch. A message is one datagram or one segmented run.
	txMessages = 64
	rxMessages = 32
	// A coalesced receive is at most 64 KiB; without GRO a slot holds one
	// datagram of the largest RoCE packet.
	rxSlot = 1 << 16

	// Limits of one segmented send: 64 segments on every kernel that has
	// UDP_SEGMENT, and the largest UDP payload.
	segmentsMax = 64
	runMax      = 65000
	iovMax      = 1024

	udpSegment    = 103
	udpGRO        = 104
	udpNoCheck6Rx = 102

	socketBuffer = 32 << 20
	ipHeaders    = 28
)

// Config describes a link.
type Config struct {
	// Addr is the local address. It must be one of this host's.
	Addr netip.Addr
	// Port is wire.Port but in tests of the socket layer alone.
	Port uint16
	// ReusePort lets several links share the port, for lanes.
	ReusePort bool
	// NoGSO and NoGRO switch off what the kernel offers.
	NoGSO, NoGRO bool
}

// Stats count what the link did. They may be read from any goroutine.
type Stats struct {
	TxDatagrams, TxCalls, TxSegmented, TxDropped atomic.Uint64
	RxDatagrams, RxCalls, RxCoalesced            atomic.Uint64
}

type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// Link is a UDP socket. See link.Link for its contract.
type Link struct {
	fd, wake int
	addr     netip.Addr
	port     uint16
	mtu      int
	v6       bool
	zone     uint32
	gso, gro bool
	Stats    Stats
	closed   atomic.Bool

	// Transmit: one header, address and control block per message.
	tx     [txMessages]mmsghdr
	txAddr [txMessages]unix.RawSockaddrInet6
	txCtl  [txMessages][32]byte
	txIov  []unix.Iovec
	txSeg  [txMessages]int

	rx     [rxMessages]mmsghdr
	rxAddr [rxMessages]unix.RawSockaddrInet6
	rxCtl  [rxMessages][128]byte
	rxIov  [rxMessages]unix.Iovec
	rxBuf  []byte
	poll   [2]unix.PollFd
}

var _ link.Link = (*Link)(nil)

// Open binds a socket.
func Open(cfg Config) (*Link, error) {
	addr := cfg.Addr.Unmap()
	if !addr.IsValid() || addr.IsUnspecified() {
		return nil, fmt.Errorf("RoCE needs a specific local address, %v is none: the address is part of every packet's checksum", cfg.Addr)
	}
	port := cfg.Port
	if port == 0 {
		port = wire.Port
	}
	l := &Link{addr: addr, port: port, v6: addr.Is6(), fd: -1, wake: -1}
	if err := l.open(cfg); err != nil {
		l.closeFDs()
		return nil, err
	}
	return l, nil
}

func (l *Link) open(cfg Config) (err error) {
	if err := l.findInterface(); err != nil {
		return err
	}
	family := unix.AF_INET
	if l.v6 {
		family = unix.AF_INET6
	}
	if l.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return fmt.Errorf("UDP socket: %w", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if cfg.ReusePort {
		if err := unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return fmt.Errorf("SO_REUSEPORT: %w", err)
		}
	}
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, o[0], socketBuffer) != nil {
			_ = unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, o[1], socketBuffer) // as much as net.core.*mem_max allows
		}
	}
	if l.v6 {
		err = unix.SetsockoptInt(l.fd, unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
		_ = unix.SetsockoptInt(l.fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1)
		_ = unix.SetsockoptInt(l.fd, unix.SOL_IPV6, unix.IPV6_RECVTCLASS, 1)
		_ = unix.SetsockoptInt(l.fd, unix.SOL_UDP, udpNoCheck6Rx, 1) // rxe and NICs send no checksum
	} else {
		err = unix.SetsockoptInt(l.fd, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		_ = unix.SetsockoptInt(l.fd, unix.SOL_IP, unix.IP_RECVTOS, 1)
	}
	if err != nil {
		return fmt.Errorf("path MTU discovery, on which the checksum depends, cannot be switched on: %w", err)
	}
	l.gso = !cfg.NoGSO && unix.SetsockoptInt(l.fd, unix.SOL_UDP, udpSegment, 0) == nil
	l.gro = !cfg.NoGRO && unix.SetsockoptInt(l.fd, unix.SOL_UDP, udpGRO, 1) == nil
	if err := unix.Bind(l.fd, l.sockaddr()); err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("UDP port %d of %v is taken: another RDMA program uses this address (on loopback, give each its own 127.x.y.z), "+
				"or the kernel's rdma_rxe module owns the port (rdma link; modprobe -r rdma_rxe): %w", l.port, l.addr, err)
		}
		return fmt.Errorf("UDP port %d of %v: %w", l.port, l.addr, err)
	}
	l.prepare()
	return nil
}

func (l *Link) sockaddr() unix.Sockaddr {
	if l.v6 {
		return &unix.SockaddrInet6{Port: int(l.port), Addr: l.addr.As16(), ZoneId: l.zone}
	}
	return &unix.SockaddrInet4{Port: int(l.port), Addr: l.addr.As4()}
}

// findInterface finds the interface that has the address, for its MTU.
func (l *Link) findInterface() error {
	ifs, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("network interfaces: %w", err)
	}
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			p, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, _ := netip.AddrFromSlice(p.IP)
			// All of 127.0.0.0/8 belongs to the loopback interface.
			if ip.Unmap() == l.addr.WithZone("") || l.addr.IsLoopback() && l.addr.Is4() && ip.Unmap().IsLoopback() && ip.Unmap().Is4() {
				l.mtu = i.MTU
				if l.addr.IsLinkLocalUnicast() {
					l.zone = uint32(i.Index)
				}
				return nil
			}
		}
	}
	return fmt.Errorf("%v is not an address of this host", l.addr)
}

func (l *Link) prepare() {
	l.txIov = make([]unix.Iovec, 0, 4*iovMax)
	size := rxSlot
	if !l.gro {
		size = 8192
	}
	l.rxBuf = make([]byte, rxMessages*size)
	for i := range l.rx {
		l.rxIov[i].Base = &l.rxBuf[i*size]
		l.rxIov[i].SetLen(size)
		h := &l.rx[i].hdr
		h.Iov = &l.rxIov[i]
		h.SetIovlen(1)
		h.Name = (*byte)(unsafe.Pointer(&l.rxAddr[i]))
		h.Control = &l.rxCtl[i][0]
	}
	for i := range l.tx {
		h := &l.tx[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&l.txAddr[i]))
	}
	l.poll[0] = unix.PollFd{Fd: int32(l.fd), Events: unix.POLLIN}
	l.poll[1] = unix.PollFd{Fd: int32(l.wake), Events: unix.POLLIN}
}

// LocalAddr is the bound address.
func (l *Link) LocalAddr() netip.Addr { return l.addr }

// MTU is that of the interface that has the address.
func (l *Link) MTU() int { return l.mtu }

// Segmentation reports whether the kernel segments and coalesces for us.
func (l *Link) Segmentation() (gso, gro bool) { return l.gso, l.gro }

// Now reads the monotonic clock.
func (l *Link) Now() rdma.Time {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return rdma.Time(ts.Nano())
}

// Wake ends a wait in Recv.
func (l *Link) Wake() {
	one := [8]byte{}
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(l.wake, one[:]) // a full counter is awake already
}

// Close wakes the loop, whose Recv then returns net.ErrClosed and releases the
// socket.
func (l *Link) Close() error {
	if !l.closed.Swap(true) {
		l.Wake()
	}
	return nil
}

// Release closes the file descriptors. It is called when no goroutine is in a
// method of the link any more.
func (l *Link) Release() { l.closeFDs() }

func (l *Link) closeFDs() {
	for _, fd := range []*int{&l.fd, &l.wake} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// errno of a raw system call that must not be retried by the caller.
func transient(e unix.Errno) bool {
	switch e {
	case unix.EAGAIN, unix.EINTR, unix.ENOBUFS, unix.ENOMEM, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EPERM, unix.EMSGSIZE, unix.ENETDOWN, unix.EHOSTDOWN:
		return true
	}
	return false
}
