//go:build rdmacore && linux && cgo

package verbs

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestWakeAfterFree: a wake after the loop was freed does not write to a descriptor that was opened
// since.
func TestWakeAfterFree(t *testing.T) {
	eventfd := func() int {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	l := &loop{wakeFD: eventfd()}
	was := l.wakeFD
	l.free()
	other := eventfd()
	defer func() { _ = unix.Close(other) }()
	if other != was {
		t.Skipf("the descriptor %d has gone to somebody else", was)
	}
	l.wake()
	var b [8]byte
	if n, err := unix.Read(other, b[:]); err != unix.EAGAIN {
		t.Errorf("another descriptor was written: %d bytes, %v", n, err)
	}
}
