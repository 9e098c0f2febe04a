// Package sysfs reads which RDMA devices the host's kernel has: what "rdma dev", "rdma link" and
// ibv_devinfo show. It opens no device, knows nothing of providers, and needs neither C nor
// privileges. Begin reading at List. Its functions may be called from any goroutine; each call
// reads the files again.
//
//	devices, err := sysfs.Host()
package sysfs
