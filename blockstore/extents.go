package blockstore

// Extents is what a store may do beside FS: it knows which parts of a file are there,
// and moves data from file to file by itself. A method that a store cannot do, or not
// on its filesystem, returns ErrNotSupp. Like those of FS, all may be called from any
// goroutine.
type Extents interface {
	// Seek returns the first offset, not before off, with data or in a hole. The end of
	// the file is a hole. It returns ErrNXIO if there is none, or if off is not below
	// the size.
	Seek(c *Cred, h Handle, off uint64, hole bool) (uint64, error)
	// Allocate makes sure that a range can be written without running out of space. The
	// file grows if the range ends behind it.
	Allocate(c *Cred, h Handle, off, n uint64) error
	// Deallocate makes a range a hole, as far as the file goes.
	Deallocate(c *Cred, h Handle, off, n uint64) error
	// Clone has a range of to share the data of a range of from; n 0 means to the end. It
	// is stable when the method returns, as Allocate and Deallocate are.
	Clone(c *Cred, from Handle, fromOff uint64, to Handle, toOff, n uint64) error
	// Copy copies a range; n 0 means to the end. It may copy less, and returns how much;
	// nothing at all only at the end of from. Holes of from are holes of to, where the store can make
	// them. The copy is as stable as an Unstable write.
	Copy(c *Cred, from Handle, fromOff uint64, to Handle, toOff, n uint64) (uint64, error)
}

// CheckRange refuses a range that is empty or goes beyond what offsets of files can be.
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
