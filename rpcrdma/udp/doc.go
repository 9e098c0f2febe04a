// Package udp is ONC RPC in datagrams: one call or reply in each, without record marks (RFC 5531
// section 10). It is for the small programs around NFS that some clients only ask by UDP: the port
// mapper, MOUNT, the lock manager and its status monitor, quotas. NFS itself is not for it.
//
// The source address of a datagram can be false. A server that answers everybody would let an
// attacker direct traffic at others, and more than he sends. These rules are against that:
//
//	datagram                                        answer
//	from a host that Config.Admits refuses          none
//	to a broadcast or multicast address             none
//	no call, or longer than a datagram of RPC       none
//	a procedure that Config.Route refuses           none
//	the reply is at most 3 times as long            the reply
//	the reply is longer                             the reply, within 64 KiB/s of all clients; else SYSTEM_ERR
//
// They do not keep an attacker from calling in the name of a host that is admitted.
//
// Three times is what RFC 9000 section 8.1 allows to a server of QUIC before it knows the client's
// address.
//
// The package knows nothing of what the programs do. Begin reading at Listener.serve. One goroutine
// reads the socket of a Listener; replies are sent by the goroutines that made them. The methods of
// Listener and Client may be called from any goroutine; a Client makes one call at a time.
//
//	l, err := udp.Config{Route: route, Admits: admits}.Serve(conn)
//	c, err := udp.Dial(netip.MustParseAddrPort("192.0.2.1:111"))
//	err = c.Call(ctx, &rpc.Request{Prog: portmap.Program, Vers: 2, Proc: portmap.ProcNull})
package udp
