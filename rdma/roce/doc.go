// Package roce is the software RDMA device: reliable connections of RoCEv2
// over UDP sockets, without a module, a special card or privileges.
//
// A Device has one or more shards. A shard is one goroutine with a link of its
// own that runs the engines of the queue pairs it owns (rdma/rc), and, in the
// first shard, the connection manager (rdma/cm):
//
//	receive a batch -> functions submitted by others
//	-> packets: check, find the queue pair, run its engine
//	-> timers -> connection events
//	-> completions, and what the users make of them -> one batch out
//
// It sleeps in one place, the receive. A queue pair stays on its shard for
// life, so the packet path takes no locks; only the table of memory regions is
// shared, and is read without locks.
//
// With several shards the kernel chooses the socket by the low bits of the
// destination queue pair number, so the number decides the shard.
package roce
