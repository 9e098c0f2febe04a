// Package rdmadev makes and removes soft RDMA devices of the host's kernel, by netlink. It knows
// nothing of how devices are used: rdma/sysfs finds them, rdma/verbs opens them. Begin reading at
// Add. The functions have no state and may be called from any goroutine.
//
//	err := rdmadev.Add(rdmadev.RXE, "eth0", "rxe0")
//	defer rdmadev.Remove("rxe0")
package rdmadev
