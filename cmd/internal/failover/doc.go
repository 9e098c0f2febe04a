// Package failover passes the state of clients from the node that serves to a standby. Both nodes
// share the storage:
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
// The messages and the parts are those of an upgrade (cmd/internal/upgrade). The lease decides who
// serves (cmd/internal/lease): the standby uses the parts only if it has claimed the lease over a
// release with their token. Until that release the serving node can continue. From then on it never
// serves again. A node can also claim the lease without such a release, because a node or the
// connection was lost. Then it drops the parts and has a grace period.
//
// The connection is TLS 1.3. Both ends derive the same key from the secret of the file handles, and
// each checks that the other one has the key. So any host that can read the state directory can
// take over.
//
// The package knows nothing of what the parts contain, and nothing of stores and ports. Begin
// reading at Listener.receive and at Dial; register.go has the list of standbys, tls.go the key.
//
// A Listener has a goroutine for each connection, and retains the last state that arrived. Its
// methods, and Dial, may be called from any goroutine.
//
//	l, err := failover.Listen(failover.Config{Dir: dir, Node: "b", Address: "b:2052", Secret: key})
//	from := l.Close(token) // the parts for that token, or nil
//
//	standbys, err := failover.List(dir)
//	successor, err := failover.Dial(ctx, standbys[0], key)
package failover
