package blockstore

// NowaitWriter is what a store may do beside FS that can often write without waiting for
// anything.
type NowaitWriter interface {
	// WriteNowait is WriteAt that never waits: it writes, or returns ErrWouldBlock, and the
	// caller then calls WriteAt where waiting is allowed. What would fail is left to that
	// too, so there is no other error. A part of p may have been written when it returns
	// ErrWouldBlock, which writing it again makes good. It may be called from any goroutine.
	WriteNowait(c *Cred, h Handle, p []byte, off uint64, how Stability) (n int, committed Stability, w Wcc, err error)
}
