package rdmatest

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
)

// device is memory in a dma-buf. The RDMA device names it by addresses in names. The test reads and
// writes it by all, a mapping of the whole dma-buf.
type device struct {
	fd    int
	all   []byte
	start int // offset of the memory in all
	names []byte
}

// guard is the number of bytes before and behind the memory in its dma-buf.
const guard = 3 * 4096

// newDevice makes a dma-buf of n bytes (whole pages) with a guard on each side.
func newDevice(t testing.TB, n int) *device {
	t.Helper()
	d := &device{fd: UDMABuf(t, n+2*guard), start: guard}
	mem, err := rdma.OpenDMABuf(d.fd, 0, n+2*guard, true)
	ok(t, err)
	t.Cleanup(func() { _ = mem.Close() })
	names, err := rdma.OpenDMABuf(d.fd, guard, n, false)
	ok(t, err)
	t.Cleanup(func() { _ = names.Close() })
	d.all, d.names = mem.Names, names.Names
	copy(d.all, pattern(len(d.all), 9))
	return d
}

// register registers the memory. It skips the test if the kernel's device does not support that.
func (d *device) register(t testing.TB, pd rdma.PD, access rdma.Access) rdma.MR {
	t.Helper()
	m, err := pd.(rdma.DMABufRegisterer).RegisterDMABuf(d.fd, guard, d.names, access)
	if errors.Is(err, rdma.ErrUnsupported) && os.Getenv(DMABufEnv) != "taken" {
		t.Skip(err)
	}
	ok(t, err)
	t.Cleanup(m.Close)
	return m
}

// pick returns the end whose domain registers dma-bufs, and the other end. It skips the test if
// neither does.
func pick(t testing.TB, a, b *end) (near, far *end) {
	t.Helper()
	if _, ok := a.pd.(rdma.DMABufRegisterer); ok {
		return a, b
	}
	if _, ok := b.pd.(rdma.DMABufRegisterer); ok {
		return b, a
	}
	t.Skip("no dma-bufs")
	return nil, nil
}

// testDMABuf: every operation moves exactly the named bytes of a dma-buf, wherever in a page they
// begin and end. The processor cannot access the memory by the addresses in names.
func testDMABuf(t *testing.T, open Provider) {
	near, far := pick(t, newEnd(t, open(t), rdma.CQOptions{}), newEnd(t, open(t), rdma.CQOptions{}))
	const page, size = 4096, 300 * 4096
	d := newDevice(t, size)
	m := d.register(t, near.pd, anyAccess)
	own := near.register(make([]byte, 100), anyAccess)
	other := far.register(make([]byte, size), anyAccess)
	join(near, far, port)

	want := bytes.Clone(d.all)
	seed := byte(10)
	// moved runs an operation that copies n bytes between the memory, from off on, and the peer: to
	// the memory if in is set, else from the memory.
	moved := func(what string, off, n int, in bool, do func()) {
		t.Helper()
		seed++
		fresh := pattern(n, seed)
		if in {
			copy(want[d.start+off:], fresh)
			copy(other.Bytes(), fresh)
		} else {
			clear(other.Bytes())
		}
		far.settle()
		do()
		far.settle()
		near.settle()
		if !bytes.Equal(d.all, want) {
			t.Fatalf("%s of %d bytes at %d: the memory differs from %d on", what, n, off, differ(d.all, want)-d.start)
		}
		if at := want[d.start+off:][:n]; !bytes.Equal(other.Bytes()[:n], at) {
			t.Fatalf("%s of %d bytes at %d: the peer has other bytes", what, n, off)
		}
	}
	for _, c := range []struct{ off, n int }{
		{0, 0},
		{0, 1},
		{0, page},
		{1, page},
		{page - 1, 2},
		{page - 3, 3*page + 7},
		{256*page - 5, 10},
		{7, 65536},
		{size - 1, 1},
		{0, size},
	} {
		at := m.Addr() + uint64(c.off)
		moved("the peer's WRITE", c.off, c.n, true, func() {
			far.exec(rdma.SendWR{
				Op: rdma.OpWrite, SGL: part(other, 0, c.n), RemoteAddr: at,
				RKey: m.RKey(),
			})
		})
		moved("the peer's READ", c.off, c.n, false, func() {
			far.exec(rdma.SendWR{
				Op: rdma.OpRead, SGL: part(other, 0, c.n), RemoteAddr: at,
				RKey: m.RKey(),
			})
		})
		moved("READ", c.off, c.n, true, func() {
			near.exec(transfer(rdma.OpRead, part(m, c.off, c.n), other))
		})
		moved("WRITE", c.off, c.n, false, func() {
			near.exec(transfer(rdma.OpWrite, part(m, c.off, c.n), other))
		})
		moved("RECV", c.off, c.n, true, func() {
			near.recv(5, part(m, c.off, c.n))
			far.exec(rdma.SendWR{Op: rdma.OpSend, SGL: part(other, 0, c.n)})
			if wc := near.succeeded(5); int(wc.ByteLen) != c.n {
				t.Fatalf("%d of %d bytes were received", wc.ByteLen, c.n)
			}
		})
		moved("SEND", c.off, c.n, false, func() {
			far.recv(7, part(other, 0, c.n))
			near.exec(rdma.SendWR{Op: rdma.OpSend, SGL: part(m, c.off, c.n)})
			far.succeeded(7)
		})
	}
	// A window of the region, and a request that gathers from the dma-buf and from memory of the
	// host.
	w, err := m.Window(d.names[5*page+100:][:3*page], rdma.LocalWrite|rdma.RemoteWrite)
	ok(t, err)
	defer w.Close()
	moved("WRITE to a part", 5*page+100, 3*page, true, func() {
		far.exec(transfer(rdma.OpWrite, part(other, 0, 3*page), w))
	})
	copy(own.Bytes(), pattern(100, 200))
	moved("gathered WRITE", 17, 5000, false, func() {
		near.exec(rdma.SendWR{
			Op: rdma.OpWrite, RemoteAddr: other.Addr(), RKey: other.RKey(),
			SGL: append(part(m, 17, 5000), part(own, 0, 100)...),
		})
	})
	if !bytes.Equal(other.Bytes()[5000:5100], own.Bytes()) {
		t.Error("what was gathered from the host's memory differs")
	}
	if key := m.RKey(); m.Invalidate() == key {
		t.Error("the key is the old one")
	}
	moved("WRITE by the new key", 1, 5, true, func() {
		far.exec(rdma.SendWR{
			Op: rdma.OpWrite, SGL: part(other, 0, 5),
			RemoteAddr: m.Addr() + 1, RKey: m.RKey(),
		})
	})
	if rdma.LimitsOf(near.dev).Atomics && rdma.LimitsOf(far.dev).Atomics {
		clear(d.all[d.start+64:][:8])
		far.exec(rdma.SendWR{
			Op: rdma.OpFetchAdd, SGL: part(other, 0, 8),
			RemoteAddr: m.Addr() + 64, RKey: m.RKey(), SwapAdd: 0x0101010101010101,
		})
		if !bytes.Equal(d.all[d.start+64:][:8], bytes.Repeat([]byte{1}, 8)) {
			t.Errorf("FETCH_ADD left %x", d.all[d.start+64:][:8])
		}
	}
}

