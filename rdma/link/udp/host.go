package udp

import (
	"bytes"
	"hash/fnv"
	"net/netip"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma/link"
)

var _ link.Host = (*Link)(nil)

// HostID implements link.Host. The boot ID distinguishes kernels.
func (l *Link) HostID() uint32 {
	cookie, err := namespace(l.fd)
	boot, e := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || e != nil {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write(strconv.AppendUint(bytes.TrimSpace(boot), cookie, 16)) // does not fail
	return h.Sum32()
}

// namespace is the kernel's number of a socket's network namespace. Linux has it since 5.14.
func namespace(fd int) (uint64, error) {
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// Loopback implements link.Host by two questions to the routing tables. The addresses alone do not
// decide: rules can send packets between two addresses of a host over a cable. A question that fails
// counts as no. The calling thread must be in the socket's namespace.
func (l *Link) Loopback(peer netip.Addr) bool {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if here, err := namespace(fd); err != nil {
		return false
	} else if own, err := namespace(l.fd); err != nil || own != here {
		return false
	}
	return l.local(fd, l.addr, peer) && l.local(fd, peer, l.addr)
}

// local reports whether the kernel delivers a packet from src to dst itself. fd is a netlink socket.
func (l *Link) local(fd int, src, dst netip.Addr) bool {
	type request struct {
		unix.NlMsghdr
		unix.RtMsg
	}
	family, scope := uint8(unix.AF_INET), uint32(0)
	if dst = dst.Unmap(); dst.Is6() {
		family, scope = unix.AF_INET6, l.scope
	}
	r := request{
		unix.NlMsghdr{Type: unix.RTM_GETROUTE, Flags: unix.NLM_F_REQUEST},
		unix.RtMsg{Family: family, Dst_len: uint8(dst.BitLen()), Src_len: uint8(dst.BitLen())},
	}
	attributes := appendAttr(nil, unix.RTA_DST, dst.AsSlice())
	attributes = appendAttr(attributes, unix.RTA_SRC, src.Unmap().AsSlice())
	if scope != 0 {
		attributes = appendAttr(attributes, unix.RTA_OIF, unsafe.Slice((*byte)(unsafe.Pointer(&scope)), unsafe.Sizeof(scope)))
	}
	r.Len = uint32(unsafe.Sizeof(r)) + uint32(len(attributes))
	b := append(unsafe.Slice((*byte)(unsafe.Pointer(&r)), unsafe.Sizeof(r)), attributes...)
	if unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return false
	}
	var answer struct {
		request
		_ [4 << 10]byte
	}
	n, _, err := unix.Recvfrom(fd, unsafe.Slice((*byte)(unsafe.Pointer(&answer)), unsafe.Sizeof(answer)), 0)
	return err == nil && n >= int(unsafe.Sizeof(r)) && answer.NlMsghdr.Type == unix.RTM_NEWROUTE &&
		answer.RtMsg.Type == unix.RTN_LOCAL
}

// appendAttr appends an attribute of a routing message. Lengths of v are multiples of four.
func appendAttr(b []byte, kind uint16, v []byte) []byte {
	a := unix.RtAttr{Len: uint16(unix.SizeofRtAttr + len(v)), Type: kind}
	return append(append(b, unsafe.Slice((*byte)(unsafe.Pointer(&a)), unix.SizeofRtAttr)...), v...)
}
