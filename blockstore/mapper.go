package blockstore

// Mapper is optional: a store whose data is in memory that it can lend, such as the page cache. The
// network then sends the data from there, without a copy.
type Mapper interface {
	// Map lends up to n bytes of a file at off, if all of them are in memory now. It checks what
	// ReadAt checks, and never waits. It returns nil if the caller should call ReadAt instead: on an
	// error, for a file that is being written, or for a range that is partly on disk. eof is as
	// ReadAt reports it. Map may be called from any goroutine.
	Map(c *Cred, h Handle, off uint64, n int) (w Window, eof bool)
}

// Window is a part of a file that Map lent, until Release.
type Window interface {
	// Bytes is the memory of the file itself. It changes when the file changes. After a truncation,
	// an access to what is gone is a fault (SIGBUS; EFAULT in system calls). It must not be written.
	Bytes() []byte
	// Copy reads into dst what src contains now, a part of Bytes of the same length. It has no faults:
	// behind the end of the file it sets zeros. It fails where ReadAt would, and may wait for a disk.
	Copy(dst, src []byte) error
	// Release ends the loan, once. No work request may use the memory any more: the last one has
	// completed. Release may be called from any goroutine, also after Close.
	Release()
}