// differ returns the index of the first byte in which two slices of the same length differ.
func differ(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// testDMABufAccess: a region of a dma-buf allows only the access that it was registered with.
func testDMABufAccess(t *testing.T, open Provider) {
	const n = 3 * 4096
	for _, c := range []struct {
		name   string
		op     rdma.SendOp
		access rdma.Access
		spoil  func(m rdma.MR, w *rdma.SendWR)
	}{
		{"wrong key", rdma.OpWrite, anyAccess, func(_ rdma.MR, w *rdma.SendWR) { w.RKey ^= 0x5a5a5a5a }},
		{"before the region", rdma.OpWrite, anyAccess, func(_ rdma.MR, w *rdma.SendWR) { w.RemoteAddr-- }},
		{"beyond the region", rdma.OpWrite, anyAccess, func(_ rdma.MR, w *rdma.SendWR) { w.RemoteAddr++ }},
		{"beyond the region, read", rdma.OpRead, anyAccess, func(_ rdma.MR, w *rdma.SendWR) { w.RemoteAddr++ }},
		{"WRITE to read-only", rdma.OpWrite, rdma.LocalWrite | rdma.RemoteRead, nil},
		{"READ of write-only", rdma.OpRead, rdma.LocalWrite | rdma.RemoteWrite, nil},
		{"READ of a local region", rdma.OpRead, rdma.LocalWrite, nil},
		{"closed region", rdma.OpWrite, anyAccess, func(m rdma.MR, _ *rdma.SendWR) { m.Close() }},
		{"invalidated key", rdma.OpRead, anyAccess, func(m rdma.MR, _ *rdma.SendWR) { m.Invalidate() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, pd := newDevicePair(t, open)
			d := newDevice(t, n)
			src, dst := p.region(p.a, n, 1, anyAccess), d.register(t, pd, c.access)
			w := transfer(c.op, whole(src), dst)
			if c.spoil != nil {
				c.spoil(dst, &w)
			}
			wc, err := p.a.Do(p.ctx, w)
			if wc.Status != rdma.RemAccessErr && !iwarp(p.devs[0]) {
				t.Errorf("got %v, %v", wc.Status, err)
			}
			_ = over(t, p.a)
			_ = over(t, p.b)
			if !bytes.Equal(d.all, pattern(len(d.all), 9)) || !bytes.Equal(src.Bytes(), pattern(n, 1)) {
				t.Error("bytes moved all the same")
			}
		})
	}
	t.Run("READ into constant memory", func(t *testing.T) {
		p, pd := newDevicePair(t, open)
		d := newDevice(t, n)
		src, m := p.region(p.a, n, 1, anyAccess), d.register(t, pd, 0)
		wc, err := p.b.Do(p.ctx, transfer(rdma.OpRead, part(m, 0, n), src))
		if wc.Status != rdma.LocProtErr && wc.Status != rdma.LocAccessErr && wc.Status != rdma.LocQPOpErr {
			t.Errorf("got %v, %v", wc.Status, err)
		}
		_ = over(t, p.b)
		if !bytes.Equal(d.all, pattern(len(d.all), 9)) {
			t.Error("bytes moved all the same")
		}
	})
}

// newDevicePair makes a pair and returns the domain of its second end, which registers dma-bufs.
func newDevicePair(t testing.TB, open Provider) (*pair, rdma.PD) {
	t.Helper()
	p := newPair(t, open, endpoint.Config{})
	if _, ok := p.b.PD().(rdma.DMABufRegisterer); !ok {
		p.a, p.b = p.b, p.a
		p.devs[0], p.devs[1] = p.devs[1], p.devs[0]
	}
	if _, ok := p.b.PD().(rdma.DMABufRegisterer); !ok {
		t.Skip("no dma-bufs")
	}
	return p, p.b.PD()
}

// testBadDMABufs: RegisterDMABuf refuses memory outside of the dma-buf, wrong descriptors, and
// access that a dma-buf cannot have.
func testBadDMABufs(t *testing.T, open Provider) {
	dev := open(t)
	domain, err := dev.AllocPD()
	ok(t, err)
	pd, is := domain.(rdma.DMABufRegisterer)
	if !is {
		t.Skip("no dma-bufs")
	}
	const n = 4 * 4096
	d := newDevice(t, n)
	d.register(t, pd, rdma.LocalWrite).Close()
	plain, err := unix.MemfdCreate("no dma-buf", unix.MFD_CLOEXEC)
	ok(t, err)
	defer unix.Close(plain)
	ok(t, unix.Ftruncate(plain, n))
	whole := uint64(len(d.all))
	for _, c := range []struct {
		name   string
		fd     int
		offset uint64
		names  []byte
		access rdma.Access
		want   error
	}{
		{"beyond the end", d.fd, whole - n + 4096, d.names, anyAccess, rdma.ErrInvalidWR},
		{"beyond the end by a byte", d.fd, whole - 4096, d.names[:4097], anyAccess, rdma.ErrInvalidWR},
		{"far beyond", d.fd, 1 << 40, d.names, anyAccess, rdma.ErrInvalidWR},
		{"around the end of numbers", d.fd, ^uint64(4095), d.names, anyAccess, rdma.ErrInvalidWR},
		{"names elsewhere in a page", d.fd, 4096, d.names[1:][:4096], anyAccess, rdma.ErrInvalidWR},
		{"nothing", d.fd, 4096, nil, anyAccess, rdma.ErrInvalidWR},
		{"a file", plain, 0, d.names, anyAccess, rdma.ErrInvalidWR},
		{"no descriptor", -1, 0, d.names, anyAccess, rdma.ErrInvalidWR},
		{"remote writing without local", d.fd, 4096, d.names, rdma.RemoteWrite, rdma.ErrInvalidWR},
		{"windows", d.fd, 4096, d.names, rdma.LocalWrite | rdma.WindowBind, rdma.ErrUnsupported},
	} {
		before := DMABufReferences(t, d.fd)
		m, err := pd.RegisterDMABuf(c.fd, c.offset, c.names, c.access)
		if err == nil {
			m.Close()
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if after := DMABufReferences(t, d.fd); after != before {
			t.Errorf("%s: %d references, and %d before", c.name, after, before)
		}
	}
}

// testDMABufReleased: the dma-buf has no more references once its region or the device is closed.
func testDMABufReleased(t *testing.T, open Provider) {
	for _, end := range []string{"region", "parent first", "device"} {
		t.Run(end, func(t *testing.T) {
			dev := open(t)
			domain, err := dev.AllocPD()
			ok(t, err)
			pd, is := domain.(rdma.DMABufRegisterer)
			if !is {
				t.Skip("no dma-bufs")
			}
			d := newDevice(t, 64*4096)
			before, files := DMABufReferences(t, d.fd), descriptors(t)
			m := d.register(t, pd, anyAccess)
			if now := DMABufReferences(t, d.fd); now < before+1 {
				t.Errorf("%d references with a region, %d before", now, before)
			}
			part, err := m.Window(d.names[5:500], rdma.LocalWrite|rdma.RemoteWrite)
			ok(t, err)
			m.Invalidate()
			switch end {
			case "region":
				part.Close()
				m.Close()
				m.Close()
			case "parent first":
				m.Close()
				part.Close()
			case "device":
				ok(t, dev.Close())
				m.Close()
				part.Close()
			}
			if after := DMABufReferences(t, d.fd); after != before {
				t.Errorf("%d references, %d before", after, before)
			}
			if after := descriptors(t); end != "device" && after != files {
				t.Errorf("%d descriptors, %d before", after, files)
			}
		})
	}
}
