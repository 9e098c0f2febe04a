// Package udp is ONC RPC in datagrams: one call or reply in each (RFC 5531 section 5), without
// record marks. It is for the small programs around NFS that some clients call only by UDP: the
// port mapper, MOUNT, the lock manager and its status monitor, quotas. NFS itself is not served by
// UDP.
//
// The source address of a datagram can be forged. An attacker could make a server that answers
// everybody send traffic to others, and more of it than the attacker sends. These rules prevent
// that:
//
//	datagram                                        answer
//	from a host that Config.Admits refuses          none
//	to a broadcast or multicast address             none
//	no call, or longer than a datagram of RPC       none
//	a procedure that Config.Route refuses           none
//	the reply is at most 3 times as long            the reply
//	the reply is longer                             the reply, within 64 KiB/s of all clients; else SYSTEM_ERR
//
// An attacker can still call in the name of a host that is admitted.
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
