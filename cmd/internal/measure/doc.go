// Package measure has the measuring points of the daemon's hot path: what calls cost, by operation,
// export, client and transport. Recording takes no lock and no memory. Reading adds up what was
// recorded and can be slightly behind. The package knows neither metrics nor the control interface,
// which read it.
//
// Begin reading at Recorder.Observe in calls.go, which the RPC server calls for each served call.
// Store measures the calls of a store, slow.go retains the slowest calls, users.go who has used an
// export. All methods may be called from any goroutine.
//
//	rec := measure.NewRecorder(measure.Config{Programs: programs, Clients: 1000})
//	srv := rpc.NewServer(rpc.ServerConfig{Programs: programs, Observer: rec})
//	sums := rec.Operations()
package measure
