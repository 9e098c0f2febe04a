package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// Limits of one send.
const (
	segmentsMax = 64    // per buffer; newer kernels take 128
	runBytesMax = 65000 // per buffer, below what an IP packet can hold
	iovMax      = 1024  // pieces of one message (UIO_MAXIOV)
	messagesMax = 1024  // messages of one sendmmsg (UIO_MAXIOV)

	// hotBytes is how much of a batch is built before it is sent. It is still in the cache of the
	// processor when the kernel copies it.
	hotBytes = 256 << 10

	// sendWait bounds the wait for room in the send buffer. What finds none is
	// lost, as on any network.
	sendWait = 20 * time.Millisecond
)

// sender sends batches by sendmmsg.
type sender struct {
	l   *Link
	gso bool
	// doubt: segmentation is off because a run could not be sent, and no packet was sent alone
	// since. If a single packet cannot be sent either, it is too long for the interface that leads
	// to the peer, and segmentation is not at fault.
	doubt bool
	peers link.Segmentation // which peers get no segments
	msgs  []mmsghdr
	run   []run
	iovs  []unix.Iovec
	name  []sockaddr
	ctl   [][controlMax]byte

	at       *wire.Datagram // whose checksum is computed
	poll     [1]unix.PollFd // for waitRoom
	copies   []byte         // of volatile payloads of the batch
	volatile bool           // the batch has volatile payloads that are not copied
}

// run is what one message carries: datagrams from first on. Its addresses are
// indices, as the arrays may grow while the messages are built.
type run struct {
	first, n  int
	iov, iovs int
	size      int // of its first datagram, the segment size
	bytes     int
}

// Send implements link.Link.
func (l *Link) Send(b *wire.Batch) error {
	if l.closed {
		return link.ErrClosed
	}
	l.tx.prepare(b.D)
	return l.tx.sendAll(b.D)
}

// prepare begins a batch. Its volatile payloads are copied where settle says so.
func (t *sender) prepare(d []wire.Datagram) {
	t.copies = t.copies[:0]
	t.volatile = t.settle(d)
}

// sendAll sends the datagrams and returns the first error.
func (t *sender) sendAll(d []wire.Datagram) (first error) {
	for len(d) > 0 {
		for !t.tryBuild(d) {
		}
		n, err := t.transmit(d)
		if d = d[n:]; first == nil {
			first = err
		}
	}
	return first
}

// transmit sends what tryBuild built of d by sendmmsg. It returns how many datagrams are done with,
// sent or lost. It may return early, so that the rest is built again.
func (t *sender) transmit(d []wire.Datagram) (int, error) {
	s := &t.l.stats
	done := 0 // messages
	for done < len(t.msgs) {
		s.TxCalls++
		// The call does not wait, see receive.
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(t.l.fd), uintptr(unsafe.Pointer(&t.msgs[done])),
			uintptr(len(t.msgs)-done), unix.MSG_DONTWAIT, 0, 0)
		if errno == 0 {
			t.doubt = false
			for i := done; i < done+int(n); i++ {
				r := &t.run[i]
				s.TxDatagrams += uint64(r.n)
				s.TxBytes += uint64(r.bytes)
				if r.n > 1 {
					s.TxSegmented += uint64(r.n)
				}
			}
			done += int(n)
			continue
		}
		r := &t.run[done]
		flow := d[r.first].Flow
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			s.TxWaits++
			if t.waitRoom() {
				continue
			}
			for i := done; i < len(t.run); i++ {
				s.TxNoBuffers += uint64(t.run[i].n)
			}
			return r.first + t.rest(done), nil
		case unix.ENOBUFS, unix.ENOMEM:
			s.TxNoBuffers += uint64(r.n)
			done++
			continue
		case unix.EFAULT:
			// Volatile memory was truncated after the checksums were made.
			if t.copyAll(d[r.first:], nil) {
				s.TxFaults++
				return r.first, nil
			}
			s.TxErrors += uint64(r.n)
			done++
		case unix.EMSGSIZE, unix.EINVAL, unix.EIO, unix.EOPNOTSUPP:
			tooBig := r.size+t.overhead(flow) > t.l.mtu
			if r.n > 1 && !tooBig {
				// Segmentation does not work on this path: an interface without checksums, a
				// tunnel, an old kernel. It is off from now on. The identifications change, so the
				// datagrams are built again.
				t.gso, t.doubt = false, true
				s.GSODisabled++
				return r.first, nil
			}
			if errno == unix.EMSGSIZE || tooBig {
				if t.doubt {
					t.gso, t.doubt = true, false
					s.GSODisabled--
				}
				s.TxTooBig += uint64(r.n)
				return r.first + r.n, &link.TooBigError{Dst: flow.Dst, Size: r.size + t.overhead(flow), MTU: t.l.mtu}
			}
			s.TxErrors += uint64(r.n)
			done++
		case unix.EBADF, unix.ENOTSOCK:
			return len(d), fmt.Errorf("%w: %w", link.ErrClosed, errno)
		default:
			// No route, a firewall, an ICMP error of the peer: the datagrams are lost, as on any
			// network.
			s.TxErrors += uint64(r.n)
			done++
		}
	}
	return t.rest(0), nil
}

