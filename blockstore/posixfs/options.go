package posixfs

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// Mechanism says whether the kernel or the server does a task. With Auto, Open chooses by the
// privileges of the process.
type Mechanism uint8

// Mechanisms.
const (
	// Auto uses the kernel if the process may do so, else the server.
	Auto Mechanism = iota
	// Kernel uses the kernel. Open fails if the process may not do so.
	Kernel
	// Server uses the server, also if the process may use the kernel.
	Server
)

// Options of Open.
type Options struct {
	// StateDir is the directory for the table of locations, which is used without open_by_handle_at.
	// Several exports may share it. It must not be below an export. If it is empty, the table is lost
	// with the process.
	StateDir string
	// ReadOnly makes every change fail with ErrROFS.
	ReadOnly bool
	// Async replies before changes are on disk, as the export option async of other servers. It is
	// faster, and a crash of the host loses acknowledged data.
	Async bool
	// FSID identifies the export, in its handles and to clients. 0 derives it from Filesystem and the
	// root directory.
	FSID uint64
	// Filesystem identifies the filesystem; 0 is that of ProbeFilesystem.
	Filesystem uint64
	// OpenFiles bounds the objects in the cache, each with up to three descriptors. The bound is at
	// most 4096, and at most a sixth of RLIMIT_NOFILE, but at least 16. 0 takes the largest bound.
	OpenFiles int
	// Files are the descriptors that stores of the process share. nil: the store has all of them.
	Files *Files
	// SearchEntries bounds the entries that a search reads for one object which a program of the
	// host has moved. 0 means 1<<20. With open_by_handle_at there is no search.
	SearchEntries int
	// Identity is how permission is checked: Kernel takes the identity of the client's user, Server
	// compares mode bits.
	Identity Mechanism
	// Handles is how handles are resolved: Kernel by open_by_handle_at, Server by the table of
	// locations.
	Handles Mechanism
	// NoUmask says that the umask of the process is 0 and stays so. Then the store needs no threads
	// with a umask of their own to create objects.
	NoUmask bool
	// OwnThreads takes identities of clients only on threads that do nothing else. The kernel's RDMA
	// devices need it: the threads that use them must have the credentials with which the process
	// began. It costs two changes of thread for each such call.
	OwnThreads bool
	// MapAfter is how long a file must be unchanged before Map lends its data. 0 means one second.
	// With less than 0 Map lends nothing.
	MapAfter time.Duration
	// Logger gets messages for the operator; nil drops them.
	Logger *slog.Logger

	// For tests: what an older kernel or a simpler filesystem lacks.
	forceBirth, noOpenat2, noFaccessat2 bool
}

// Counters are totals since Open, for statistics.
type Counters struct {
	Opens          uint64 // objects opened because they were not in the cache
	Evictions      uint64 // objects closed for room
	ForeignHandles uint64 // handles that are of another export
	Outside        uint64 // handles of objects no longer below the root
	Searches       uint64 // walks of the export for a moved object
	SearchMisses   uint64 // walks that did not find it
	SyncFailures   uint64 // fsyncs that failed, each with a new verifier
	SyncsShared    uint64 // writes and commits that one sync made stable together with others
	ReadAhead      uint64 // bytes that the kernel was asked to read ahead of streams
	WouldBlock     uint64 // reads that got ErrWouldBlock, as data was not in memory
	DirectReads    uint64 // reads that went past the page cache
	DirectWrites   uint64 // writes that did
	WritesBlock    uint64 // writes that got ErrWouldBlock
	DirStreamHits  uint64 // directory reads that continued an open stream
	Leases         uint64 // leases of files
	LeaseBreaks    uint64 // leases that another program broke
	Mapped         uint64 // reads whose data was lent, not copied
	MapCopies      uint64 // packets of lent data that were copied nevertheless
}

// counters are the same as atomics, in the same order.
type counters struct {
	opens, evictions, foreign, outside, searches, searchMisses, syncFailures, syncsShared, readAhead, wouldBlock,
	directReads, directWrites, writesBlock, streamHits, leases, leaseBreaks, mapped, mapCopies atomic.Uint64
}

// Counters returns the totals so far.
func (f *FS) Counters() Counters {
	c := &f.count
	return Counters{
		c.opens.Load(), c.evictions.Load(), c.foreign.Load(), c.outside.Load(), c.searches.Load(), c.searchMisses.Load(),
		c.syncFailures.Load(), c.syncsShared.Load(), c.readAhead.Load(), c.wouldBlock.Load(), c.directReads.Load(),
		c.directWrites.Load(), c.writesBlock.Load(), c.streamHits.Load(), c.leases.Load(), c.leaseBreaks.Load(),
		c.mapped.Load(), c.mapCopies.Load(),
	}
}
