package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a packet of a reliable connection has around its payload: a base transport header
// and the ICRC.
const (
	headerLen = 12
	crcLen    = 4

	streamPayload = 4096
	streamLen     = headerLen + streamPayload + crcLen
	// segments is how many packets one UDP_SEGMENT send takes: a datagram has at most
	// 65,507 bytes.
	segments    = 65507 / streamLen
	streamBatch = 4 // sends of one sendmmsg
	streamSlots = 16
	streamSlot  = 1 << 16

	singlePayload = 64
	singleLen     = headerLen + singlePayload + crcLen
	singleBatch   = 64

	messageLen = 1 << 20 // of the memory that is sent from, and placed in
	packetMax  = 2048
)

// mmsghdr is struct mmsghdr of sendmmsg and recvmmsg.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// gather is the memory of one recvmmsg.
type gather struct {
	msgs  []mmsghdr
	iovs  []unix.Iovec
	slots [][]byte
	ctl   [][64]byte
}

func newGather(n, size int) *gather {
	g := &gather{msgs: make([]mmsghdr, n), iovs: make([]unix.Iovec, n), slots: make([][]byte, n), ctl: make([][64]byte, n)}
	all := make([]byte, n*size)
	for i := range g.slots {
		g.slots[i] = all[i*size : (i+1)*size]
		g.iovs[i].Base = &g.slots[i][0]
		g.iovs[i].SetLen(size)
		h := &g.msgs[i].hdr
		h.Iov, h.Iovlen, h.Control = &g.iovs[i], 1, &g.ctl[i][0]
	}
	return g
}

// receive waits until there is something and returns how many slots are filled.
func (g *gather) receive(fd int) (int, error) {
	for i := range g.msgs {
		g.msgs[i].hdr.SetControllen(len(g.ctl[i]))
	}
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&g.msgs[0])),
			uintptr(len(g.msgs)), unix.MSG_WAITFORONE, 0, 0)
		if errno == 0 {
			return int(n), nil
		} else if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// segment is the size of the datagrams that UDP_GRO put together in slot i.
func (g *gather) segment(i int) int {
	m := &g.msgs[i]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&g.ctl[i][0]))
	if int(m.hdr.Controllen) >= unix.CmsgLen(4) && h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO {
		return int(binary.NativeEndian.Uint32(g.ctl[i][unix.CmsgLen(0):]))
	}
	return int(m.len)
}

// receive takes packets and says after each system call how many there have been.
func receive(fd int, g *gather, take func(b []byte, segment int) (uint64, error)) error {
	count := uint64(0)
	ack := make([]byte, 8)
	for {
		n, err := g.receive(fd)
		if err != nil {
			return err
		}
		for i := range n {
			b := g.slots[i][:g.msgs[i].len]
			if len(b) < singleLen { // the greeting, again
				continue
			}
			k, err := take(b, g.segment(i))
			if err != nil {
				return err
			}
			count += k
		}
		binary.LittleEndian.PutUint64(ack, count)
		if _, err := unix.Write(fd, ack); err != nil && err != unix.EINTR {
			return err
		}
	}
}

var memory = make([]byte, messageLen)

// place checks packets of stream and copies their payload to its place.
func place(b []byte, segment int) (n uint64, err error) {
	for len(b) > 0 {
		p := b[:min(segment, len(b))]
		b = b[len(p):]
		if len(p) != streamLen || crc32.ChecksumIEEE(p[:len(p)-crcLen]) != binary.LittleEndian.Uint32(p[len(p)-crcLen:]) {
			return n, errors.New("a packet is damaged")
		}
		at := int(binary.LittleEndian.Uint32(p[4:])) % messageLen
		copy(memory[at:], p[headerLen:len(p)-crcLen])
		n++
	}
	return n, nil
}

// sender is the sending side of stream and single.
type sender struct {
	fd          int
	window      uint64
	sent, acked uint64
	msgs        []mmsghdr
	buf         []byte
}

