package blockstore

// Advises is optional: a store that can read data before a client asks for it.
type Advises interface {
	// WillNeed begins to read a range into memory, and does not wait for that; n 0 means to the end
	// of the file. It reads as much as it sees fit. The result is false if it does nothing. The
	// caller must be allowed to read the file.
	WillNeed(c *Cred, h Handle, off, n uint64) (bool, error)
	// DontNeed drops a range from memory, as far as it is on disk and nobody maps it; n 0 means to
	// the end of the file. The result is false if it does nothing. The caller must be allowed to read
	// the file.
	DontNeed(c *Cred, h Handle, off, n uint64) (bool, error)
}
