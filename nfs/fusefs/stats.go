package fusefs

import (
	"sync/atomic"
	"time"
)

// opcode numbers the operations that are counted.
type opcode int

const (
	opLookup opcode = iota
	opGetAttr
	opSetAttr
	opAccess
	opReadLink
	opCreate
	opMknod
	opMkdir
	opSymlink
	opLink
	opUnlink
	opRmdir
	opRename
	opOpen
	opRead
	opWrite
	opFlush
	opFsync
	opRelease
	opLseek
	opFallocate
	opCopy
	opLock
	opReadDir
	opStatFS
	opXattr
	opCount
)

var opNames = [opCount]string{
	"LOOKUP", "GETATTR", "SETATTR", "ACCESS", "READLINK", "CREATE", "MKNOD", "MKDIR", "SYMLINK", "LINK", "UNLINK",
	"RMDIR", "RENAME", "OPEN", "READ", "WRITE", "FLUSH", "FSYNC", "RELEASE", "LSEEK", "FALLOCATE", "COPY_FILE_RANGE",
	"LOCK", "READDIR", "STATFS", "XATTR",
}

// opStats count one operation.
type opStats struct{ n, failed, nanos atomic.Uint64 }

func (s *opStats) add(took time.Duration, failed bool) {
	s.n.Add(1)
	s.nanos.Add(uint64(took))
	if failed {
		s.failed.Add(1)
	}
}

// stats count what a mount does.
type stats struct {
	ops                   [opCount]opStats
	read, written         atomic.Uint64 // bytes to and from programs
	ahead, hits           atomic.Uint64 // blocks that were read ahead, and reads that found their data there
	sent, resent, commits atomic.Uint64 // WRITEs, WRITEs that were sent again after a restart of the server, COMMITs
	invalidated           atomic.Uint64 // files that another client had changed
	stalled               atomic.Uint64 // writes that waited for memory
	silly                 atomic.Uint64 // removed files that were open
	lostWrites            atomic.Uint64 // WRITEs that failed for good
	local                 atomic.Uint64 // opens and attributes without a call, under a delegation
}

// OpStats are the counts of one operation of the kernel.
type OpStats struct {
	Name   string        `json:"name"`
	Calls  uint64        `json:"calls"`
	Failed uint64        `json:"failed"`
	Time   time.Duration `json:"nanoseconds"` // of all calls together
}

// Stats are the counts of a mount since it was made.
type Stats struct {
	Ops          []OpStats `json:"ops"` // those with calls
	BytesRead    uint64    `json:"bytes_read"`
	BytesWritten uint64    `json:"bytes_written"`
	ReadAhead    uint64    `json:"blocks_read_ahead"`
	ReadHits     uint64    `json:"reads_from_blocks"`
	Writes       uint64    `json:"writes_sent"`
	Rewrites     uint64    `json:"writes_repeated"`
	Commits      uint64    `json:"commits"`
	LostWrites   uint64    `json:"writes_failed"`
	Invalidated  uint64    `json:"files_changed_by_others"`
	Stalled      uint64    `json:"writes_stalled"`
	SillyRenames uint64    `json:"removed_while_open"`
	Local        uint64    `json:"answered_by_delegations"`
	Nodes        int       `json:"nodes"`
	OpenFiles    int       `json:"open_files"`
	FreeMemory   int       `json:"free_memory"` // bytes of data buffers that are not used
}

// Stats returns the counts. It waits for nothing.
func (f *FS) Stats() Stats {
	c := &f.stats
	s := Stats{
		BytesRead: c.read.Load(), BytesWritten: c.written.Load(), ReadAhead: c.ahead.Load(), ReadHits: c.hits.Load(),
		Writes: c.sent.Load(), Rewrites: c.resent.Load(), Commits: c.commits.Load(), LostWrites: c.lostWrites.Load(),
		Invalidated: c.invalidated.Load(), Stalled: c.stalled.Load(), SillyRenames: c.silly.Load(),
		Local: c.local.Load(),
		Nodes: f.nodes.count(), FreeMemory: len(f.pool.free) * maxTransfer,
	}
	for i := range c.ops {
		o := &c.ops[i]
		if n := o.n.Load(); n > 0 {
			s.Ops = append(s.Ops, OpStats{opNames[i], n, o.failed.Load(), time.Duration(o.nanos.Load())})
		}
	}
	f.mu.Lock()
	s.OpenFiles = len(f.handles)
	f.mu.Unlock()
	return s
}
