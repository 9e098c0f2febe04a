// Package verbs is the provider of RDMA devices that the kernel has drivers for: hardware of any
// make, rdma_rxe and siw, through rdma-core's libibverbs and librdmacm.
//
// It needs cgo and the build tag rdmacore. The libraries are opened together with the first device,
// so that a program starts where they are missing. Without the tag the package has the same names,
// and Open returns ErrNotBuilt.
//
// The package knows nothing of packets and of RPC. Begin reading at Open in device.go, then at
// loop.go and post.go; shim.c is all of the C.
//
// # Loops
//
// A loop is a goroutine. It owns a completion channel and an event channel of the connection
// manager, and sleeps on both in the Go runtime's poller. Everything that happens to a queue pair
// or an rdma_cm_id happens on its loop. One more goroutine for each device reads the kernel's
// asynchronous events and submits them to the loops. A turn of a loop:
//
//	submitted functions -> events of the connection manager -> completions -> timers
//	-> callbacks, in this order: connections and queue pairs, completion queues, disconnects
//
// # The border to C
//
// Work requests cross into C as one array for each PostSend or PostRecv, and completions come
// back as one array for each poll. The arrays have integers only; addresses of memory are
// integers too, so cgo has no pointers to check. Objects of the library refer to Go objects by
// integers (cookies), not by pointers.
//
// # Ownership
//
// The device uses the memory of a request until its completion. Memory of a region is pinned for
// the Go runtime, and locked by the kernel, from Register to Close. The kernel refuses to destroy
// an object in use, so objects of the library are destroyed in this order:
//
//	memory windows that are bound to a queue pair
//	the queue pair, then its rdma_cm_id
//	shared receive queues, completion queues
//	other windows, regions, protection domains
//	the context
//
// # Locks
//
// The path of requests and completions takes no lock, apart from those of windows and address
// handles.
//
// Lock order: mr.mu, Device.mu, mw.mu, windows.mu; handles.mu, then paths.mu. libraries is taken
// without any of them, and not by the goroutine of events, because hca.end waits for that goroutine
// with libraries locked.
//
// # Peers
//
// The device checks keys, bounds and access of a peer's request, and ends the queue pair if it
// refuses one. Private data of the connection manager is copied out of the event and bounded by its
// type. The kernel queues at most backlog requests for a listener.
//
// Programs must not fork after Open other than by os/exec: the memory that the device has pinned is
// not in the child.
package verbs
