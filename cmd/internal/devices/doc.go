// Package devices has the RDMA devices that the server has open. Ports on the same address and
// provider share a device. Set.Acquire opens a device or takes a share of it, and Device.Release
// gives the share back. The last share closes the device.
//
// A device is either in user space (Device.Soft), or one of the kernel (Device.Kernel). The kernel
// can take its devices away at any time. The package notices that and calls Set.OnRemoval.
//
// The package shows devices, queue pairs, counters and packets to the control interface. It manages
// the partitions of devices in user space. It knows nothing of ports, NFS and RPC.
//
// A Set can be used by several goroutines. Its lock is held while a device is opened or closed.
// Nothing is called back with the lock held.
//
// Begin with set.go.
//
//	set := devices.New(devices.Config{Opener: devices.System(), Settings: settings, Log: log})
//	dev, err := set.Acquire(provider.Choice{Kind: provider.Soft, Addr: addr})
//	defer dev.Release()
package devices
