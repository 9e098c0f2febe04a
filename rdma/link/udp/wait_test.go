package udp

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestWakeAfterClose: a wake after the link was closed does not write to a descriptor that was
// opened since.
func TestWakeAfterClose(t *testing.T) {
	eventfd := func() int {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	w := &waiter{event: eventfd()}
	was := w.event
	_ = w.close() // returns an error: there is no file
	other := eventfd()
	defer func() { _ = unix.Close(other) }()
	if other != was {
		t.Skipf("the descriptor %d has gone to somebody else", was)
	}
	w.state.Store(polling)
	w.wake()
	var b [8]byte
	if n, err := unix.Read(other, b[:]); err != unix.EAGAIN {
		t.Errorf("another descriptor was written: %d bytes, %v", n, err)
	}
}
