// Package fault makes a file store fail, for tests of the packages that use a store: errors,
// latency, short reads and writes, and reads that would block. A seed decides the faults. The
// package knows nothing of the store that it wraps. Begin reading at Rule. Its methods may be
// called from any goroutine.
//
//	fs := fault.New(store, seed, fault.Rule{Op: fault.ReadAt, Err: blockstore.ErrIO})
package fault
