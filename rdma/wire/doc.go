// Package wire holds the bytes of RoCEv2: base and extended transport headers,
// the opcode table, 24-bit sequence numbers, the invariant CRC, and batches of
// packets on their way to a link. It keeps no connection state and does no IO.
package wire
