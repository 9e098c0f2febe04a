package blockstore

// Mapper is what a store may do beside FS whose data lies in memory that can be lent: hand
// out that memory, so that it is sent from where it is.
type Mapper interface {
	// Map lends the up to n bytes of a file at off, if all of them are in memory now. It
	// checks what ReadAt checks, and never waits. It returns nil whenever the data is
	// better read by ReadAt, be it an error, a file that is being written, or a range
	// that is partly on disk; the caller then calls that. eof is as ReadAt reports it.
	// It may be called from any goroutine.
	Map(c *Cred, h Handle, off uint64, n int) (w Window, eof bool)
}

// Window is a part of a file that Map lent, until Release.
type Window interface {
	// Bytes is the memory. It is the file itself: it changes when the file does, and
	// touching what a truncation has taken away is a fault (SIGBUS; EFAULT in system
	// calls). It must not be written.
	Bytes() []byte
	// Copy reads into dst, without faults, what src, a part of Bytes of the same length,
	// holds now; zeros are where the file ends before. It fails where ReadAt would. It may
	// wait for a disk.
	Copy(dst, src []byte) error
	// Release ends the loan. The memory must not be used any more by anything, a work
	// request in particular. It may be called from any goroutine, once, also after Close.
	Release()
}
