// Package failover passes the state of clients from the node that serves to a standby, on storage that both
// share:
//
//	serving node                     standby
//	Dial                             Listener, while it waits for the lease
//	hello                            prepared
//	freezes; parts, restore          restored: it has every part, in memory
//	closes its stores
//	releases the lease to the standby, with the token of hello
//	go                               claims the lease, restores, serves
//	                                 serving
//
// The words and the parts are those of an upgrade (cmd/internal/upgrade). The lease decides who
// serves (cmd/internal/lease): the standby uses the parts only if it has claimed the lease over a
// release with their token. Until that release the serving node can continue; from then on it never
// serves again. Whoever claims the lease otherwise, because a node or the connection was lost, drops
// the parts and has a grace period.
//
// The connection is TLS 1.3. Both ends have the same key, made of the secret of the file handles,
// and each checks that the other one has it: who can read the state directory can take over.
package failover
