// Package verbs is the provider of RDMA devices that the kernel has drivers for: hardware of any
// make, rdma_rxe and siw, through rdma-core's libibverbs and librdmacm.
//
// It needs cgo and the build tag rdmacore. The libraries are opened when the first device is, so
// that a program starts where they are missing. Without the tag the package has the same names, and
// Open says that the provider is not there.
//
// A loop is a goroutine. It owns a completion channel and a channel of the connection manager, and
// sleeps on both in the Go runtime's poller. Everything that happens to a queue pair or an
// rdma_cm_id happens on its loop, except that the kernel's asynchronous events are read by one
// goroutine for each device, which hands them on. Work requests cross into C as one array for each
// PostSend or PostRecv, and completions come back as one array for each look at a queue.
//
// Programs must not fork after Open other than by os/exec, whose children do not return to memory
// that the device has pinned.
package verbs
