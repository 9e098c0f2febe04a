package blockstore

// Leaser is optional: a store whose files programs of the host can open, and that reports when
// they do. The methods may be called from any goroutine.
type Leaser interface {
	// Lease takes a lease of a file. The store calls broken when a program of the host is about to
	// change the file, or, for a lease to write, to open it at all. The program waits for the lease
	// to be released, but not forever. broken runs in a goroutine of its own, at most once for each
	// file until all its leases are released.
	//
	// release ends the lease. It does not wait, and may be called after Close. It is nil if no program
	// can reach the files except through the store. ErrJukebox says that a program has the file open
	// in a way that conflicts with the lease, ErrNotSupp that the store cannot take leases.
	//
	// Calls of the store itself never wait for a lease: the store ends one that conflicts with them.
	Lease(h Handle, write bool, broken func()) (release func(), err error)
}
