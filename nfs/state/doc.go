// Package state is the state that a server of NFS version 4 has of its clients: client records,
// sessions with their slots in both directions, opens with share reservations, delegations, and the
// stateids of these and of byte-range locks (RFC 8881 sections 2.10, 8, 9 and 10.4). The locks
// themselves are in package lock, together with those of version 3. Callers pass the time. The
// package does no IO itself, but two callees do under its locks: lock.Table asks the store for
// locks of the host (Client.mu), and Journal writes to disk (grace.mu). It knows nothing
// of COMPOUND, XDR, exports and transports.
//
// Begin reading at Server and Client, then at Server.Sequence in slot.go and Client.Open in
// open.go.
//
// Methods may be called from any goroutine. The lock order is
//
//	seqOwner.turn                      one request of an owner of version 4.0
//	Server.mu                          clients and sessions are made and ended
//	Client.mu                          opens, locks and delegations of the client
//	fileShard.mu, sessionShard.mu, Session.mu
//	the locks of lock.Table
//	grace.frozen, grace.mu             the list of clients that may reclaim; without Client.mu
//	Backchannel.mu, Path.mu, memory.mu, notices.mu
//
// No goroutine locks two clients, or two shards, at a time. A request that finds a conflict with
// another client therefore releases its locks, ends that client or revokes its delegation, and
// begins again (Client.Open, Server.Denied, Server.Free). Callbacks of Config run with locks held
// where their comments say so.
//
// SEQUENCE takes the lock of a shard of sessions and that of its session. An operation on an open
// takes the lock of its client and, where share reservations count, that of a shard of files.
//
// The states of a client record, and the events that lead to them:
//
//	EXCHANGE_ID, SETCLIENTID      unconfirmed; ends after a lease, or for want of room
//	first CREATE_SESSION,
//	SETCLIENTID_CONFIRM           confirmed; the previous record of the owner string ends
//	first OPEN                    listed: the journal names the client, so that it may reclaim
//	RECLAIM_COMPLETE              version 4.1: the client may open; its reclaims are over
//	a lease without a request     courtesy: stays until another client wants the state or room
//	DESTROY_CLIENTID, a restart,
//	a conflict after the lease    ended: all state goes at once
//
// A client of version 4.0 has owners with sequence numbers and their last answers, and one path for
// callbacks, instead of sessions (RFC 7530 sections 9 and 10.2).
//
// An open takes about 500 bytes, a lock stateid with its lock 600, a client with a session 1000
// (TestMillion), and each slot that was used its cached reply.
//
// The server is courteous: a client whose lease has run out keeps its state until another client
// wants a part of it, or until there is no room. Then all of its state ends at once, sessions
// included.
package state
