package rpc

import "time"

// Observer observes the calls that were served, for measurements, a list of slow calls, or a trace.
// Its methods are called from many goroutines, for every call, and must neither wait nor allocate.
type Observer interface {
	// Observe is called when the reply of a call is ready and before it is sent, on the goroutine
	// that served the call. It is not called for calls that were refused before they reached a
	// procedure, and for retransmissions that the reply cache answers. c must not be used after
	// Observe.
	Observe(c *Call, s Served)
}

// Served describes how a call was served.
type Served struct {
	Row         int // its index in Procedures
	Status      Status
	Args, Reply int // bytes of the arguments and of the whole reply, bulk data included
	// Took is the time from Dispatch to the reply. Queued is the part of it before a worker began;
	// 0 if no worker served the call.
	Took, Queued time.Duration
	// At is when it ended, since the server's start.
	At time.Duration
}

// CallMeta is metadata of a call for the Observer. The transport and the procedure fill it in.
type CallMeta struct {
	// Fetch is the time from the arrival of the message until Dispatch. Over RDMA the transport
	// waits for memory and reads the Read chunks in this time.
	Fetch time.Duration
	// Store is the time that the procedure spent in a store, if it is measured.
	Store time.Duration
	// Export is the number of the export of the call; 0 if it has none.
	Export uint32
	// Op is the operation of a call of a procedure with several; 0 otherwise.
	Op uint32
	// Outcome is the status in the results; 0 is success in every program.
	Outcome uint32
}

// Load describes the workers at a moment.
type Load struct {
	Workers, Busy int
	Queued        int    // calls that wait for a worker
	Done          uint64 // calls that workers have served
}

// Load returns the current load.
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

// Trace sets whether calls retain their arguments for the Observer.
func (s *Server) Trace(on bool) { s.tracing.Store(on) }
