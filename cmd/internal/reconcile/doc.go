// Package reconcile brings what is served in line with what is desired (cmd/internal/desired). The
// start, a reload, a change of the host's mounts, an applied file and every change of exports at
// run time end in ApplyExports and ApplyPorts. Plan, drift and the history are views of the same
// states.
//
// The package opens and closes stores and ports by their sets. It knows no device, no transport and
// no protocol. Changes are serialised by Config.Mu, which the daemon shares: an upgrade excludes
// changes.
//
// Begin with reconcile.go; apply.go has rstorectl apply.
//
// Methods whose comments say so are called with Mu locked. The others lock it themselves, by
// MayChange, and may be called from any goroutine.
//
//	r := reconcile.New(reconcile.Config{State: st, Service: svc, Ports: ports, Mu: &mu})
//	done, err := r.Apply(control.Apply{File: file, Comment: "new disk"}, peer)
package reconcile
