package sysfs

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Interface is a network interface.
type Interface struct {
	Name  string
	Addrs []netip.Addr
}

// Interfaces lists the network interfaces of this host that are up.
func Interfaces() ([]Interface, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing network interfaces: %w", err)
	}
	out := make([]Interface, 0, len(ifs))
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil || i.Flags&net.FlagUp == 0 {
			continue
		}
		x := Interface{Name: i.Name}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					x.Addrs = append(x.Addrs, ip.Unmap())
				}
			}
		}
		out = append(out, x)
	}
	return out, nil
}

// Addrs returns the addresses by which other hosts reach a device. ifs are the host's interfaces.
func Addrs(sys fs.FS, d *Device, ifs []Interface) []netip.Addr {
	var out []netip.Addr
	for i := range d.Ports {
		for _, a := range PortAddrs(sys, d, &d.Ports[i], ifs) {
			if !a.IsLinkLocalUnicast() && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out
}

// PortAddrs returns the addresses by which RDMA-CM finds a port.
//
//	RoCE          those in the port's table of GIDs
//	iWARP         those of its network interface
//	InfiniBand    those of its IPoIB interfaces
func PortAddrs(sys fs.FS, d *Device, p *Port, ifs []Interface) []netip.Addr {
	var out []netip.Addr
	of := func(name string) {
		if i := slices.IndexFunc(ifs, func(i Interface) bool { return i.Name == name }); i >= 0 {
			out = append(out, ifs[i].Addrs...)
		}
	}
	switch {
	case d.Kind == RNIC:
		of(p.NetDev)
	case p.Layer == InfiniBand:
		for _, name := range ipoib(sys, d.Name, p.Number) {
			of(name)
		}
	default:
		for _, g := range p.GIDs {
			if a := g.Addr(); a.IsValid() {
				out = append(out, a)
			}
		}
	}
	return out
}

// ipoib returns the names of the IPoIB interfaces of an InfiniBand port.
func ipoib(sys fs.FS, device string, port int) []string {
	entries, _ := fs.ReadDir(sys, "class/net") // a host without it has no interface
	var out []string
	for _, e := range entries {
		dir := path.Join("class/net", e.Name())
		if _, err := fs.Stat(sys, path.Join(dir, "device/infiniband", device)); err != nil {
			continue
		}
		const arphrdInfiniBand = "32"
		if t, _ := fs.ReadFile(sys, path.Join(dir, "type")); strings.TrimSpace(string(t)) != arphrdInfiniBand {
			continue
		}
		n, _ := fs.ReadFile(sys, path.Join(dir, "dev_port"))
		if i, err := strconv.Atoi(strings.TrimSpace(string(n))); err == nil && i+1 == port {
			out = append(out, e.Name())
		}
	}
	return out
}
