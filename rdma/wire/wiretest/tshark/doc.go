// Package tshark has Wireshark's dissectors, an implementation that shares nothing with ours, read
// captures of RPC-over-RDMA, and reports what they find wrong. It knows nothing of the programs
// that made the captures.
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
