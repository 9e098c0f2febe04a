package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
)

// captureSlot lets one capture at a time look at the packets of a device. Without one
// it costs an atomic load per batch.
type captureSlot struct {
	cur atomic.Pointer[capture]
}

// capture is where packets go: records of a pcap file, handed from the device's
// loops to the goroutine that writes them. The loops never wait for it; what it
// cannot take is left out and counted.
type capture struct {
	spec    control.CaptureSpec
	remote  netip.Addr // of spec.QPN, and its queue pair
	far     uint32
	records chan []byte
	queued  atomic.Int64 // bytes in records
	missed  atomic.Uint64
}

// Bounds of what waits to be written.
const (
	captureBatches = 4096
	captureBytes   = 64 << 20
)

// wrap puts the slot around a shard's link.
func (t *captureSlot) wrap(_ int, l link.Link) link.Link { return &capturedLink{Link: l, slot: t} }

// capturedLink is a link whose packets may be captured.
type capturedLink struct {
	link.Link
	slot *captureSlot
}

// Stats passes on the counters of the socket.
func (t *capturedLink) Stats() udp.Stats {
	if l, ok := t.Link.(interface{ Stats() udp.Stats }); ok {
		return l.Stats()
	}
	return udp.Stats{}
}

// SendsVolatile implements link.VolatileSender.
func (t *capturedLink) SendsVolatile() bool {
	l, ok := t.Link.(link.VolatileSender)
	return ok && l.SendsVolatile()
}

// Recv receives and shows what came.
func (t *capturedLink) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	n, err := t.Link.Recv(rx, deadline)
	if c := t.slot.cur.Load(); c != nil && n > 0 {
		var buf []byte
		now := time.Now()
		for i := range rx.D[:n] {
			d := &rx.D[i]
			f := wire.Flow{Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort, TOS: d.TOS}
			if c.wants(f.Src, false, d.Data) {
				buf = appendRecord(buf, now, &f, d.Data, c.spec.Snap)
			}
		}
		c.put(buf)
	}
	return n, err
}

// Send sends and then shows the batch: by then the link has written the
// checksums into it.
func (t *capturedLink) Send(b *wire.Batch) error {
	c := t.slot.cur.Load()
	if c != nil {
		// What is shown must not change, or go, before it was.
		for i := range b.D {
			if d := &b.D[i]; d.Volatile != nil {
				d.Own(make([]byte, d.PayloadLen))
			}
		}
	}
	err := t.Link.Send(b)
	if c != nil && len(b.D) > 0 {
		var buf, dgram []byte
		now := time.Now()
		for i := range b.D {
			d := &b.D[i]
			if !c.wants(d.Flow.Dst, true, d.Hdr) {
				continue
			}
			dgram = append(dgram[:0], d.Hdr...)
			for _, p := range d.Payload {
				dgram = append(dgram, p...)
			}
			end := len(d.Hdr) + int(d.Pad) + wire.ICRCLen
			dgram = append(dgram, d.Hdr[len(d.Hdr):end]...)
			buf = appendRecord(buf, now, d.Flow, dgram, c.spec.Snap)
		}
		c.put(buf)
	}
	return err
}

// wants reports whether a packet is one of those asked for.
func (c *capture) wants(peer netip.Addr, out bool, dgram []byte) bool {
	if c.spec.Peer.IsValid() && peer.Unmap() != c.spec.Peer {
		return false
	}
	if c.spec.QPN != 0 {
		if len(dgram) < wire.BTHLen {
			return false
		}
		// Packets name the queue pair that they go to.
		to := wire.DestQPN(dgram)
		if !out && to != c.spec.QPN || out && (to != c.far || peer.Unmap() != c.remote) {
			return false
		}
	}
	return true
}

func (c *capture) put(buf []byte) {
	if len(buf) == 0 {
		return
	}
	if c.queued.Add(int64(len(buf))) <= captureBytes {
		select {
		case c.records <- buf:
			return
		default:
		}
	}
	c.queued.Add(-int64(len(buf)))
	c.missed.Add(1)
}

// notByUs is why there is no capture of a device of the kernel.
func notByUs(v *device) error {
	return fmt.Errorf("the packets of %s, a device of the kernel, do not pass through rstored: 'tcpdump -i %s' shows those of cards whose driver lets it, 'tcpdump -i INTERFACE' on its network interface those of rxe and siw",
		v.name(), v.kernel.Name())
}

// Capture implements control.Backend.
func (d *Daemon) Capture(ctx context.Context, spec control.CaptureSpec, w io.Writer) error {
	dev, err := d.findDevice(spec.Device)
	if err != nil {
		return err
	}
	if dev.soft == nil {
		return notByUs(dev)
	}
	spec.Peer = spec.Peer.Unmap()
	c := &capture{spec: spec, records: make(chan []byte, captureBatches)}
	if spec.QPN != 0 {
		list := dev.soft.QPs()
		i := slices.IndexFunc(list, func(q roce.QPInfo) bool { return q.QPN == spec.QPN })
		if i < 0 {
			return fmt.Errorf("queue pair %#x of %s: %w", spec.QPN, dev.addr, control.ErrNotFound)
		}
		c.remote, c.far = list[i].Remote.Addr().Unmap(), list[i].RemoteQPN
	}
	if !dev.capture.cur.CompareAndSwap(nil, c) {
		return fmt.Errorf("a capture of %s is running; %w", dev.addr, control.ErrConflict)
	}
	defer dev.capture.cur.Store(nil)
	d.log.Info("capture started", zap.Stringer("device", dev.addr))
	defer func() {
		d.log.Info("capture ended", zap.Stringer("device", dev.addr), zap.Uint64("batches_missed", c.missed.Load()))
	}()
	if _, err := w.Write(fileHeader()); err != nil {
		return err
	}
	for left := spec.Packets; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-dev.gone:
			return errors.New("the device was closed")
		case buf := <-c.records:
			c.queued.Add(-int64(len(buf)))
			if spec.Packets > 0 {
				buf, left = firstRecords(buf, left)
			}
			if _, err := w.Write(buf); err != nil {
				return nil // the reader has hung up
			}
			if spec.Packets > 0 && left == 0 {
				return nil
			}
		}
	}
}

