// Package xdr encodes and decodes XDR (RFC 4506) without reflection, without copies of bulk data,
// and without allocations of a length that a peer chose.
//
// A Decoder reads a list of byte segments: the inline part of a message, and bulk data that RDMA
// placed elsewhere. An Encoder appends to one buffer and refers to bulk results, so that a
// transport can move them by RDMA WRITE, by writev, or inline.
//
//	B     | header | count | rest of the results |        what Encoder.B has
//	Refs                   ^ At, Data                     belongs here, with padding
//	wire  | header | count | Data | pad | rest of the results |
//
// The package knows nothing of RPC. Begin reading at Decoder. One goroutine at a time uses a
// Decoder or an Encoder. What a Decoder returns aliases its input.
package xdr
