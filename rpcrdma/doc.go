// Package rpcrdma carries ONC RPC over RDMA: both sides of RPC-over-RDMA version 1 (RFC 8166), with
// the private message of RFC 8797 and calls from the server to the client (RFC 8167).
//
// A Listener serves an rpc.Server to the connections of an rdma.Device. A Client sends calls over
// one connection. Package rpcrdma knows the contract rdma, and no provider of devices. It knows
// nothing of the RPC programs: bulk data is what procedures add by Encoder.Bulk and read by
// Decoder.Opaque.
//
// # Where to begin
//
// header.go has the messages. On the server a message arrives in slot.receive; slot.plan, reserve
// and nextRead fetch its Read chunks, dispatch calls the handler, and answer (reply.go) sends the
// results. memory.go and allocate.go have the memory of all connections. On the client exchange.go
// has the whole way of a call, and clientreceive.go what the server sends.
//
// # A READ and a WRITE
//
//	client                                               server
//	call READ, with a Write chunk
//	  SEND (RDMA_MSG)           ------------------>  slot.receive, plan: no Read chunks
//	                                                 reserve: memory for the result
//	                                                 dispatch: the handler reads the file into it
//	                            <------------------  RDMA WRITE into the chunk   \ one list of
//	  reply                     <------------------  SEND, invalidates R_Key     / work requests
//	  closes its memory, returns
//	  ACK                       ------------------>  completion: memory is free, buffer is posted
//
//	call WRITE, with a Read chunk
//	  SEND (RDMA_MSG)           ------------------>  slot.receive, plan, reserve
//	                            <------------------  RDMA READs, up to mayRead
//	  the data                  ------------------>  fetched, assemble
//	                                                 dispatch: the handler writes the file
//	  reply                     <------------------  SEND
//
// # Memory
//
// Messages and bulk data lie in memory that is registered for local access only. The server moves
// all bulk data itself, by RDMA READ and RDMA WRITE, so no peer can ever reach its memory. Only a
// Client opens memory to its peer: one region or window for each chunk of a call, closed before the
// call returns.
//
// Everything that a peer can increase has a bound: calls by credits and posted receives, bulk
// memory by Config.ConnMemory and Config.Memory, headers by the limits of header.go.
//
// # Credits
//
// A client begins with one credit. Each reply has the grant: the number of calls that the client
// may have in flight (RFC 8166 section 3.3.1). The reply to a call gives its credit back at once. A
// call that the client has abandoned has its credit until the late reply arrives.
//
// The server has a receive posted for each credit, and up to 16 more (receives in memory.go): the
// client can send its next call before the SEND of the reply has completed, which is when the
// server posts the receive of the call again. credits.go grows the grant of a client that uses it.
// throttle.go and memory.go lower it for limits of exports and when memory is short.
//
// # What ends a connection
//
// A server ends a connection for one of these reasons, and counts it (counters.go):
//
//   - the client disconnects, or a work request fails: retries are used up, or the client refuses
//     an RDMA READ or WRITE (serverConn.failed in pump.go);
//   - the client answers no probe (probe.go), or takes no reply and serves no RDMA READ for
//     Config.SlowTimeout (throttle.go);
//   - a reply cannot be prepared or posted (reply.go), or the client answers calls that it has not
//     received yet (backward.go);
//   - the listener closes, or the connection cannot be handed over in an upgrade (handover.go).
//
// A header that is malformed or beyond the limits ends no connection: it is answered by RDMA_ERROR,
// or not at all if it is too short (slot.go).
//
// # Concurrency
//
// A connection belongs to one loop of its device, and its code runs there without locks. A handler
// may serve a call on another goroutine; it passes the call back by Call.Reply. What connections
// share is in Memory, which has a mutex. Methods of Listener and Client may be called from any
// goroutine except a loop.
//
// # Optional interfaces
//
// A Handler may be a Pacer and an io.Closer. A Client is an rpc.Registrar and an
// rpc.DMABufRegistrar. Of the device the package uses, if they are implemented: rdma.Limited,
// rdma.VolatileSender, rdma.Reregisterer, rdma.DMABufRegisterer, rdma.Yielder, rdma.Annotated,
// rdma.Quiescer and rdma.Restorer.
package rpcrdma
