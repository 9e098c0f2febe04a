// Package counters sums the counters of listeners, devices and measurements, the closed ones
// included, so that no sum ever decreases. It also says which counters of a device are errors. It
// knows nothing of metrics, which read the sums.
//
// Begin reading at Transports.Sum, and for a new kind of error at faults.go. Every key of
// DeviceFaults and KernelFaults becomes a label of the metric rstored_errors_total, or of
// rstored_events_total if cmd/internal/daemon/counters.go lists it among its events.
//
// The methods of Transports may be called from any goroutine. The packet loops do not wait for it.
//
//	var all counters.Transports
//	all.AddTCP(listener)
//	defer all.DropTCP(listener) // its counts stay in the sum
//	sum := all.Sum()
package counters
