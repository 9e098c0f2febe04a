package udp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma/wire"
)

// Send implements link.Link. Runs of datagrams of one flow and one size, the
// last of which may be shorter, leave as one segmented message.
func (l *Link) Send(b *wire.Batch) error {
	d := b.D
	for len(d) > 0 {
		used, messages := l.fill(d)
		if err := l.flush(messages); err != nil {
			return err
		}
		d = d[used:]
	}
	return nil
}

// fill turns datagrams into messages and returns how many of both it used.
func (l *Link) fill(d []wire.Datagram) (used, messages int) {
	l.txIov = l.txIov[:0]
	for messages < txMessages && used < len(d) {
		run := 1
		if l.gso {
			run = l.run(d[used:])
		}
		need := 0
		for i := range run {
			need += 2 + len(d[used+i].Payload)
		}
		if len(l.txIov)+need > cap(l.txIov) {
			break
		}
		l.message(messages, d[used:used+run])
		used += run
		messages++
	}
	return used, messages
}

// run is the number of datagrams at the start of d that can be one segmented
// message.
func (l *Link) run(d []wire.Datagram) int {
	size := d[0].Size()
	total, iovs := size, 2+len(d[0].Payload)
	n := 1
	for ; n < len(d) && n < segmentsMax; n++ {
		e := &d[n]
		k := e.Size()
		iovs += 2 + len(e.Payload)
		if e.Flow != d[0].Flow || k > size || total+k > runMax || iovs > iovMax {
			break
		}
		total += k
		if k < size {
			return n + 1
		}
	}
	return n
}

// message fills message m with the segments d: their headers, payload by
// reference and trailers, with the identification that each will leave with.
func (l *Link) message(m int, d []wire.Datagram) {
	h := &l.tx[m].hdr
	first := len(l.txIov)
	d[0].Flow.SrcPort = l.port // one socket sends for all; d is one flow
	for i := range d {
		g := &d[i]
		crc := g.Flow.ICRC(uint16(i), g.Hdr, g.Payload, int(g.Pad))
		n := len(g.Hdr)
		room := g.Hdr[:n+int(g.Pad)+wire.ICRCLen]
		clear(room[n : n+int(g.Pad)])
		binary.LittleEndian.PutUint32(room[n+int(g.Pad):], crc)
		if g.PayloadLen == 0 {
			l.iov(room)
			continue
		}
		l.iov(room[:n])
		for _, p := range g.Payload {
			l.iov(p)
		}
		l.iov(room[n:])
	}
	h.Iov = &l.txIov[first]
	h.SetIovlen(len(l.txIov) - first)
	l.address(m, d[0].Flow.Dst)
	l.segments(m, d)
	l.txSeg[m] = len(d)
}

func (l *Link) iov(b []byte) {
	n := len(l.txIov)
	l.txIov = l.txIov[:n+1]
	l.txIov[n].Base = &b[0]
	l.txIov[n].SetLen(len(b))
}

// address sets the destination of message m.
func (l *Link) address(m int, dst netip.Addr) {
	sa := &l.txAddr[m]
	if l.v6 {
		*sa = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: htons(l.port), Addr: dst.As16(), Scope_id: l.zone}
		l.tx[m].hdr.Namelen = unix.SizeofSockaddrInet6
		return
	}
	*(*unix.RawSockaddrInet4)(unsafe.Pointer(sa)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: htons(l.port), Addr: dst.As4()}
	l.tx[m].hdr.Namelen = unix.SizeofSockaddrInet4
}

func htons(p uint16) uint16 { return p<<8 | p>>8 }

// segments sets the segment size of message m, if it has more than one.
func (l *Link) segments(m int, d []wire.Datagram) {
	h := &l.tx[m].hdr
	if len(d) == 1 {
		h.Control = nil
		h.SetControllen(0)
		return
	}
	c := &l.txCtl[m]
	cm := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
	cm.Level, cm.Type = unix.SOL_UDP, udpSegment
	cm.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(c[unix.CmsgLen(0):], uint16(d[0].Size()))
	h.Control = &c[0]
	h.SetControllen(unix.CmsgSpace(2))
}

// flush sends the first n messages.
func (l *Link) flush(n int) error {
	for at := 0; at < n; {
		k, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(l.fd), uintptr(unsafe.Pointer(&l.tx[at])), uintptr(n-at), 0, 0, 0)
		l.Stats.TxCalls.Add(1)
		if e == 0 {
			for i := at; i < at+int(k); i++ {
				l.Stats.TxDatagrams.Add(uint64(l.txSeg[i]))
				if l.txSeg[i] > 1 {
					l.Stats.TxSegmented.Add(1)
				}
			}
			at += int(k)
			continue
		}
		switch {
		case e == unix.EINTR:
			continue
		case e == unix.EAGAIN:
			// The socket buffer is full: wait until the interface has drained it.
			p := [1]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLOUT}}
			t := unix.NsecToTimespec(5_000_000)
			if r, _ := unix.Ppoll(p[:], &t, nil); r > 0 {
				continue
			}
		case l.txSeg[at] > 1 && (e == unix.EINVAL || e == unix.EIO):
			l.gso = false // the interface cannot; what is lost now is sent again
		case !transient(e) && e != unix.EINVAL:
			return fmt.Errorf("sending from %v: %w", l.addr, e)
		}
		// One message cannot be sent: lost, as on any wire.
		l.Stats.TxDropped.Add(uint64(l.txSeg[at]))
		at++
	}
	return nil
}
