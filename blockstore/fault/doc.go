// Package fault makes a file store misbehave on purpose: errors, latency, short reads and writes,
// and reads that would block, from a seed, for tests of what uses a store. It knows nothing of the
// store that it wraps. Begin reading at Rule. Its methods may be called from any goroutine.
//
//	fs := fault.New(store, seed, fault.Rule{Op: fault.ReadAt, Err: blockstore.ErrIO})
package fault
