package blockstore

// Pinner is what a store may do beside FS: keep a file whose last name is removed. Its methods may
// be called from any goroutine.
type Pinner interface {
	// Pin has a regular file stay until Unpin: if its last name is removed meanwhile, or
	// was while it was pinned, all that has its handle works on. Each Pin is ended by one
	// Unpin. ErrStale says that the file is gone already, ErrJukebox that too many are pinned.
	Pin(h Handle) error
	// Unpin does not wait.
	Unpin(h Handle)
}
