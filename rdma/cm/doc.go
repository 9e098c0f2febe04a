// Package cm is the communication manager of InfiniBand (IBTA chapter 12) as RDMA-CM uses it over
// RoCEv2: the management datagrams, and a state machine for one address. It does no IO and reads no
// clock. The owner of a Machine makes the queue pairs. Events of the machine report what peers
// sent, and when a queue pair is needed. The package knows nothing of queue pairs but their
// numbers, and nothing of sockets.
//
// Begin reading at Machine, then at receive.go; messages.go has the layout of each message.
//
// # A connection
//
//	active side                                 passive side
//	Connect   REQSent      ---- REQ ---->       REQReceived    ConnRequest
//	Reply     REPReceived  <--- REP -----       REPSent        Accept
//	Confirm   Established  ---- RTU ---->       Established    ConnEstablished
//	          ...
//	Disconnect  DREQSent   ---- DREQ --->       TimeWait       Disconnected
//	          TimeWait     <--- DREP ----
//	Gone                                                       Gone
//
// Either side can end an attempt by a REJ: Rejected. An MRA asks the peer to wait longer. The
// sender of a REQ, REP, DREQ or SIDR REQ repeats it until it is answered or its time is over:
// Unreachable. In TimeWait the IDs and the queue pair number of a connection are not used again,
// because packets of it may still be on their way.
//
// A request for a datagram service (SIDR) has two messages:
//
//	Resolve   SIDRREQSent  -- SIDR REQ -->      SIDRREQReceived  ResolveRequest
//	Resolved               <-- SIDR REP --      SIDRAnswered     Answer
//
// # What a peer may do
//
// The machine checks every field of a received message against its own state. A datagram can be
// lost, repeated, late or forged. A forged source address can be that of a host that exists. So a
// message counts for a connection only if both communication IDs and the address fit, and
// communication IDs are random. Only a REQ needs no earlier message: Config says how many of them
// take which resources.
//
// # Repetitions
//
//	message     repeated after             until                        at most for
//	REQ         0.2 s, doubling to 4 s     REP or REJ; an MRA delays    ConnectLimit (8 s)
//	REP         likewise                   RTU, traffic, DREQ or REJ    30 s
//	DREQ        likewise                   DREP, or a crossing DREQ     4 s
//	SIDR REQ    likewise                   SIDR REP                     ConnectLimit
//
// No timer repeats RTU, DREP, REJ, MRA and SIDR REP. The machine sends them again when the peer
// repeats the message that they answer.
//
// # Bounds
//
//	resource                          bound             beyond it
//	connections being set up          PendingMax        a half-open one is replaced, or the REQ waits
//	of these asked for by one host    PeerPendingMax    likewise, among those of this host
//	REQs that wait for a place        PeerPendingMax    a random one is dropped
//	REQs that wait for Listen         PeerPendingMax    dropped
//	SIDR REQs of peers                PendingMax        the oldest answer is deleted, or status 3
//	connections in TimeWait           TimeWaitMax       one leaves early
//	datagrams for Transmit            512               dropped, as a network drops them
//
// # Concurrency
//
// A Machine is not safe for concurrent use. It belongs to one loop, and takes no locks.
package cm
