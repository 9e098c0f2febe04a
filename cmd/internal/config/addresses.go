package config

import (
	"fmt"
	"net"
	"net/netip"
)

// maxAddresses bounds the devices that one listener for every address opens.
const maxAddresses = 64

// HostAddresses lists the addresses that "every address" means for RDMA: those of the interfaces
// that are up. Of loopback it has the usual address alone, because the others are for clients on
// this host. It leaves out link-local addresses.
func HostAddresses() ([]netip.Addr, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing network interfaces: %w", err)
	}
	var out []netip.Addr
	for _, i := range ifs {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface went away meanwhile
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, ok := netip.AddrFromSlice(n.IP)
			if !ok {
				continue
			}
			ip = ip.Unmap()
			if ip.IsLinkLocalUnicast() || ip.IsMulticast() {
				continue
			}
			if ip.IsLoopback() && ip != netip.AddrFrom4([4]byte{127, 0, 0, 1}) && ip != netip.IPv6Loopback() {
				continue
			}
			if len(out) < maxAddresses {
				out = append(out, ip)
			}
		}
	}
	return out, nil
}
