// Package rpcrdma carries ONC RPC over RDMA: RPC-over-RDMA version 1 (RFC 8166)
// with the private message of RFC 8797, both sides.
//
// A Listener serves an rpc.Server to the connections of an rdma.Device, a
// Client sends calls over one connection. Neither knows which programs run on
// top: bulk items are what procedures put in with Encoder.Bulk and take out
// with Decoder.Opaque.
//
// # Memory
//
// Messages and bulk data lie in memory that the package registers for local
// use alone. Only a Client opens memory to its peer, one region per chunk of
// one call, closed before the call returns: a server's memory can never be
// reached from outside, because the server moves all bulk data itself.
package rpcrdma
