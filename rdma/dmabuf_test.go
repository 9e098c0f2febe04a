package rdma

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpenDMABuf(t *testing.T) {
	page := unix.Getpagesize()
	fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, []byte("there"), int64(page)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		fd     int
		offset int64
		n      int
	}{{fd, 0, 0}, {fd, 1, 5}, {fd, -int64(page), 5}, {-1, 0, 5}} {
		if _, err := OpenDMABuf(c.fd, c.offset, c.n, false); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	names, err := OpenDMABuf(fd, int64(page), 1<<20, false)
	if err != nil || len(names.Names) != 1<<20 {
		t.Fatal(err)
	}
	// An access to Names faults, and a system call that accesses them fails.
	if _, err := unix.Write(fd, names.Names[:1]); !errors.Is(err, unix.EFAULT) {
		t.Errorf("the names can be read: %v", err)
	}
	memory, err := OpenDMABuf(fd, int64(page), 5, true)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd) // each DMABuf has its own descriptor
	if string(memory.Names) != "there" {
		t.Errorf("mapped is %q", memory.Names)
	}
	for _, b := range []*DMABuf{names, memory} {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); !errors.Is(err, ErrClosed) {
			t.Errorf("closed twice: %v", err)
		}
	}
}
