// Package endpoint has RDMA connections with blocking calls, which take a context. It is for
// tools and tests. Servers use the loops of the device directly: that saves passing each request
// and completion between goroutines. The package knows the contract rdma only, and no protocol
// above it.
//
// Begin with Listen, Dial and Conn.Do. The example writes to the memory of a peer.
//
// # Memory
//
// The memory of a call belongs to the device until the call returns. If the context ends, the
// call ends the connection, and returns when the device does not use the memory any more.
//
// # Concurrency
//
// The methods of Conn and Listener may be called from any goroutine, except a loop of the device.
// Each call is submitted to the loop of its connection.
package endpoint
