//go:build rdmacore && linux && cgo

package verbs_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rdmatest"
	"github.com/rstored/rstored/rdma/verbs"
)

// TestDMABufRefused: a device that does not register dma-bufs returns an error, retains nothing,
// and registers a mapping of the same memory.
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
	before, files := rdmatest.DMABufReferences(t, fd), descriptors(t)
	m, err := pd.(rdma.DMABufRegisterer).RegisterDMABuf(fd, 0, names.Names, rdma.LocalWrite)
	switch {
	case err == nil && os.Getenv(rdmatest.DMABufEnv) == "refused":
		t.Error("the dma-buf was registered")
		fallthrough
	case err == nil:
		m.Close()
		t.Skip("the device registers dma-bufs")
	case !errors.Is(err, rdma.ErrUnsupported) || !errors.Is(err, unix.EOPNOTSUPP) ||
		!strings.Contains(err.Error(), dev.(*verbs.Device).Name()):
		t.Errorf("refused with %v", err)
	}
	t.Log(err)
	if n, f := rdmatest.DMABufReferences(t, fd), descriptors(t); n != before || f != files {
		t.Errorf("%d references and %d descriptors, and before %d and %d", n, f, before, files)
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

// TestDMABufDeviceRemoved: the kernel removes a device with a region of a dma-buf. It waits until
// the user closes the device. Then both device and dma-buf are free.
func TestDMABufDeviceRemoved(t *testing.T) {
	addrs(t)
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
	for range 2 { // the new device of the same name works too
		command(t, "rdma link add "+device+" type rxe netdev "+link)
		before := rdmatest.DMABufReferences(t, fd)
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
		removed := exec.Command("timeout", "30", "rdma", "link", "delete", device)
		if err := removed.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if _, err := os.Stat("/sys/class/infiniband/" + device); errors.Is(err, os.ErrNotExist) {
				break // the kernel sends no event for these devices
			}
		}
		if during := rdmatest.DMABufReferences(t, fd); during <= before {
			t.Errorf("%d references while there is a region, and before %d", during, before)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := removed.Wait(); err != nil {
			t.Errorf("the device does not go: %v", err)
		}
		m.Close()
		if after := rdmatest.DMABufReferences(t, fd); after != before {
			t.Errorf("%d references, and before %d", after, before)
		}
	}
}

// openWhenThere opens the device of an address. A new interface gets its device after a moment.
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

func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
