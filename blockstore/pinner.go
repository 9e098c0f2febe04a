package blockstore

// Pinner is optional: a store that can retain a file whose last name is removed, as for a client
// that has it open. Its methods may be called from any goroutine.
type Pinner interface {
	// Pin retains a regular file until Unpin: its handle stays valid although its last name is
	// removed. Each Pin is ended by one Unpin. ErrStale says that the file is gone already,
	// ErrJukebox that too many files are pinned.
	Pin(h Handle) error
	// Unpin does not wait.
	Unpin(h Handle)
}
