package ports

import (
	"slices"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/nfs/rquota"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// portmapWorkers is the number of workers for queries. A query never waits.
const portmapWorkers = 1

// filePrograms are the programs that a port over TCP or RDMA may serve. lockPrograms are further
// programs that a port over TCP may serve.
var (
	filePrograms = []portmap.Service{
		{Program: nfs3.Program, Version: nfs3.Version},
		{Program: nfs4.Program, Version: nfs4.Version},
		{Program: nfs3.MountProgram, Version: nfs3.MountVersion},
		{Program: nfs3.ACLProgram, Version: nfs3.ACLVersion},
		{Program: rquota.Program, Version: rquota.Version1},
		{Program: rquota.Program, Version: rquota.Version2},
	}
	lockPrograms = []portmap.Service{
		{Program: nlm.Program, Version: nlm.Version},
		{Program: nlm.StatusProgram, Version: nlm.StatusVersion},
	}
	// udpPrograms are the programs that a port over UDP may serve besides the port mapper.
	udpPrograms = []portmap.Service{
		{Program: nfs3.MountProgram, Version: nfs3.MountVersion},
		{Program: nlm.Program, Version: nlm.Version},
		{Program: nlm.StatusProgram, Version: nlm.StatusVersion},
		{Program: rquota.Program, Version: rquota.Version1},
		{Program: rquota.Program, Version: rquota.Version2},
	}
	portmapPrograms = []portmap.Service{
		{Program: portmap.Program, Version: portmap.Version2},
		{Program: portmap.Program, Version: portmap.Version3},
		{Program: portmap.Program, Version: portmap.Version4},
	}
)

// portmapPrograms answer a query with the programs that are served at that moment. They do not wait
// for mu, which is locked while a port waits for the calls in progress to end: this query may be
// one of these calls.
func (s *Set) portmapPrograms() []rpc.Program {
	return portmap.Programs(func() []portmap.Service {
		if list := s.mapped.Load(); list != nil {
			return *list
		}
		return nil
	})
}

// change locks mu for a change of ports. The port mapper knows the ports when done is called.
func (s *Set) change() (done func()) {
	s.mu.Lock()
	return func() {
		s.publish()
		s.mu.Unlock()
	}
}

// publish updates what the port mapper lists. Call with mu locked.
func (s *Set) publish() {
	var out []portmap.Service
	for _, p := range s.list {
		transport, programs := rpc.TransportTCP, slices.Concat(filePrograms, lockPrograms)
		switch p.Transport {
		case control.TransportTCP:
		case control.TransportRDMA:
			transport, programs = rpc.TransportRDMA, filePrograms
		case control.TransportPortmap:
			programs = portmapPrograms
		case control.TransportUDP:
			transport, programs = rpc.TransportUDP, slices.Concat(portmapPrograms, udpPrograms)
		default:
			continue
		}
		for _, e := range p.ends {
			for _, v := range programs {
				v.Transport, v.Addr = transport, e.addr
				if v.Program == portmap.Program || s.Serves(v.Program, v.Version) {
					out = append(out, v)
				}
			}
		}
	}
	s.mapped.Store(&out)
}

// Serves reports whether the port mapper lists a version of a file program.
func (s *Set) Serves(prog, vers uint32) bool {
	return slices.ContainsFunc(s.Programs, func(p rpc.Program) bool { return p.Prog == prog && p.Vers == vers })
}
