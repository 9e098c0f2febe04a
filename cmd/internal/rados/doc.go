// Package rados keeps small values in RADOS, the object store of a Ceph cluster: the key and value
// pairs (omap) of an object, which change only if others still have the value that the caller has
// read.
//
// The program is built with cgo and the tag cephfs. librados is opened at run time, by Open, and
// needs no headers. A program without the tag returns ErrNotBuilt.
//
// Begin reading at Client.Change. The package knows nothing of what the values mean. The methods of
// a Client may be called from any goroutine. Each waits for the cluster, on a thread of its own,
// and for Options.Timeout at most.
//
//	c, err := rados.Open(rados.Options{Pool: "rstored", Namespace: "nfs"})
//	old, err := c.Pairs("cluster", "")
//	err = c.Change("cluster", rados.Change{Is: rados.Pairs{"state": old["state"]}, Set: rados.Pairs{"state": next}})
//	if errors.Is(err, rados.ErrChanged) {
//		// somebody else was faster: read again
//	}
package rados
