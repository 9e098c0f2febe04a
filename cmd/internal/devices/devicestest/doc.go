// Package devicestest has a host whose kernel has RDMA devices that come and go, for tests. The
// devices are those of rdma/roce behind the interface of a kernel's device, so it needs no kernel
// module and knows nothing of drivers. Begin reading at Kernel. Its methods may be called from any
// goroutine.
//
//	k := devicestest.NewKernel()
//	k.Add("rxe0", "127.0.0.1")
//	set := devices.New(devices.Config{Opener: k.Opener(), Settings: settings})
//	k.Remove("rxe0") // the set reports the removal to its user
package devicestest
