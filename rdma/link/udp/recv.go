package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma/link"
)

// errorsMax bounds the errors in a row after which the socket counts as broken.
const errorsMax = 100

// receiver fills an Rx by recvmmsg.
type receiver struct {
	l    *Link
	gro  bool
	rx   *link.Rx
	msgs []mmsghdr
	iovs []unix.Iovec
	name []sockaddr
	ctl  [][controlMax]byte
	n    int // messages of the last call
	err  error
}

// use prepares the message headers for an Rx, if it is not that of the last call.
func (r *receiver) use(rx *link.Rx) {
	if r.rx == rx {
		return
	}
	n := rx.Slots()
	r.rx = rx
	r.msgs, r.iovs = make([]mmsghdr, n), make([]unix.Iovec, n)
	r.name, r.ctl = make([]sockaddr, n), make([][controlMax]byte, n)
	for i := range n {
		slot := rx.Slot(i)
		r.iovs[i].Base = &slot[0]
		r.iovs[i].SetLen(len(slot))
		h := &r.msgs[i].hdr
		h.Iov, h.Iovlen = &r.iovs[i], 1
		h.Name, h.Control = &r.name[i][0], &r.ctl[i][0]
	}
	r.n = n
}

// receive takes the datagrams that have arrived. It reports whether there were none.
func (r *receiver) receive() (empty bool) {
	for i := range r.n { // the kernel has changed the headers that it used
		h := &r.msgs[i].hdr
		h.Namelen = uint32(len(r.name[i]))
		h.SetControllen(controlMax)
		h.Flags = 0
	}
	r.n, r.err = 0, nil
	for tries := 0; ; tries++ {
		// The call does not wait. So it is a raw one, without the work by which the runtime gives
		// the processor of a waiting thread to another: that would cost much at 50,000 calls a
		// second.
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(r.l.fd), uintptr(unsafe.Pointer(&r.msgs[0])),
			uintptr(len(r.msgs)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			r.n = int(n)
			return false
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return true
		case unix.EBADF, unix.ENOTSOCK, unix.EINVAL, unix.EFAULT:
			r.err = errno
			return false
		default:
			// An error of the network, such as an ICMP message. The call has cleared it.
			r.l.stats.RxErrors++
			if tries == errorsMax {
				r.err = errno
				return false
			}
			continue
		}
	}
}

// result lists the datagrams of the last receive in the Rx.
func (r *receiver) result() (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if r.n == 0 {
		return 0, nil
	}
	s := &r.l.stats
	s.RxCalls++
	for i := range r.n {
		m := &r.msgs[i]
		if m.hdr.Flags&unix.MSG_TRUNC != 0 {
			s.RxTruncated++
			continue
		}
		var d link.RxDatagram
		d.Src, d.SrcPort = r.name[i].get()
		d.Dst = r.l.addr.WithZone("")
		d.Data = r.rx.Slot(i)[:m.len]
		seg, tos := parseControl(r.ctl[i][:m.hdr.Controllen])
		d.TOS = tos
		before := len(r.rx.D)
		if rest := r.rx.Split(d, seg); rest > 0 {
			s.RxNoRoom += uint64(rest / max(1, seg))
		}
		if got := len(r.rx.D) - before; got > 1 {
			s.RxMerged += uint64(got)
		}
		s.RxBytes += uint64(m.len)
	}
	s.RxDatagrams += uint64(len(r.rx.D))
	return len(r.rx.D), nil
}