// firstRecords cuts records off behind the first n, and returns how many of those are
// still to come.
func firstRecords(b []byte, n int) (first []byte, left int) {
	at := 0
	for ; n > 0 && at < len(b); n-- {
		at += recordHdrLen + int(binary.LittleEndian.Uint32(b[at+8:]))
	}
	return b[:at], n
}

// The pcap file format, with times in nanoseconds and packets that begin with
// an IP header.
const (
	pcapMagic    = 0xa1b23c4d
	pcapMajor    = 2
	pcapMinor    = 4
	pcapSnapLen  = 1 << 16
	linkTypeRaw  = 101
	fileHdrLen   = 24
	recordHdrLen = 16
)

func fileHeader() []byte {
	b := make([]byte, fileHdrLen)
	le := binary.LittleEndian
	le.PutUint32(b, pcapMagic)
	le.PutUint16(b[4:], pcapMajor)
	le.PutUint16(b[6:], pcapMinor)
	le.PutUint32(b[16:], pcapSnapLen)
	le.PutUint32(b[20:], linkTypeRaw)
	return b
}

// IP and UDP, as much as RoCEv2 needs of them.
const (
	ipv4Len      = 20
	ipv6Len      = 40
	udpLen       = 8
	protoUDP     = 17
	ipTTL        = 64
	ipv4Version  = 0x45 // version 4, five words
	ipv6Version  = 6 << 4
	ipDontFrag   = 0x4000
	rocePort     = 4791
	checksumZero = 0xffff // how UDP spells a checksum of zero
)

// appendRecord appends a packet with the IP and UDP headers it travelled in, its first
// snap bytes only unless that is 0.
// The IPv4 identification is not known here, but the packet's own checksum
// covers it and so tells it.
func appendRecord(b []byte, at time.Time, f *wire.Flow, dgram []byte, snap int) []byte {
	src, dst := f.Src.Unmap(), f.Dst.Unmap()
	ipLen := ipv4Len
	if dst.Is6() {
		ipLen = ipv6Len
	}
	size := ipLen + udpLen + len(dgram)
	start := len(b)
	b = slices.Grow(b, recordHdrLen+size)[:start+recordHdrLen+ipLen+udpLen]
	rec, ip := b[start:start+recordHdrLen], b[start+recordHdrLen:start+recordHdrLen+ipLen]
	u := b[start+recordHdrLen+ipLen:]
	clear(b[start:])
	le, be := binary.LittleEndian, binary.BigEndian
	le.PutUint32(rec, uint32(at.Unix()))
	le.PutUint32(rec[4:], uint32(at.Nanosecond()))
	le.PutUint32(rec[8:], uint32(size))
	le.PutUint32(rec[12:], uint32(size))
	be.PutUint16(u, f.SrcPort)
	be.PutUint16(u[2:], rocePort)
	be.PutUint16(u[4:], uint16(udpLen+len(dgram)))
	if dst.Is6() {
		ip[0], ip[1] = ipv6Version|f.TOS>>4, f.TOS<<4
		be.PutUint16(ip[4:], uint16(udpLen+len(dgram)))
		ip[6], ip[7] = protoUDP, ipTTL
		copyAddr(ip[8:24], src)
		copyAddr(ip[24:40], dst)
		sum := fold(sum16(sum16(sum16(protoUDP+uint32(udpLen+len(dgram)), ip[8:]), u), dgram))
		if sum = ^sum; sum == 0 {
			sum = checksumZero
		}
		be.PutUint16(u[6:], sum)
	} else {
		_, _, id := wire.VerifyICRC(f, dgram, 0)
		ip[0], ip[1] = ipv4Version, f.TOS
		be.PutUint16(ip[2:], uint16(size))
		be.PutUint16(ip[4:], id)
		be.PutUint16(ip[6:], ipDontFrag)
		ip[8], ip[9] = ipTTL, protoUDP
		copyAddr(ip[12:16], src)
		copyAddr(ip[16:20], dst)
		be.PutUint16(ip[10:], ^fold(sum16(0, ip)))
		// The UDP checksum stays 0, not used.
	}
	b = append(b, dgram...)
	if snap > 0 && snap < size {
		le.PutUint32(b[start+8:], uint32(snap))
		b = b[:start+recordHdrLen+snap]
	}
	return b
}

func copyAddr(to []byte, a netip.Addr) { copy(to, a.AsSlice()) }

// sum16 adds b as 16-bit words to a sum (RFC 1071).
func sum16(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
