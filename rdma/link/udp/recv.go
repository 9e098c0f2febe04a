package udp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
)

// Recv implements link.Link.
func (l *Link) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	rx.D = rx.D[:0]
	for waited := false; ; {
		if l.closed.Load() {
			return 0, net.ErrClosed
		}
		n, err := l.recv(rx)
		if n > 0 || err != nil {
			return n, err
		}
		if waited || deadline < 0 {
			return 0, nil
		}
		woken, err := l.wait(deadline)
		if woken || err != nil {
			return 0, err
		}
		waited = true
	}
}

// wait sleeps until a datagram, Wake or the deadline; woken reports Wake.
func (l *Link) wait(deadline rdma.Time) (woken bool, err error) {
	var ts *unix.Timespec
	if deadline != 0 {
		t := unix.NsecToTimespec(int64(max(0, deadline-l.Now())))
		ts = &t
	}
	l.poll[0].Revents, l.poll[1].Revents = 0, 0
	_, err = unix.Ppoll(l.poll[:], ts, nil)
	if err != nil && err != unix.EINTR {
		return false, fmt.Errorf("waiting for datagrams on %v: %w", l.addr, err)
	}
	if l.poll[1].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(l.wake, b[:])
		// Datagrams may have arrived as well; the next Recv sees them.
		return true, nil
	}
	return false, nil
}

func (l *Link) recv(rx *link.Rx) (int, error) {
	for i := range l.rx {
		l.rx[i].hdr.Namelen = unix.SizeofSockaddrInet6
		l.rx[i].hdr.SetControllen(len(l.rxCtl[i]))
	}
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(l.fd), uintptr(unsafe.Pointer(&l.rx[0])), rxMessages, unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		if transient(e) {
			return 0, nil // also a pending ICMP error, which the peer's silence will tell
		}
		return 0, fmt.Errorf("receiving on %v: %w", l.addr, e)
	}
	l.Stats.RxCalls.Add(1)
	for i := range int(n) {
		m := &l.rx[i]
		size, tos := l.control(i)
		var d link.Datagram
		d.Src, d.SrcPort = l.source(&l.rxAddr[i])
		d.TOS = tos
		data := unsafe.Slice(l.rxIov[i].Base, int(m.n))
		if m.hdr.Flags&unix.MSG_TRUNC != 0 {
			continue // longer than any packet of ours
		}
		if size <= 0 || size >= len(data) {
			d.Data = data
			rx.D = append(rx.D, d)
			continue
		}
		l.Stats.RxCoalesced.Add(1)
		for len(data) > 0 {
			k := min(size, len(data))
			d.Data = data[:k:k]
			rx.D = append(rx.D, d)
			data = data[k:]
		}
	}
	l.Stats.RxDatagrams.Add(uint64(len(rx.D)))
	return len(rx.D), nil
}

// control reads segment size and TOS from the control messages of message i.
func (l *Link) control(i int) (size int, tos uint8) {
	b := l.rxCtl[i][:min(uint64(len(l.rxCtl[i])), uint64(l.rx[i].hdr.Controllen))]
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		n := int(h.Len)
		if n < unix.SizeofCmsghdr || n > len(b) {
			return size, tos
		}
		data := b[unix.CmsgLen(0):n]
		switch {
		case h.Level == unix.SOL_UDP && h.Type == udpGRO && len(data) >= 2:
			if len(data) >= 4 {
				size = int(binary.NativeEndian.Uint32(data))
			} else {
				size = int(binary.NativeEndian.Uint16(data))
			}
		case h.Level == unix.SOL_IP && h.Type == unix.IP_TOS && len(data) >= 1:
			tos = data[0]
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_TCLASS && len(data) >= 4:
			tos = uint8(binary.NativeEndian.Uint32(data))
		}
		next := unix.CmsgSpace(n - unix.CmsgLen(0))
		if next > len(b) {
			break
		}
		b = b[next:]
	}
	return size, tos
}

func (l *Link) source(sa *unix.RawSockaddrInet6) (netip.Addr, uint16) {
	port := sa.Port<<8 | sa.Port>>8
	if !l.v6 {
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr), port
	}
	return netip.AddrFrom16(sa.Addr), port
}
