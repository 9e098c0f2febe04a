package blockstore

// Extents is optional: a store that knows the holes of a file, and copies data from file to file
// by itself. A method that the store or its filesystem does not have returns ErrNotSupp. The
// methods may be called from any goroutine.
type Extents interface {
	// Seek returns the first offset from off on that has data, or that is in a hole. The end of the
	// file is a hole. Seek returns ErrNXIO if there is no such offset, or if off is not below the
	// size.
	Seek(c *Cred, h Handle, off uint64, hole bool) (uint64, error)
	// Allocate reserves space for a range, so that a write there does not fail for lack of it. The
	// file grows if the range ends behind it.
	Allocate(c *Cred, h Handle, off, n uint64) error
	// Deallocate makes a range a hole, up to the end of the file.
	Deallocate(c *Cred, h Handle, off, n uint64) error
	// Clone makes a range of to share the blocks of a range of from; n 0 means to the end. Its effect
	// is stable when it returns, as are those of Allocate and Deallocate.
	Clone(c *Cred, from Handle, fromOff uint64, to Handle, toOff, n uint64) error
	// Copy copies a range and returns how much it has copied; n 0 means to the end. It can copy less
	// than n, but copies nothing only at the end of from. Holes of from become holes of to, if the
	// store can make them. The copy is as stable as an Unstable write.
	Copy(c *Cred, from Handle, fromOff uint64, to Handle, toOff, n uint64) (uint64, error)
}

// Siblings is optional: a store that copies data from the files of another store by itself.
type Siblings interface {
	// CopyFrom is Copy from a file of another store. The permission to read is that of reader. It
	// returns ErrXDev if the two stores do not share the place of their data, or ErrNotSupp.
	CopyFrom(c *Cred, other FS, reader *Cred, from Handle, fromOff uint64, to Handle, toOff, n uint64) (uint64, error)
}

// CheckRange refuses an empty range, and one that ends beyond the largest offset, 2^63-1.
func CheckRange(off, n uint64) error {
	const most = 1<<63 - 1
	switch {
	case n == 0:
		return ErrInval
	case off > most || n > most-off:
		return ErrFBig
	}
	return nil
}

// Overlap reports whether two ranges of one file have a byte in common.
func Overlap(a, b, n uint64) bool { return a < b && b-a < n || b <= a && a-b < n }
