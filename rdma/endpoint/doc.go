// Package endpoint is RDMA for ordinary goroutines: connections whose calls
// block and take a context. It is for tools and tests; servers live on the
// loops of the device, where nothing has to be handed from one goroutine to
// another.
//
// # Memory
//
// What a call names belongs to the device until the call returns. A call whose
// context ends therefore ends the connection, and returns when the device has
// let go of the memory.
package endpoint
