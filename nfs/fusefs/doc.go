// Package fusefs presents a directory of an NFS server as a file system of the host, by FUSE
// (/dev/fuse). It translates the kernel's requests into calls of an nfs/client. It needs no NFS
// client and no RDMA driver in the kernel. Begin reading at Mount.
//
// # Objects
//
// The kernel names objects by node IDs. The package has a node for every object that the kernel
// remembers, with its filehandle, and forgets it when the kernel does (FORGET).
//
// # Coherence
//
// The mount is close-to-open coherent, as the kernel's NFS client is (nfs(5), "Data and metadata
// coherence"): a program that opens a file sees what others wrote before they closed it.
//
//   - OPEN looks the name up at the server, and compares the attributes with those from the time
//     when the kernel's cache was filled. If another client has changed the file, OPEN drops the
//     cache. If the name has become another file, OPEN fails with ESTALE. The kernel then looks the
//     name up itself.
//
//   - FLUSH, at close, waits until the server has the data on stable storage.
//
//   - A byte-range lock compares the attributes too. Before an unlock the data that was written is
//     made stable.
//
//   - Attributes and names are valid between acregmin and acregmax (acdirmin and acdirmax for
//     directories). The time doubles while an object stays unchanged.
//
//   - While the mount has the delegation of a file, it answers OPEN and GETATTR itself, and data
//     waits longer. The mount writes back when the server recalls the delegation. See
//     delegations.go.
//
// The kernel's own writeback cache of FUSE is off: with it the kernel trusts its size of a file
// more than the server's, and never sees the growth of a file that another client writes.
//
// # Data
//
// WRITE copies into memory that is registered with the client, and returns. Full or old chunks go
// to the server as unstable WRITEs. They are retained until a COMMIT, and sent again if the server
// has restarted meanwhile. READ of a sequential stream finds its data in blocks that were read
// ahead, and /dev/fuse takes the data from there.
//
// # Waiting
//
// A call waits while the server does not answer, unless Config.Timeout bounds the wait. A signal
// that ends the program ends the call, too. A signal that the program handles does not: the runtime
// of Go sends itself signals all the time, and repeats calls that end with EINTR. In a wait for a
// lock any signal ends the call at once.
//
// # Limits
//
// The package does not know transports, URLs, the command line and other mounts: its caller makes
// the client.Client (nfs/dial) and reads the options (cmd/internal/mount).
//
// # Concurrency
//
// go-fuse runs each request of the kernel in a goroutine, so all methods of FS run concurrently.
// The lock order is dir.mu or reader.mu, then node.mu, writer.mu, FS.dirtyMu. With nodes.mu, FS.mu,
// creds.mu and block.mu no other lock is taken.
//
//	f, err := fusefs.Mount("/mnt", fusefs.Config{
//		Client: c, Root: root, Times: fusefs.DefaultCacheTimes,
//	})
package fusefs
