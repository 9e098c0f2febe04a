// Package udp is the link of the software provider: RoCEv2 datagrams through an ordinary UDP
// socket.
//
// Three facts shape it:
//
//   - The ICRC covers the IPv4 identification, so the socket must send a known one. A socket that
//     is bound, not connected, and has DF set (IP_PMTUDISC_PROBE) sends identification 0 on Linux,
//     and segment k of a UDP_SEGMENT send has identification k.
//   - UDP_SEGMENT cuts a buffer into pieces of one size. So FIRST, a run of MIDDLEs with the LAST,
//     and the next packets are separate messages of one sendmmsg.
//   - A receiver with UDP_GRO gets such a run back as one buffer.
//
// A busy loop sleeps in ppoll, other loops as goroutines; type waiter says why.
//
// The package knows nothing of packets but their lengths and their ICRC. Begin reading at Link.Recv
// and Link.Send. rdma/link says which goroutine may call what. A Link has no goroutine of its own.
//
//	l, err := udp.Open(udp.Config{Addr: addr})
//	defer l.Close()
package udp
