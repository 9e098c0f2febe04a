// Package blockstore is the contract between the file protocols and the stores of the bytes: FS.
//
// A store works with inodes and handles, not with paths. Every operation carries the identity of
// its caller (Cred), and READ and WRITE move data between the store and memory of the caller.
//
// The package knows nothing of NFS, RPC or RDMA, and imports nothing of this module. Begin reading
// at FS. The example of this page is the smallest useful store. Stores here are:
//
//   - blockstore/posixfs: a directory of a Linux host
//   - blockstore/cephfs: a directory of a CephFS, by libcephfs (build tag cephfs)
//   - blockstore/memfs: a file system in memory, for tests and scratch exports
//   - blockstore/fault: a store with faults, around another store
//
// Package blockstore/storetest has the tests that every store passes.
//
// # Optional interfaces
//
// A store may implement more than FS. The protocols look for these interfaces:
//
//   - Extents: holes, allocation, copies and clones within the store (SEEK, ALLOCATE, COPY, CLONE)
//   - Siblings: copies from another store (COPY)
//   - Xattrs: extended attributes; Limits.Xattrs says whether they work
//   - ACLs: POSIX access control lists; Limits.ACLs says whether they work
//   - Quotas: the space that a user may still use; Limits.Quotas says whether there are any
//   - ProjectQuotas: the space that a directory may still use
//   - Births: when objects were made; Limits.Births says whether it is known
//   - Labels: security labels, as those of SELinux; Limits.Labels says whether they work
//   - Advises: reads data before a client asks for it (IO_ADVISE)
//   - Mapper: lends the memory of the page cache, so that a READ needs no copy
//   - NowaitWriter: writes on the event loop of a connection, if they need not wait
//   - NowaitAttr: attributes on the event loop, if they are in memory
//   - Pinner: files that are open stay after their last name is removed
//   - HostLocker: byte-range locks that programs of the host see, or other clients of a cluster
//   - Leaser: reports when a program of the host, or another client of a cluster, opens a file, for
//     delegations
//   - DirWatcher: reports when others change a directory, for delegations
//
// The daemon calls each store through a gate, which forwards these interfaces one by one
// (cmd/internal/exports/optional.go). A new optional interface needs its methods there.
//
// # Permission
//
// The store checks permission. Cred has the rules of Linux for mode bits and ACLs (Cred.May,
// Cred.PrepareSetAttr and others), with the exceptions of an NFS server. A nil Cred is the server
// itself and may do everything.
//
// # Concurrency
//
// Every method may be called from any goroutine, and several at once. A Cred is used by one
// goroutine at a time. With nowait, ReadAt runs on an event loop and must not wait for a device.
package blockstore
