package rpc

import "time"

// Observer is told of the calls that were served: measurements, a list of slow calls, a
// trace. Its methods are called from many goroutines, on the way of every call, and must
// neither wait nor allocate.
type Observer interface {
	// Observe is called when the reply of a call is ready and before it is sent, on the
	// goroutine that served the call. Calls that were refused before they reached a
	// procedure, and retransmissions that the reply cache answers, are not served. What c has is
	// the call's until Observe returns.
	Observe(c *Call, s Served)
}

// Served says how a call was served.
type Served struct {
	Row         int // its place in Procedures
	Status      Status
	Args, Reply int // bytes of the arguments and of the whole reply, bulk data included
	// Took is the time from Dispatch to the reply, Queued the part of it before a worker took
	// the call; 0 if it did not go to one.
	Took, Queued time.Duration
	// At is when it ended, since the server's start.
	At time.Duration
}

// CallMeta is metadata of a call for the Observer: its subject, and where its time went. The
// transport and the procedure fill it in.
type CallMeta struct {
	// Fetch is the time from the arrival of the message until the transport had all of the call:
	// over RDMA until there was memory, and the client's was read. It is over before Dispatch.
	Fetch time.Duration
	// Store is the time that the procedure spent in a store, where it is measured.
	Store time.Duration
	// Export is the number of the export that the call was about; 0 if it was about none.
	Export uint32
	// Op is the operation that a procedure with several was called for; 0 if it has none.
	Op uint32
	// Outcome is the status in the results; 0 is success in every program.
	Outcome uint32
}

// Load is what the workers do at a moment.
type Load struct {
	Workers, Busy int
	Queued        int    // calls that wait for a worker
	Done          uint64 // calls that workers have served
}

// Load is what the workers do now.
func (s *Server) Load() Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.load
}

// Procedure names a procedure of a server.
type Procedure struct {
	Program string
	Prog    uint32
	Version uint32
	Proc    uint32
	Name    string // empty: there is no such procedure
}

// Procedures lists the procedures of programs in the order of Served.Row.
func Procedures(programs []Program) []Procedure {
	var out []Procedure
	for _, p := range programs {
		for i, x := range p.Procs {
			out = append(out, Procedure{Program: p.Name, Prog: p.Prog, Version: p.Vers, Proc: uint32(i), Name: x.Name})
		}
	}
	return out
}

// Trace has calls keep their arguments for the Observer, or no longer.
func (s *Server) Trace(on bool) { s.tracing.Store(on) }
