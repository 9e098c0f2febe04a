package service

import (
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// CountHostConflicts is the name of a count that is no error: a lock of the host was in the way.
const CountHostConflicts = "host_lock_conflicts"

// AddStats adds what the service counts: procedures, operations, errors and the memory of version
// 4. It does the same for another RPC server.
func (s *Service) AddStats(to *control.Stats, other *rpc.Server) {
	to.NFS4Memory, to.Process = s.NFS4Memory(), s.ProcessMemory()
	to.Procs = make(map[string]control.Proc)
	for _, srv := range []*rpc.Server{s.RPC, other} {
		st := srv.Stats()
		for _, p := range st.Procs {
			to.Procs[p.Program+"."+p.Procedure] = control.Proc{
				Calls: p.Calls, Errors: p.Errors, Retransmits: p.Retransmits, Nanoseconds: p.Nanoseconds,
				BytesIn: p.BytesIn, BytesOut: p.BytesOut,
			}
		}
		counters.Add(to.Errors, st.Errors)
	}
	for name, n := range s.NFS4.Ops() {
		to.Procs["nfs4."+name] = control.Proc{Calls: n}
	}
	counters.Add(to.Errors, s.faults.Snapshot())
	counters.Add(to.Errors, s.NFS4.Faults())
	n := s.LockTable.HostCounts()
	counters.Add(to.Errors, map[string]uint64{
		CountHostConflicts: n.Conflicts, "host_locks_unsupported": n.Without, "host_locks_full": n.Full,
	})
	delete(to.Errors, "nfs_status_OK")
}

// NFS4Memory is the use of the memory for clients of version 4.
func (s *Service) NFS4Memory() control.NFS4Memory {
	m := s.NFS4.Memory()
	return control.NFS4Memory{Bytes: m.Bytes, Limit: m.Limit}
}
