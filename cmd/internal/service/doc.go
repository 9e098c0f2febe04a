// Package service has the NFS service: the RPC programs of all versions of NFS and of what belongs
// to them, the RPC server that runs their calls, and what the programs share: export table, lock
// table, names of users and hosts, and the recorder of calls.
//
// New makes a Service that serves nothing yet. Transports pass calls to RPC, and exports come with
// ExportSet.Apply. An upgrade hands over what clients know of (handover.go).
//
// The package knows no transport and no port, apart from the calls that it makes to clients by TCP.
// The methods of a Service may be called by several goroutines. Begin with service.go.
//
//	s, err := service.New(service.Config{Settings: settings, State: st, Files: files, Log: log})
//	l := tcp.Serve(listener, s.RPC)
//	defer s.Close()
package service
