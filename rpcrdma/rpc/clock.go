package rpc

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// BootTime is the time since the machine was started, in nanoseconds. Suspended time counts, and
// setting the date changes nothing. Processes of the same boot have the same clock.
func BootTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("no CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return t.Nano()
}

var lastConn atomic.Int64

// NextConn returns a number for a new connection (Peer.Conn). It is greater than the numbers of all
// earlier connections since the machine was started, also those of earlier processes.
func NextConn() int64 {
	for {
		last := lastConn.Load()
		n := max(BootTime(), last+1)
		if lastConn.CompareAndSwap(last, n) {
			return n
		}
	}
}
