//go:build rdmacore && linux && cgo

package verbs_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rdmatest"
	"github.com/rstored/rstored/rdma/verbs"
)

// references is how many the kernel counts to a dma-buf, and how many descriptors the process has.
type references struct{ count, files int }

func referencesTo(t testing.TB, fd int) (r references) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	r.files = len(files)
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "count: %d", &r.count); err == nil {
			return r
		}
	}
	t.Fatalf("the descriptor is of no dma-buf: %s", text)
	return r
}

// TestDMABufRefused: a device that registers no dma-bufs says so, keeps nothing, and registers a mapping of the same
// memory.
func TestDMABufRefused(t *testing.T) {
	dev := provider(verbs.Config{}, addrs(t))(t)
	if os.Getenv(rdmatest.DMABufEnv) == "taken" {
		t.Skip("the device registers dma-bufs")
	}
	const n = 64 << 10
	fd := rdmatest.UDMABuf(t, n)
	names, err := rdma.OpenDMABuf(fd, 0, n, false)
	if err != nil {
		t.Fatal(err)
	}
	defer names.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	before := referencesTo(t, fd)
	m, err := pd.(rdma.DMABufRegisterer).RegisterDMABuf(fd, 0, names.Names, rdma.LocalWrite)
	switch {
	case err == nil && os.Getenv(rdmatest.DMABufEnv) == "refused":
		t.Error("the dma-buf was registered")
		fallthrough
	case err == nil:
		m.Close()
		t.Skip("the device registers dma-bufs")
	case !errors.Is(err, rdma.ErrUnsupported) || !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), dev.(*verbs.Device).Name()):
		t.Errorf("refused with %v", err)
	}
	t.Log(err)
	if after := referencesTo(t, fd); after != before {
		t.Errorf("%+v, and before %+v", after, before)
	}
	mapped, err := rdma.OpenDMABuf(fd, 0, n, true)
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	if m, err = pd.Register(mapped.Names, rdma.LocalWrite|rdma.RemoteWrite); err != nil {
		t.Fatalf("by a mapping: %v", err)
	}
	m.Close()
}

// TestDMABufDeviceRemoved: the kernel takes the device away under a region of a dma-buf, which is free then.
func TestDMABufDeviceRemoved(t *testing.T) {
	addrs(t)
	if strings.HasPrefix(os.Getenv("RDMA"), "siw") {
		t.Skip("siw registers no dma-bufs")
	}
	const n = 64 << 10
	const link, device, addr = "dmabuf0", "rxe_dmabuf0", "10.96.0.10"
	fd := rdmatest.UDMABuf(t, n)
	names, err := rdma.OpenDMABuf(fd, 0, n, false)
	if err != nil {
		t.Fatal(err)
	}
	defer names.Close()
	command(t, "ip link add "+link+" type veth peer name dmabuf1")
	t.Cleanup(func() { command(t, "ip link del "+link) })
	command(t, "ip addr add "+addr+"/24 dev "+link)
	command(t, "ip link set dmabuf1 up")
	command(t, "ip link set "+link+" up")
	for range 2 { // what comes back under its name is as good
		command(t, "rdma link add "+device+" type rxe netdev "+link)
		before := referencesTo(t, fd)
		d := openWhenThere(t, addr)
		pd, err := d.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		m, err := pd.(rdma.DMABufRegisterer).RegisterDMABuf(fd, 0, names.Names, rdma.LocalWrite|rdma.RemoteWrite)
		if errors.Is(err, rdma.ErrUnsupported) && os.Getenv(rdmatest.DMABufEnv) != "taken" {
			_ = d.Close()
			command(t, "rdma link delete "+device)
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			command(t, "timeout 30 rdma link delete "+device) // it waits for us
		}()
		select {
		case <-d.Removed():
		case <-time.After(20 * time.Second):
			t.Fatal("the removal was not told")
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		<-gone
		m.Close()
		if after := referencesTo(t, fd); after.count != before.count {
			t.Errorf("%d references, and before %d", after.count, before.count)
		}
	}
}

// openWhenThere opens the device of an address, which a new interface gets a moment after it came.
func openWhenThere(t *testing.T, addr string) *verbs.Device {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		d, err := verbs.Open(verbs.Config{Addr: netip.MustParseAddr(addr)})
		if err == nil {
			return d
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