// rest is the number of datagrams in the messages from i on.
func (t *sender) rest(i int) (n int) {
	for ; i < len(t.run); i++ {
		n += t.run[i].n
	}
	return n
}

func (t *sender) overhead(f *wire.Flow) int {
	if f.Dst.Unmap().Is4() {
		return 20 + 8
	}
	return 40 + 8
}

// build fills in the trailers and the message headers for as many datagrams as
// fit one call.
func (t *sender) build(d []wire.Datagram) {
	t.run, t.iovs = t.run[:0], t.iovs[:0]
	for i, hot := 0, 0; i < len(d) && len(t.run) < messagesMax && hot < hotBytes; {
		r := run{first: i, iov: len(t.iovs), size: d[i].Size()}
		for i < len(d) && t.joins(&r, d, i) {
			t.add(&r, &d[i])
			i++
		}
		t.run = append(t.run, r)
		hot += r.bytes
	}
	for len(t.name) < len(t.run) {
		t.name = append(t.name, sockaddr{})
		t.ctl = append(t.ctl, [controlMax]byte{})
	}
	t.msgs = t.msgs[:0]
	for i := range t.run {
		r := &t.run[i]
		f := d[r.first].Flow
		var m mmsghdr
		m.hdr.Iov = &t.iovs[r.iov]
		m.hdr.SetIovlen(r.iovs)
		m.hdr.Name = &t.name[i][0]
		m.hdr.Namelen = t.name[i].put(f.Dst.Unmap(), wire.Port, t.l.scope)
		n := 0
		if r.n > 1 {
			n = putControl(t.ctl[i][:], n, unix.IPPROTO_UDP, udpSegment, 2, r.size)
		}
		if f.TOS != 0 {
			if f.Dst.Unmap().Is4() {
				n = putControl(t.ctl[i][:], n, unix.IPPROTO_IP, unix.IP_TOS, 4, int(f.TOS))
			} else {
				n = putControl(t.ctl[i][:], n, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4, int(f.TOS))
			}
		}
		if n > 0 {
			m.hdr.Control = &t.ctl[i][0]
			m.hdr.SetControllen(n)
		}
		t.msgs = append(t.msgs, m)
	}
}

// joins reports whether datagram i may be part of the run. UDP_SEGMENT cuts a buffer into pieces of
// one size; the last one may be smaller. All datagrams of a run are for one queue pair: a peer with
// several sockets may receive the run merged, on the socket of the first datagram, and would have
// to copy the others to other loops.
func (t *sender) joins(r *run, d []wire.Datagram, i int) bool {
	if r.n == 0 {
		return true
	}
	if !t.gso || r.n == segmentsMax || r.iovs+len(d[i].Payload)+2 > iovMax || d[i-1].Size() != r.size {
		return false
	}
	size := d[i].Size()
	if size > r.size || r.bytes+size > runBytesMax {
		return false
	}
	if wire.DestQPN(d[r.first].Hdr) != wire.DestQPN(d[i].Hdr) {
		return false
	}
	f, g := d[r.first].Flow, d[i].Flow
	return (f == g || f.Dst == g.Dst && f.TOS == g.TOS) && t.peers.Allowed(f.Dst)
}

// Suspect implements link.Segmenter.
func (l *Link) Suspect(peer netip.Addr) bool {
	if !l.tx.gso || !l.tx.peers.Suspect(peer) {
		return false
	}
	l.stats.GSOPeersOff++
	return true
}

// add writes the trailer of a datagram and appends its pieces.
func (t *sender) add(r *run, d *wire.Datagram) {
	d.Flow.SrcPort = t.l.port
	n, tail := len(d.Hdr), int(d.Pad)+wire.ICRCLen
	t.at = d
	icrc := d.ICRC(uint16(r.n))
	b := d.Hdr[:n+tail]
	clear(b[n : n+int(d.Pad)])
	binary.LittleEndian.PutUint32(b[n+int(d.Pad):], icrc)
	if d.PayloadLen == 0 {
		t.piece(b)
		r.iovs++
	} else {
		t.piece(b[:n])
		for _, p := range d.Payload {
			t.piece(p)
		}
		t.piece(b[n:])
		r.iovs += len(d.Payload) + 2
	}
	r.n++
	r.bytes += d.Size()
}

func (t *sender) piece(b []byte) {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	t.iovs = append(t.iovs, v)
}

// waitRoom waits until the socket takes more, and reports whether it does.
func (t *sender) waitRoom() bool {
	t.poll = [1]unix.PollFd{{Fd: int32(t.l.fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(t.poll[:], int(sendWait/time.Millisecond))
	return errors.Is(err, unix.EINTR) || err == nil && n > 0
}
