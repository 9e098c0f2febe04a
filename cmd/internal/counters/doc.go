// Package counters adds up what listeners, devices and measurements count. It keeps the counts of
// those that are closed, so that no counter ever goes back, and says which counters of a device are
// errors.
//
// Transports is safe for use by several goroutines. The packet loops do not wait for it.
package counters
