// Package ops serves metrics for Prometheus, health checks, profiles on demand, and a page that
// shows them live, by HTTP. It changes nothing: changes need the control socket, where the kernel
// reports the credentials of the peer. It knows no part of the daemon: functions of Config, State
// and Source return what it shows.
//
// Begin reading at Handler. catalog.go has a row for each metric, collect.go its value, feed.go the
// samples for the page, remarks.go the sentences about what is not well. CONTRIBUTING.md says how
// to add a metric. Requests run on several goroutines.
//
//	s := ops.Serve(listener, ops.Config{Gatherer: registry, Live: live, Ready: ready, Logger: log})
//	defer s.Close(ctx)
package ops
