// Package wire encodes and decodes RoCEv2 packets: the base and extended transport headers, the
// opcode table, 24-bit packet sequence numbers, the invariant CRC, and the batches of packets
// that the engines hand to a link.
//
// It knows nothing of connections, of work requests or of sockets. It does no IO.
//
// Begin with headers.go for the layout of a packet and with Packet.Parse for what is checked.
// Every datagram from the network goes through VerifyICRC and Packet.Parse; an engine
// (rdma/rc, rdma/ud) then checks it against its state.
//
// # Concurrency
//
// Packet and Batch are plain values. A Flow has scratch space for the ICRC, so one goroutine
// uses it at a time. Nothing here blocks or, once a Batch is made, allocates.
package wire
