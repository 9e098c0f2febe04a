// Package control is the daemon's control interface: JSON over HTTP on a Unix socket, for rstorectl
// and for scripts (curl --unix-socket). The credentials that the kernel reports for the peer decide
// who may use it. Other hosts use HTTPS; there the certificates of clients decide.
//
//	GET    /v1/status
//	GET    /v1/exports            POST /v1/exports (config.Export)
//	GET    /v1/export?name=       PUT /v1/export?name= (ExportPatch)   DELETE /v1/export?name=
//	DELETE /v1/export-changes?removed=only    ends run-time changes of exports: all, or removals only
//	GET    /v1/ports              POST /v1/ports (PortSpec)            DELETE /v1/port?transport=&listen=
//	GET    /v1/nfs4-clients                                            DELETE /v1/nfs4-client?id=
//	GET    /v1/delegations
//	GET    /v1/nfs4-sessions      GET /v1/locks                        GET /v1/grace  DELETE /v1/grace
//	GET    /v1/pkeys              POST /v1/pkeys (PKey)                DELETE /v1/pkey?pkey=
//	GET    /v1/slow               the slowest calls of the last minutes
//	GET    /v1/trace?client=      calls as they are answered, a JSON object in each line, until the client hangs up
//	GET    /v1/ops                PUT /v1/ops?pprof=on|off
//	GET    /v1/clients
//	GET    /v1/qps
//	GET    /v1/stats
//	GET    /v1/sample             counters of calls, clients and queue pairs at one time, for 'rstorectl top'
//	GET    /v1/devices
//	GET    /v1/post-mortems       RDMA connections that ended badly, the latest first
//	GET    /v1/denials            clients that the rules of exports have denied, and why, the latest first
//	GET    /v1/metrics            as Prometheus reads them
//	GET    /v1/log                the last lines of the log, JSON
//	GET    /v1/goroutines         what the goroutines do, text
//	GET    /v1/profile?seconds=   a CPU profile
//	GET    /v1/config             the configuration in force, YAML
//	PUT    /v1/log-level?level=
//	POST   /v1/plan (File)        what a file of exports and ports would change, and which clients that would disrupt
//	POST   /v1/apply (Apply)      the same, done
//	GET    /v1/history            GET /v1/history-entry?number=        the files that were applied
//	GET    /v1/drift              in what the running state differs from what is written
//	POST   /v1/rescan             looks for mounts and snapshots of the host now
//	POST   /v1/reload
//	POST   /v1/upgrade?executable=
//	POST   /v1/idmap/flush        users, groups and hosts are looked up again
//	GET    /v1/capture?device=&peer=&qpn=&packets=&snap=    a pcap stream, until the client hangs up
//
// Errors are {"error": "..."} with a fitting HTTP status.
//
// The package knows no part of the daemon: Backend is what it calls. Begin reading at Backend in
// api.go, then routes.go, which has a row for each request, and client.go, the other side.
//
// Requests run on several goroutines, and so do the methods of a Backend. Server and Dialer may be
// used from any goroutine.
//
//	s := control.NewServer(backend, access, log, audit)
//	err := s.Serve(listener)
//
//	d := control.Dial("/run/rstored/control.sock")
//	status, err := d.Status(ctx)
package control
