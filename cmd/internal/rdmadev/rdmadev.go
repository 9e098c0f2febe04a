package rdmadev

import (
	"errors"
	"fmt"
	"os"
	"path"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma/sysfs"
)

// Kinds of soft devices.
const (
	RXE = "rxe" // RoCEv2
	SIW = "siw" // iWARP, over TCP
)

// Add makes a soft device of a kind on a network interface. It needs CAP_NET_ADMIN. The kernel
// loads the module of the driver.
func Add(kind, netdev, name string) error {
	err := netlink.RdmaLinkAdd(name, kind, netdev)
	_, statErr := os.Stat(path.Join("/sys/class/net", netdev))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("adding the device %s needs root (CAP_NET_ADMIN)", name)
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%s has such a device, or there is another named %s: see 'rstorectl device list'", netdev, name)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EINVAL) && statErr != nil:
		return fmt.Errorf("there is no network interface %s: see 'ip link'", netdev)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("the kernel has no %s: its module is %s (%w)", kind, module(kind), err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("a program of this host has UDP port 4791, which %s needs: an rstored with software RDMA, "+
			"for one (%w)", module(kind), err)
	}
	return fmt.Errorf("adding %s on %s: %w", name, netdev, err)
}

// Remove removes a soft device. The kernel refuses to remove hardware.
func Remove(name string) error {
	err := netlink.RdmaLinkDel(name)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("removing the device %s needs root (CAP_NET_ADMIN)", name)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s is hardware, which cannot be removed", name)
	}
	return fmt.Errorf("removing %s: %w", name, err)
}

// module returns the kernel module of a kind of soft device.
func module(kind string) string {
	if kind == RXE {
		return sysfs.RXEDriver
	}
	return kind
}
