//go:build linux

// Package netns gives a test network namespaces of its own, joined by virtual Ethernet links. They
// have no names, and end with the process. It knows nothing of RDMA. Begin reading at Pair. A Space
// has a thread that is in the namespace; Do runs one function at a time on it, from any goroutine.
//
//	a, b := netns.Pair(t, 1500, []string{"10.0.0.1/24"}, []string{"10.0.0.2/24"})
//	a.Do(func() { l, err = net.Listen("tcp", "10.0.0.1:2049") })
package netns
