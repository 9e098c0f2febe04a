package rdmatest

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DMABufEnv names an environment variable: "taken" if the kernel's device under test registers
// dma-bufs, "refused" if it does not. If the variable is not set, the tests accept both.
const DMABufEnv = "RDMA_TEST_DMABUF"

// UDMABuf makes a dma-buf of n bytes (whole pages) of memory of the host. If the kernel has no
// udmabuf, UDMABuf skips the test, or fails it if DMABufEnv is set.
func UDMABuf(t testing.TB, n int) (fd int) {
	t.Helper()
	dev, err := os.OpenFile("/dev/udmabuf", os.O_RDWR, 0)
	if err != nil && os.Getenv(DMABufEnv) != "" {
		t.Fatal("the kernel has no udmabuf: ", err)
	}
	if err != nil {
		t.Skip("the kernel has no udmabuf: ", err)
	}
	defer dev.Close()
	mem, err := unix.MemfdCreate("device", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	ok(t, err)
	defer unix.Close(mem)
	ok(t, unix.Ftruncate(mem, int64(n)))
	_, err = unix.FcntlInt(uintptr(mem), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	ok(t, err)
	create := struct {
		memfd, flags uint32
		offset, size uint64
	}{memfd: uint32(mem), flags: 1, size: uint64(n)} // close-on-exec
	const udmabufCreate = 0x40187542
	r, _, e := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), udmabufCreate, uintptr(unsafe.Pointer(&create)))
	if e != 0 {
		t.Fatal("UDMABUF_CREATE: ", e)
	}
	t.Cleanup(func() { unix.Close(int(r)) })
	return int(r)
}

// DMABufReferences returns the kernel's number of references to a dma-buf: descriptors, mappings
// and regions.
func DMABufReferences(t testing.TB, fd int) (n int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	ok(t, err)
	for line := range bytes.Lines(text) {
		if _, err := fmt.Sscanf(string(line), "count: %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("the descriptor is of no dma-buf: %s", text)
	return 0
}

// descriptors returns the number of open descriptors of this process.
func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	ok(t, err)
	return len(list)
}