// wait takes acknowledgements until there is room in the window for n packets.
func (s *sender) wait(n int) error {
	flags := unix.MSG_DONTWAIT
	for {
		if s.window-(s.sent-s.acked) < uint64(n) {
			flags = 0
		}
		k, _, err := unix.Recvfrom(s.fd, s.buf, flags)
		switch {
		case err == unix.EAGAIN && flags != 0:
			return nil
		case err == unix.EAGAIN:
			return fmt.Errorf("of %d packets the receiver has %d: some are lost", s.sent, s.acked)
		case err == unix.EINTR:
		case err != nil:
			return err
		case k == 8:
			s.acked = max(s.acked, binary.LittleEndian.Uint64(s.buf))
			flags = unix.MSG_DONTWAIT
		}
	}
}

func (s *sender) send() error {
	for m := s.msgs; len(m) > 0; {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), 0, 0,
			0)
		if errno != 0 && errno != unix.EINTR {
			return errno
		} else if errno == 0 {
			m = m[n:]
		}
	}
	return nil
}

// run sends batches of packets packets each for d, after a quarter of it to get warm.
// What counts has arrived.
func (s *sender) run(d time.Duration, packets, payload int, fill func()) (r result, err error) {
	if s.window < uint64(packets) {
		return r, fmt.Errorf("a window of %d packets; %d are sent at a time", s.window, packets)
	}
	began, measuring := time.Now(), false
	first := uint64(0)
	for {
		if err := s.wait(packets); err != nil {
			return r, err
		}
		if now := time.Now(); !measuring && now.Sub(began) > d/4 {
			fmt.Println("begin")
			began, measuring, first = time.Now(), true, s.acked
		} else if measuring && now.Sub(began) > d {
			r.Seconds = now.Sub(began).Seconds()
			r.Ops = s.acked - first
			r.Bytes = r.Ops * uint64(payload)
			return r, nil
		}
		fill()
		if err := s.send(); err != nil {
			return r, err
		}
		s.sent += uint64(packets)
	}
}

func newSender(fd int, window uint64, msgs int) *sender {
	return &sender{fd: fd, window: window, msgs: make([]mmsghdr, msgs), buf: make([]byte, packetMax)}
}

// stream sends from memory, gathered by the kernel: a header, the payload, and the CRC
// that is computed for each packet.
func stream(fd int, d time.Duration, window uint64) (result, error) {
	const packets = streamBatch * segments
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, streamLen); err != nil {
		return result{}, err
	}
	s := newSender(fd, window, streamBatch)
	iovs := make([]unix.Iovec, packets*3)
	heads := make([]byte, packets*(headerLen+crcLen))
	for i := range memory {
		memory[i] = byte(i)
	}
	for i := range packets {
		h := heads[i*(headerLen+crcLen):]
		v := iovs[i*3:]
		v[0].Base, v[1].Base, v[2].Base = &h[0], &memory[0], &h[headerLen]
		v[0].SetLen(headerLen)
		v[1].SetLen(streamPayload)
		v[2].SetLen(crcLen)
	}
	for i := range s.msgs {
		h := &s.msgs[i].hdr
		h.Iov = &iovs[i*segments*3]
		h.SetIovlen(segments * 3)
	}
	at := 0
	return s.run(d, packets, streamPayload, func() {
		for i := range packets {
			h := heads[i*(headerLen+crcLen):]
			binary.LittleEndian.PutUint32(h[4:], uint32(at))
			payload := memory[at : at+streamPayload]
			c := crc32.Update(crc32.ChecksumIEEE(h[:headerLen]), crc32.IEEETable, payload)
			binary.LittleEndian.PutUint32(h[headerLen:], c)
			iovs[i*3+1].Base = &payload[0]
			at = (at + streamPayload) % messageLen
		}
	})
}

// single sends datagrams of one message each.
func single(fd int, d time.Duration, window uint64) (result, error) {
	n := min(singleBatch, max(1, int(window/2)))
	s := newSender(fd, window, n)
	iovs := make([]unix.Iovec, n)
	b := make([]byte, n*singleLen)
	for i := range iovs {
		iovs[i].Base = &b[i*singleLen]
		iovs[i].SetLen(singleLen)
		s.msgs[i].hdr.Iov = &iovs[i]
		s.msgs[i].hdr.SetIovlen(1)
	}
	return s.run(d, n, singlePayload, func() {})
}
