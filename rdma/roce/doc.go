// Package roce is the software RDMA device: reliable connections and datagrams of RoCEv2 over UDP
// sockets, without a module, a special card or privileges. It implements rdma.Device, and knows no
// protocol above it.
//
// A Device has one or more shards. A shard is one goroutine with a link of its own. It runs the
// engines of the queue pairs that it owns (rdma/rc, rdma/ud), and the first shard also runs the
// connection manager (rdma/cm):
//
//	receive a batch -> functions submitted by others
//	-> packets: check, find the queue pair, run its engine
//	-> timers -> connection events
//	-> completions, and what the users make of them -> one batch out
//
// It sleeps in one place, the receive. A queue pair stays on its shard for life, so the packet path
// takes no locks. Only the table of memory regions is shared. Packets read it without locks; only
// OpBindMW and OpReg lock it.
//
// Lock order: Device.mu, then source.mu; table.mu, then source.mu. Device.mu and table.mu are never
// held together.
//
// With several shards the kernel chooses the socket by the low bits of the destination queue pair
// number, so the number decides the shard.
//
// Begin reading at shard.run in shard.go, then at packet.go. memory.go and region.go have the
// regions that peers can reach, listen.go and conn.go the connections, handover.go the device for
// the successor in an upgrade.
//
//	d, err := roce.Open(roce.Config{Addr: addr})
//	defer d.Close()
package roce
