package capture

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/link/pcap"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/wire"
)

// Slot lets one capture at a time look at the packets of a device.
type Slot struct {
	cur atomic.Pointer[capture]
}

// ErrRunning says that the device has a capture already.
var ErrRunning = errors.New("a capture is running")

// Options say which packets are captured.
type Options struct {
	Peer netip.Addr // packets of this peer only, if valid
	// QPN limits the capture to one queue pair of the device, if it is not 0. Remote and RemoteQPN
	// are its other side: packets name only the queue pair that they go to.
	QPN       uint32
	Remote    netip.Addr
	RemoteQPN uint32
	Packets   int // end after this many, if not 0
	Snap      int // keep only the first bytes of a packet, if not 0
}

// capture hands records of a pcap file from the loops of the device to the goroutine that writes
// them.
type capture struct {
	Options
	records chan []byte
	queued  atomic.Int64 // bytes in records
	missed  atomic.Uint64
}

// Bounds of what waits to be written.
const (
	batchesMax = 4096
	bytesMax   = 64 << 20
)

// Wrap puts the slot around a shard's link.
func (s *Slot) Wrap(_ int, l link.Link) link.Link { return &capturedLink{Link: l, slot: s} }

// capturedLink is a link whose packets may be captured.
type capturedLink struct {
	link.Link
	slot *Slot
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
				buf = pcap.AppendRecord(buf, now, &f, d.Data, c.Snap)
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
				link.Own(d, make([]byte, d.PayloadLen))
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
			buf = pcap.AppendRecord(buf, now, d.Flow, dgram, c.Snap)
		}
		c.put(buf)
	}
	return err
}

// wants reports whether a packet is one of those asked for.
func (c *capture) wants(peer netip.Addr, out bool, dgram []byte) bool {
	if c.Peer.IsValid() && peer.Unmap() != c.Peer {
		return false
	}
	if c.QPN != 0 {
		if len(dgram) < wire.BTHLen {
			return false
		}
		// Packets name the queue pair that they go to.
		to := wire.DestQPN(dgram)
		if !out && to != c.QPN || out && (to != c.RemoteQPN || peer.Unmap() != c.Remote) {
			return false
		}
	}
	return true
}

func (c *capture) put(buf []byte) {
	if len(buf) == 0 {
		return
	}
	if c.queued.Add(int64(len(buf))) <= bytesMax {
		select {
		case c.records <- buf:
			return
		default:
		}
	}
	c.queued.Add(-int64(len(buf)))
	c.missed.Add(1)
}

// Device is a device whose packets are captured, until Closed is closed.
type Device struct {
	Slot   *Slot
	Closed <-chan struct{}
}

// Run writes the packets of devices to w until ctx is done, all devices are closed, w fails, or the
// number of packets that o asks for has been written. Only one capture of a device runs at a time;
// begun is called when this one does. missed is the number of batches that were left out.
func Run(ctx context.Context, w io.Writer, o Options, devices []Device, begun func()) (missed uint64, err error) {
	c := &capture{Options: o, records: make(chan []byte, batchesMax)}
	for _, d := range devices {
		if !d.Slot.cur.CompareAndSwap(nil, c) {
			return 0, ErrRunning
		}
		defer d.Slot.cur.Store(nil)
	}
	begun()
	ended := make(chan struct{}) // ends the goroutine
	defer close(ended)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, d := range devices {
			select {
			case <-d.Closed:
			case <-ended:
				return
			}
		}
	}()
	_, err = w.Write(pcap.FileHeader())
	if err == nil {
		err = c.write(ctx, w, closed)
	}
	return c.missed.Load(), err
}

func (c *capture) write(ctx context.Context, w io.Writer, closed <-chan struct{}) error {
	for left := c.Packets; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-closed:
			return errors.New("the device was closed")
		case buf := <-c.records:
			c.queued.Add(-int64(len(buf)))
			if c.Packets > 0 {
				buf, left = pcap.FirstRecords(buf, left)
			}
			_, err := w.Write(buf)
			if err != nil || c.Packets > 0 && left == 0 {
				return nil //nolint:nilerr // a reader that hangs up ends the capture
			}
		}
	}
}
