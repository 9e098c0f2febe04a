// Package counters sums the counters of listeners, devices and measurements, the closed ones
// included, so that no sum ever decreases. It also says which counters of a device are errors.
//
// Every key of DeviceFaults and KernelFaults becomes a label of the metric rstored_errors_total, or
// of rstored_events_total if cmd/internal/daemon/counters.go lists it among its events.
//
// Transports is safe for use by several goroutines. The packet loops do not wait for it.
package counters
