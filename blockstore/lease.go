package blockstore

// Leaser is what a store may do beside FS whose files others can get at: tell when they
// do. The methods may be called from any goroutine.
type Leaser interface {
	// Lease has broken called when somebody who does not come by the store is about to
	// change a file, or, for a lease to write, to look at it. He waits for a while, for
	// the lease to be released. broken is called in a goroutine of its own, at most once for
	// each file until all its leases are released.
	//
	// release ends the lease; it does not wait, may be called after Close, and is nil if nobody
	// can get at the files otherwise. ErrJukebox says that somebody has the file open in a way
	// that the lease is against, ErrNotSupp that the store cannot tell.
	//
	// Calls of the store itself never wait for a lease: one that stands against them is ended.
	Lease(h Handle, write bool, broken func()) (release func(), err error)
}
