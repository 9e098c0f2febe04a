// Package daemon is rstored: it puts the packages together, follows the configuration and the
// control interface while it runs, and takes everything down again in order. It knows nothing of
// packets, messages and files: each of its parts is a package that has its own state and locks.
//
//	state       cmd/internal/state, the state directory, with the lease if nodes share it
//	Service     cmd/internal/service: NFS programs, RPC server, exports, locks
//	devices     cmd/internal/devices: open RDMA devices
//	ports       cmd/internal/ports: what is listened on, with its connections
//	sockets     cmd/internal/sockets: sockets that outlive the process
//	Reconciler  cmd/internal/reconcile: changes exports and ports into what is desired
//	control     cmd/internal/control: the control interface, whose Backend is Daemon
//
// Begin reading at Daemon and at Run in root.go, then start.go. reload.go, stop.go and upgrade.go
// are the other events in its life, handover.go the components of an upgrade, failover.go and
// standby.go the hand-over to another node. status.go, ops.go, counters.go, sample.go and trace.go
// answer questions about the daemon, health.go and watchdog.go check it.
//
// The methods that control.Backend names may be called from any goroutine. The type ownership has
// the order of the locks.
//
//	cfg, err := config.Load(flags)
//	err = daemon.Run(ctx, cfg, load, log, nil) // until ctx ends
package daemon
