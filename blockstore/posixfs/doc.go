// Package posixfs is a file store over a directory of a Linux host. It implements blockstore.FS
// and every optional interface of package blockstore. It knows nothing of NFS. Begin reading at
// Open, and then at object.go: an object is an open inode, and almost every call begins with
// FS.acquire.
//
// # What a handle is
//
// A handle contains the filesystem's own file handle (name_to_handle_at), or the inode number
// and birth time if the filesystem makes none, and a tag of the export. It names the object over
// renames and restarts, also after a crash, because nothing about it is stored. It has no MAC:
// the protocol layer authenticates the handles that clients send.
//
// If the daemon may call open_by_handle_at, the kernel finds the object of a handle. Otherwise a
// table of the places where objects were seen last finds it, and a search of the export if the
// table is out of date.
//
// # What clients can reach
//
// The store resolves names one component at a time below an open directory, never through a
// symbolic link and never over a mount point. So a path leads nowhere but down.
//
// A handle of another export fails by its tag. A directory that is opened by handle is walked up
// to the root of the export before it is used: one that the host has moved away is stale, and
// its ".." is no way out. A file that the host has moved out of the export, but not off the
// filesystem, stays readable by its handle where the kernel resolves handles. The same holds for
// every NFS server that does not check subtrees.
//
// # Permission
//
// A privileged daemon makes each system call that checks permission as the client's user, so
// that the kernel decides, ACLs included. An unprivileged daemon compares mode bits and ACLs
// itself, and can do no more than its own user: it creates objects for its own user (and for a
// client's root), and refuses other users with ErrPerm.
//
// # What is on disk
//
// Stable writes, commits and every change of the namespace are on disk before a method returns,
// unless Options.Async. Symbolic links and special files have no fsync; their attributes follow
// with the filesystem's journal. A failed sync fails every call that waits for it and changes
// the write verifier, so that clients send their unstable writes again.
//
// # Locks
//
// Methods may be called from any goroutine. object.mu is held for a change and the attributes
// around it, object.openMu while descriptors are opened. Lock order: object.mu (two directories:
// see lockBoth), object.openMu, then the mutexes of the tables (cache, windows, pins, changes
// and so on).
//
// # Example
//
//	fs, err := posixfs.Open("/srv/data", posixfs.Options{})
//	...
//	root, _ := fs.Root()
//	h, a, err := fs.Lookup(nil, root, "README") // nil: as root
//	n, eof, err := fs.ReadAt(nil, h, make([]byte, a.Size), 0, false)
package posixfs
