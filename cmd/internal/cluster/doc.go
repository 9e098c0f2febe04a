// Package cluster makes several servers in front of one CephFS a cluster: they share the key and the
// numbers in file handles, the exports that were changed at run time, the records of clients that may
// reclaim, and one grace period.
//
// All of it is in one pool of RADOS, in three kinds of objects:
//
//	cluster    state        the nodes and the grace period (grace.State), as JSON
//	           key          the secret of the file handles
//	           number/E     the number of the export E; next is the next free one
//	           exports      exports that were added, changed and removed at run time
//	beats      NODE         a count that the node changes all the time
//	node-NODE  c/EPOCH/O    the client with the owner string O, in hexadecimal, may reclaim
//	           h/EPOCH/H    the host H may reclaim its locks of version 3
//	           s/BOOT/S     the session S of that process at the MDS, and its filesystem
//
// Begin reading at Open and Cluster.look. cmd/internal/grace has the rules. The package knows nothing
// of stores and of NFS: what a step needs of them is in Config and Clients.
//
// The methods of a Cluster may be called from any goroutine. Those that change something return when
// the change is in the cluster.
//
//	c, err := cluster.Open(ctx, cluster.Config{Store: store, Node: "a", ...})
//	c.Attach(clients)
package cluster
