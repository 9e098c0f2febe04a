// Package tshark runs Wireshark's dissectors on captures of RPC-over-RDMA, and reports what they
// find wrong. The dissectors are an implementation that shares nothing with ours. The package knows
// nothing of the programs that made the captures.
//
// Dissectors have bugs of their own, and complain about packets that are right. So the complaints
// are compared with those about the Linux kernel's own packets. A complaint that tshark also makes
// about the kernel's packets is ignored.
//
// Begin reading at Kinds. Each call runs tshark(1) and waits for it, from any goroutine.
//
//	kinds, err := tshark.Kinds(ctx, "out.pcap")
//	wrong := tshark.Beyond(kinds) // what tshark does not say of the kernel's packets
package tshark
