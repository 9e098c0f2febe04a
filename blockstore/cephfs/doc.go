// Package cephfs is a store in CephFS: blockstore.FS over the low-level functions of libcephfs
// (ceph_ll_*, version 16 and later).
//
// The program is built with cgo and the tag cephfs, and needs the headers of libcephfs for that.
// The library itself is opened at run time, by Open. A program without the tag returns ErrNotBuilt.
//
// The package knows nothing of NFS. Begin reading at Open, then objects.go: a handle is an inode
// number and a snapshot, so that every gateway of one filesystem makes the same handles, and finds
// an object by its handle alone, also after a restart.
//
// # Snapshots
//
// .snap of a directory has its snapshots, which are read-only (snapshots.go). A handle has the
// snapshot of its object. Another gateway finds a directory of a snapshot through the live
// directory.
//
// # Identity and permission
//
// A change of a directory runs with the UserPerm of the caller, so that libcephfs and the MDS give
// the new object to its owner and check the permission again. The store has checked before by the
// rules of blockstore.Cred, which are those of an NFS server: the owner of a file may write to it
// whatever its mode says. Data and attributes are therefore accessed as root.
//
// # Stability
//
// The MDS answers a change before its journal is written. The store waits for the journal
// (ceph_ll_sync_inode of the directory) before it reports a change of a name as done. Data that was
// written Unstable is lost with the process if Options.Cache is set; without it, only the size and
// the times can be. Verifier changes with each Open.
//
// # Other clients of the cluster
//
// Locks of LockHost are locks of CephFS, and leases are delegations of CephFS: other gateways and
// native clients see both. A mount has a name (Options.Session), by which a later start ends what a
// killed process left at the MDS.
//
// # Concurrency
//
// Every method may be called from any goroutine. A call waits for MDS and OSDs on a thread of its
// own, as calls of C do: ReadAt with nowait returns ErrWouldBlock.
//
// # Example
//
//	fs, err := cephfs.Open(cephfs.Options{Filesystem: "cephfs", Root: "/volumes/data"})
//	...
//	root, err := fs.Root()
//	h, a, err := fs.Lookup(nil, root, "README") // nil: as root
package cephfs
