package rpc

import "sync/atomic"

// procStats are the counters of a procedure.
type procStats struct {
	calls, errors, retransmits atomic.Uint64
	nanos, bytesIn, bytesOut   atomic.Uint64
}

// fault is the number of a counter of errors. Snapshots have the counters in this order: new ones
// go to the end.
type fault uint8

const (
	notCalls fault = iota
	rpcMismatch
	badCred
	progUnavail
	progMismatch
	procUnavail
	garbage
	system
	panics
	dropped
	faultsEnd
)

var faultNames = [faultsEnd]string{
	notCalls: "rpc_not_a_call", rpcMismatch: "rpc_version_mismatch", badCred: "rpc_bad_credential",
	progUnavail: "rpc_program_unavailable", progMismatch: "rpc_program_mismatch", procUnavail: "rpc_procedure_unavailable",
	garbage: "rpc_garbage_arguments", system: "rpc_system_error", panics: "rpc_panics", dropped: "rpc_dropped",
}

// ProcStats are the counts of one procedure since the server started.
type ProcStats struct {
	Program     string `json:"program"`
	Version     uint32 `json:"version"`
	Procedure   string `json:"procedure"`
	Calls       uint64 `json:"calls"`
	Errors      uint64 `json:"errors"` // answered on the RPC level: GARBAGE_ARGS, SYSTEM_ERR, AUTH_ERROR
	Retransmits uint64 `json:"retransmits"`
	Nanoseconds uint64 `json:"nanoseconds"` // summed from arrival to reply
	BytesIn     uint64 `json:"bytes_in"`    // arguments, bulk data included
	BytesOut    uint64 `json:"bytes_out"`   // replies, bulk data included
}

// Stats is a snapshot of a server's counters.
type Stats struct {
	Procs  []ProcStats       `json:"procs"`
	Errors map[string]uint64 `json:"errors"`
}

// Stats returns the counts of every procedure that was called, and of the
// errors by kind.
func (s *Server) Stats() Stats {
	var out Stats
	for i := range s.programs {
		p := &s.programs[i]
		for j := range p.Procs {
			st := &s.stats[i][j]
			if st.calls.Load() == 0 {
				continue
			}
			out.Procs = append(out.Procs, ProcStats{
				Program: p.Name, Version: p.Vers, Procedure: p.Procs[j].Name, Calls: st.calls.Load(),
				Errors: st.errors.Load(), Retransmits: st.retransmits.Load(), Nanoseconds: st.nanos.Load(),
				BytesIn: st.bytesIn.Load(), BytesOut: st.bytesOut.Load(),
			})
		}
	}
	out.Errors = make(map[string]uint64)
	for i := range s.faults {
		out.Errors[faultNames[i]] = s.faults[i].Load()
	}
	if s.gss != nil {
		g := s.gss.Stats()
		out.Errors["gss_refused"], out.Errors["gss_evicted"] = g.Refused, g.Evicted
		out.Errors["gss_unknown_context"], out.Errors["gss_bad_checksum"] = g.Unknown, g.BadMIC
		out.Errors["gss_replayed"] = g.Replayed
	}
	return out
}
