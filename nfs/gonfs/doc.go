// Package gonfs joins programs written for github.com/willscott/go-nfs and
// github.com/willscott/go-nfs-client to RPC-over-RDMA.
//
//   - Serve serves a go-nfs handler on an RDMA device, and ServeFS any go-billy file system. The
//     data of READ and READLINK goes by RDMA WRITE, that of WRITE and SYMLINK by RDMA READ (RFC
//     8267 section 4).
//   - Dial connects a go-nfs-client to the server that an nfs+rdma URL names.
//
// Both libraries speak NFS version 3 over TCP streams. The package gives the server an in-memory
// stream for each RDMA connection, and the client a TCP port on loopback with package nfs/bridge
// behind it, because go-nfs-client dials only TCP. Data is therefore copied once more on each side
// than with nfs/nfs3 and nfs/client.
//
// Programs that need locks, version 4, exactly-once replies over a reconnect or callers' identities
// use nfs/nfs3, nfs/nfs4 and a blockstore. Begin reading at Serve and Dial. All functions may be
// called from any goroutine.
//
// The package does not know what go-nfs's handlers do, and has no code of NFS of its own.
package gonfs
