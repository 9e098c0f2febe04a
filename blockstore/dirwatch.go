package blockstore

// DirWatcher is optional: a store whose directories others can change, such as programs of the
// host. Its methods may be called from any goroutine.
type DirWatcher interface {
	// WatchDir watches a directory. The store calls changed when somebody changes its entries or its
	// attributes, or moves it, other than by this process. Its removal may be reported late. changed
	// runs in a goroutine of its own, after the change, and at most once for each call of WatchDir.
	//
	// stop ends the watch. It does not wait. The caller calls it once, before or after Close. stop
	// is nil if nobody else can change the directory. ErrNotSupp says that the store does not
	// notice changes by others.
	WatchDir(h Handle, changed func()) (stop func(), err error)
}
