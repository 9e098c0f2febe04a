package blockstore

// HostLocker is what a store of the host's files may do beside FS: take byte-range locks
// in the host's kernel, so that programs of the host see them. All of them are one owner
// to the host, which the caller has to divide among its own. None of the methods waits for
// a lock. They may be called from any goroutine, but for one file by one at a time.
//
// Ranges are of bytes, end included; what a host cannot express, beyond 2^63-2, is
// between clients alone.
type HostLocker interface {
	// LockHost takes the range, in the place of what is held of it, or says who is in
	// the way; then nothing has changed. ErrNotSupp means that this file cannot be
	// locked there, ErrJukebox that too many are.
	LockHost(h Handle, start, end uint64, exclusive bool) (in *HostLock, err error)
	// UnlockHost gives the range up.
	UnlockHost(h Handle, start, end uint64)
	// ReleaseHost gives up everything of a file.
	ReleaseHost(h Handle)
	// TestHost says who is in the way of a lock, nil if nobody is.
	TestHost(h Handle, start, end uint64, exclusive bool) (in *HostLock, err error)
}

// HostLock is a lock of a program of the host.
type HostLock struct {
	Start, End uint64
	Exclusive  bool
	// PID is the process that holds it; 0 if that is not known.
	PID int
}
