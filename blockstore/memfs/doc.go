// Package memfs is a file store in memory, for tests, simulations and scratch exports. It behaves
// as a Linux filesystem behind a Linux NFS server. Its contents end with the process. It has the
// optional interfaces of package blockstore Extents, Xattrs, ACLs, Births, Pinner, NowaitWriter and
// NowaitAttr. It knows nothing of NFS.
//
// Begin reading at New. Its methods may be called from any goroutine: one lock guards the whole
// store, and readers share it.
//
//	fs := memfs.New(memfs.Options{})
//	root, err := fs.Root()
package memfs
