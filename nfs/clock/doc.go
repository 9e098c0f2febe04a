// Package clock is the time by which leases, recalls and limits go: it runs while the host is
// suspended, and nobody sets it. It knows nothing of who uses it. Begin reading at Now. Both
// functions may be called from any goroutine.
//
//	ends := clock.Now().Add(90 * time.Second)
//	time.Sleep(clock.Until(ends))
package clock
