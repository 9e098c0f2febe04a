package rpcrdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rdmatest"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// RegisterDMABuf implements rdma.DMABufRegisterer. In the fake, fd is memory that can be mapped.
func (p *fakePD) RegisterDMABuf(fd int, offset uint64, names []byte, access rdma.Access) (rdma.MR, error) {
	mem, err := unix.Mmap(fd, int64(offset), len(names), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	m, err := p.Register(names, access)
	m.(*fakeMR).mem = mem
	p.names = names
	return m, err
}

// memfd makes n bytes of memory that is not mapped.
func memfd(t *testing.T, n int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		t.Fatal(err)
	}
	return fd
}

func mapped(t *testing.T, fd int, off int64, n, prot int) []byte {
	t.Helper()
	flags := unix.MAP_SHARED
	if fd < 0 {
		flags = unix.MAP_PRIVATE | unix.MAP_ANON | unix.MAP_NORESERVE
	}
	b, err := unix.Mmap(fd, off, n, prot, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// TestDMABuf: data moves into and out of memory of another device. Nothing accesses the addresses
// in names.
func TestDMABuf(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	const page, size = 4096, 256 << 10
	fd := memfd(t, page+size)
	mem, names := mapped(t, fd, page, size, unix.PROT_READ|unix.PROT_WRITE), mapped(t, -1, 0, size, unix.PROT_NONE)
	release, err := c.RegisterDMABuf(fd, page, names)
	if err != nil {
		t.Fatal(err)
	}
	// A call with other memory leaves a region behind. It must not be reused for a dma-buf.
	c.pd.(*fakePD).reuses = true
	r := request(procGet, func(e *xdr.Encoder) { e.Uint32(1); e.Uint32(50_000) },
		func(d *xdr.Decoder) error { d.Bulk(size); return d.Err() })
	r.Dst = make([]byte, 50_000)
	if err := c.Call(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if len(c.spare) == 0 {
		t.Fatal("no region was left for other calls")
	}
	for _, n := range []int{0, 1, 100, 3999, 5000, 200_001} {
		for _, room := range []int{n, n + 1000} {
			clear(mem)
			want := make([]byte, size)
			pattern(want[8:8+n], 0)
			dst := names[8:][:room]
			r := request(procGet, func(e *xdr.Encoder) { e.Uint32(1); e.Uint32(uint32(n)) }, func(d *xdr.Decoder) error {
				if b := d.Bulk(size); d.Err() != nil || len(b) != n || n > 0 && &b[0] != &dst[0] {
					return fmt.Errorf("%d bytes, or elsewhere: %v", len(b), d.Err())
				}
				return nil
			})
			r.Dst = dst
			if err := c.Call(t.Context(), r); err != nil || !bytes.Equal(mem, want) {
				t.Errorf("getting %d with room for %d: %v, or other bytes", n, room, err)
			}
		}
		r := request(procPut, func(e *xdr.Encoder) { e.Uint32(1); e.Bulk(names[8:][:n]); e.Uint32(0xabcd) },
			func(d *xdr.Decoder) error {
				if s, got := d.Uint32(), int(d.Uint32()); s != sum(mem[8:8+n]) || got != n {
					return fmt.Errorf("%d bytes arrived, with sum %#x", got, s)
				}
				return d.Err()
			})
		if err := c.Call(t.Context(), r); err != nil {
			t.Errorf("putting %d: %v", n, err)
		}
	}
	// A server that puts the result into the message, and not into the chunk, gives no data to
	// copy.
	r = request(procText, func(e *xdr.Encoder) { e.Uint32(10) }, func(d *xdr.Decoder) error {
		if b := d.Bulk(size); len(b) > 0 {
			t.Error("bytes that nobody could put where they belong")
		}
		return d.Err()
	})
	r.Dst = names[:100]
	if err := c.Call(t.Context(), r); err == nil {
		t.Error("a result came inline for memory of another device")
	}
	release()
	turned := make(chan struct{})
	c.loop.Submit(func() { close(turned) })
	<-turned
	if len(c.devices) != 0 || len(c.regions) != 0 {
		t.Error("the memory is there after its release")
	}
}

// into gets n bytes into dst, and checks them through mem, a mapping of the same memory.
func into(ctx context.Context, c *Client, dst, mem []byte) error {
	clear(mem)
	err := c.Call(ctx, &rpc.Request{
		Prog: echoProg, Vers: 1, Proc: echoGet, Dst: dst,
		Args: func(e *xdr.Encoder) { e.Uint32(uint32(len(dst))); e.Uint32(0) },
		Res: func(d *xdr.Decoder) error {
			if b := d.Bulk(len(dst)); d.Err() != nil || len(b) != len(dst) || &b[0] != &dst[0] {
				return fmt.Errorf("%d bytes, or elsewhere: %v", len(b), d.Err())
			}
			return nil
		},
	})
	if err == nil && !bytes.Equal(mem, fill(make([]byte, len(mem)))) {
		err = errors.New("other bytes")
	}
	return err
}

// TestUDMABuf: a dma-buf of the kernel is registered through a mapping on any device, and directly
// on devices that support it.
func TestUDMABuf(t *testing.T) {
	const size = 256 << 10
	fd := rdmatest.UDMABuf(t, size)
	mem, names := mapped(t, fd, 0, size, unix.PROT_READ|unix.PROT_WRITE), mapped(t, -1, 0, size, unix.PROT_NONE)
	run := func(t *testing.T, c, forThem *Client) {
		release, err := c.Register(mem)
		if err != nil {
			t.Fatal(err)
		}
		if err := into(t.Context(), c, mem, mem); err != nil {
			t.Errorf("by a mapping: %v", err)
		}
		if err := store(c, mem, 0); err != nil {
			t.Errorf("out of a mapping: %v", err)
		}
		release()
		if release, err = c.RegisterDMABuf(fd, 0, names); errors.Is(err, rpc.ErrNotForDMABufs) {
			if !windowed(c.lim) {
				t.Error("another connection is wanted, and there are no windows")
			}
			c = forThem
			release, err = c.RegisterDMABuf(fd, 0, names)
		}
		if taken := os.Getenv(rdmatest.DMABufEnv); taken == "taken" && err != nil || taken == "refused" && err == nil {
			t.Errorf("it is to be %s: %v", taken, err)
		}
		if errors.Is(err, rpc.ErrNoDMABuf) && errors.Is(err, rdma.ErrUnsupported) {
			t.Logf("as it is: %v", err)
			return
		}
		if err != nil {
			t.Fatalf("as it is: %v", err)
		}
		defer release()
		other := make([]byte, size)
		for range 3 { // among calls with other memory
			if err := into(t.Context(), c, other, other); err != nil {
				t.Errorf("beside it: %v", err)
			}
			if err := into(t.Context(), c, names, mem); err != nil {
				t.Errorf("as it is: %v", err)
			}
			if err := into(t.Context(), c, names[4099:][:70_001], mem[4099:][:70_001]); err != nil {
				t.Errorf("into a part of it: %v", err)
			}
			fill(mem)
			if err := store(c, names, 0); err != nil {
				t.Errorf("out of it: %v", err)
			}
		}
	}
	t.Run("verbs", func(t *testing.T) {
		text := os.Getenv("RDMA_TEST_ADDRS")
		if text == "" {
			t.Skip("RDMA_TEST_ADDRS names no addresses of RDMA devices")
		}
		var devs []rdma.Device
		for _, s := range strings.Split(text, ",") {
			d, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr(s)})
			if err != nil {
				t.Fatal(err)
			}
			devs = append(devs, d)
		}
		_, at, _ := serveEchoOn(t, devs[0])
		c, err := Dial(rpc.WithDMABufs(t.Context()), devs[1], at, ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		run(t, dialOn(t, devs[1], at, ClientConfig{}), c)
	})
	t.Run("soft", func(t *testing.T) {
		_, at, _ := serveEcho(t)
		dev, err := roce.Open(roce.Config{})
		if err != nil {
			t.Fatal(err)
		}
		run(t, dialOn(t, dev, at, ClientConfig{}), nil)
	})
}
