// Package client is an NFS client for versions 4.2 and 4.1 (RFC 7862, RFC 8881) and 3 (RFC
// 1813).
//
// It has three levels. Begin reading at the one that you need:
//
//   - An FS is a directory by names, with the methods of os.Root (Mkdir, WriteFile, Rename, ...)
//     and as an io/fs file system. A File is an open file, as an io.ReaderAt and io.WriterAt, with
//     byte-range locks. See Client.FS, Client.Open and Client.CreateFile.
//   - Upload, Download, Stream and Copy move whole files, with many requests in flight. PutFile
//     makes a small file in one call.
//   - The methods that are named after procedures (Lookup, Read, Write, Commit, ...) make one
//     call each. They are those of version 3, with its statuses, in every version.
//
// The package knows neither transports nor RDMA devices. Config.Dial makes its connections;
// package nfs/dial has one for URLs. Data goes between the network and the caller's memory
// without a copy if the transport can do so; see Client.Register and Client.RegisterDMABuf.
//
// # Failures
//
// A Client makes its connection again when it is lost, and sends the calls in flight again. The
// server executes them once: it recognises them by their XIDs in version 3 (its duplicate
// request cache), and by slot and sequence ID in version 4 (the reply cache of the session). If
// a server of version 4 has restarted, the client makes a session again and reclaims opens and
// locks. Locks that it cannot reclaim are lost (ErrLockLost).
//
// # Callbacks
//
// A session of version 4 has a backchannel, on which the server calls the client: when a lock is
// free for which a File waits, and about delegations. Delegations are for a program that caches
// files by itself, see Client.UseDelegations: the client does not cache. callback4.go has the
// protocol without IO, callbacks.go its goroutines.
//
// Data that the server acknowledged as Unstable can be lost in a restart of the server. A File
// writes it again in Sync. A caller of Write retains it until Commit, and compares the
// verifiers.
//
// # Concurrency
//
// A Client may be used from any goroutine. Of a File, ReadAt, WriteAt and the locks may. The
// client has few goroutines of its own: one renews the lease while files are open, and short
// ones answer callbacks, return delegations, react to what the server reports and release slots of
// calls that were given up.
package client
