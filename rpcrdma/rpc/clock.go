package rpc

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// now is the time since the machine was started, in nanoseconds. Suspended time counts, and setting the
// date changes nothing. Processes of the same boot have the same clock.
func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails on kernels before 2.6.39 only
	return t.Nano()
}

var lastConn atomic.Int64

// NextConn is a number for a new connection (Peer.Conn): greater than that of every connection that this
// process or one before it, since the machine was started, has had.
func NextConn() int64 {
	for {
		last := lastConn.Load()
		n := max(now(), last+1)
		if lastConn.CompareAndSwap(last, n) {
			return n
		}
	}
}
