package blockstore

// HostLocker is optional: a store of the host's files that takes byte-range locks in the host's
// kernel, so that programs of the host see them. To the host all these locks have one owner; the
// caller divides them among its clients. No method waits for a lock. The methods may be called from
// any goroutine, but not two at once for the same file.
//
// Both ends belong to a range. The host cannot lock bytes beyond 2^63-2; locks there are between
// clients only.
type HostLocker interface {
	// LockHost locks a range, and replaces locks of it that were taken before. If a program of the
	// host has a lock that is in the way, LockHost returns that lock and changes nothing. ErrNotSupp
	// says that the host cannot lock this file, ErrJukebox that too many files are locked. After
	// ErrWouldBlock the caller tries again: the store waits for another user of the file.
	LockHost(h Handle, start, end uint64, exclusive bool) (in *HostLock, err error)
	// UnlockHost unlocks a range.
	UnlockHost(h Handle, start, end uint64)
	// ReleaseHost unlocks all of a file.
	ReleaseHost(h Handle)
	// TestHost returns a lock of the host that is in the way of a range, or nil.
	TestHost(h Handle, start, end uint64, exclusive bool) (in *HostLock, err error)
}

// HostLock is a lock of a program of the host.
type HostLock struct {
	Start, End uint64
	Exclusive  bool
	// PID is the process that has the lock; 0 if that is not known.
	PID int
}
