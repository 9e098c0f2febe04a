// Package rdma is the verbs contract of rstored: memory regions and windows, queue pairs, work
// requests, completions, connections, and the interfaces that a provider of RDMA devices
// implements. It also has the memory for registered regions (Arena, DMABuf). It knows no provider
// and no protocol, and does no network IO.
//
// The providers are rdma/roce, a RoCEv2 stack in user space, and rdma/verbs, kernel devices by
// rdma-core. Code above the contract, such as rpcrdma, imports package rdma only.
//
// # Where to begin
//
// With Device, Loop and QP; the example shows them together: open a device, create a PD, a CQ and a
// region, dial, post and poll. Package rdma/endpoint has the same with blocking calls.
//
// # Concurrency
//
// Every QP, CQ and connection belongs to one Loop for life. Their methods are called on that loop
// only: from a callback of the device, or from a function given to Loop.Submit. So the packet path
// takes no lock. Methods of Device, PD, MR and MW may be called from any goroutine, except where
// they say otherwise. An Arena has a mutex of its own.
//
// # Ownership
//
// The memory of a work request belongs to the device from PostSend or PostRecv to the completion
// that covers the request: its own, or that of a later signaled request of the same queue.
// Registered memory must stay mapped until its region is closed.
//
// # Optional interfaces
//
// Users test for these by a type assertion:
//
//	Limited            of a Device: its limits and the features that it lacks (LimitsOf)
//	VolatileSender     of a Device: it sends memory that others change
//	Restorer           of a Device: it restores connections of another process
//	Quiescer           of a Conn: it can be handed over
//	Annotated          of a Conn or ConnRequest: the user adds to its post-mortem
//	Yielder            of a Loop: it can yield to other goroutines
//	Reregisterer       of an MR: its memory can be replaced
//	DMABufRegisterer   of a PD: it registers memory of other devices
//
// # Complete verbs
//
// rstored itself does not use all of the contract: fast registration (OpReg), SQD, CQ.Resize, and
// service ID resolution for datagrams (ListenUD, ResolveUD) are for other users of the library.
// Every provider is tested for them by rdma/rdmatest.
package rdma
