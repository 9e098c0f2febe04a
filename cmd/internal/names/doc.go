// Package names asks the host who users, groups and clients are: the files and resolver of the Go
// library first, and getent(1) for what else nsswitch.conf(5) names. It provides the sources of
// nfs/idmap and nfs/hosts, which cache the answers. A question has a time limit, as a directory
// service may not answer. The package knows nothing of NFS and of exports.
//
// Begin reading at NewIDMap and NewHosts. The sources have no state, so questions may be asked from
// any goroutine; each waits on the goroutine that asks.
//
//	ids := names.NewIDMap(&cfg.IDMap)
//	uid, ok := ids.Parse([]byte("alice@example.org"), false)
package names
