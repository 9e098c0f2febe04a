package doctor

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rdma/sysfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// headers is the number of bytes that the Linux CM subtracts from the MTU of an interface, for the
// headers of a packet.
const headers = 96

// pathMTU is the path MTU that the Linux CM takes on an interface.
func pathMTU(mtu int) int {
	for m := pathMax; m >= 256; m /= 2 {
		if m <= mtu-headers {
			return m
		}
	}
	return 0
}

// Client checks this host as a client of the server that u names, and makes the calls that a mount
// would make. If sec is not nil it tries Kerberos too (see Kerberos), and protects these calls by it.
func Client(ctx context.Context, h *Host, u client.URL, sec *dial.Secure) Report {
	r := probe(ctx, h, u, sec)
	if sec != nil {
		r = append(r, Kerberos(ctx, u, sec)...)
	}
	return r
}

func probe(ctx context.Context, h *Host, u client.URL, sec *dial.Secure) Report {
	var r Report
	name, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		r.add(Fail, "route", "", "%v", err)
		return r
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		r.add(Fail, "route", "name the server by its address, or see /etc/hosts and DNS", "%v", err)
		return r
	}
	server := addrs[0].Unmap()
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		r.add(Fail, "route", "", "%q is not a port number", port)
		return r
	}
	at := netip.AddrPortFrom(server, uint16(n))
	local, ok := r.local(h, server, u.Transport == rpc.TransportRDMA)
	if !ok {
		return r
	}
	if u.Transport == rpc.TransportRDMA {
		r.firewall(h)
		r.probeRDMA(ctx, h, at, local, name, u.Path, sec)
		r.probeTCP(ctx, net.JoinHostPort(name, client.PortTCP), u.Path, Warn, sec)
		return r
	}
	r.probeTCP(ctx, u.Host, u.Path, Fail, sec)
	return r
}

// local makes the checks that send no packet. It returns the local address for the server, and
// false if there is none.
func (r *Report) local(h *Host, server netip.Addr, overRDMA bool) (netip.Addr, bool) {
	local, mtu, err := h.Route(server)
	if err != nil {
		r.add(Fail, "route", fmt.Sprintf("ip route get %v", server), "%v", err)
		return local, false
	}
	if overRDMA {
		r.modules(h)
	}
	if !local.IsValid() {
		r.ok("route",
			"%v is an address of this host; unless a device of the kernel has it, it is tried from a loopback address", server)
		return local, true
	}
	name, ifMTU := h.interfaceOf(local)
	r.ok("route", "%v is reached from %v, interface %s", server, local, name)
	if !overRDMA {
		return local, true
	}
	r.link(h, name)
	switch {
	case pathMTU(ifMTU) == 0 && ifMTU != 0:
		r.add(Fail, "mtu", fmt.Sprintf("ip link set dev %s mtu 1500", name), "the MTU of %s is %d, too small for RDMA",
			name, ifMTU)
		r.fix(Step{"ip", "link", "set", "dev", name, "mtu", "1500"})
	case mtu != 0 && ifMTU != 0 && pathMTU(mtu) < pathMTU(ifMTU):
		r.add(Warn, "mtu", fmt.Sprintf("'ip link set dev %s mtu %d', and 'ip route flush cache'", name, mtu),
			"the MTU of %s is %d, but the kernel knows that the path to %v carries %d: RDMA packets of %d bytes will be lost",
			name, ifMTU, server, mtu, pathMTU(ifMTU))
		r.fix(Step{"ip", "link", "set", "dev", name, "mtu", strconv.Itoa(mtu)}, Step{"ip", "route", "flush", "cache"})
	default:
		r.ok("mtu", "the MTU of %s is %d: path MTU %d", name, ifMTU, pathMTU(ifMTU))
	}
	r.udpPort(h, 0, nil)
	return local, true
}

// modules says which parts of the kernel's client are there.
func (r *Report) modules(h *Host) {
	found := make(map[moduleState][]string)
	for _, m := range []string{"nfs", "nfsv3", "rpcrdma", "ib_core", "rdma_cm"} {
		s := h.module(m)
		found[s] = append(found[s], m)
	}
	if l := strings.Join(found[moduleLoaded], " "); l != "" {
		r.ok("module", "kernel modules loaded: %s", l)
	}
	if l := strings.Join(found[moduleHere], " "); l != "" {
		r.add(Warn, "module", "modprobe -a "+l, "kernel modules not loaded: %s", l)
		r.fix(append(Step{"modprobe", "-a"}, found[moduleHere]...))
	}
	if l := strings.Join(found[moduleUnknown], " "); l != "" {
		r.add(Warn, "module", "install the rest of the kernel's modules (linux-modules-extra, kernel-modules-extra), "+
			"then 'modprobe -a "+l+"'",
			"kernel modules that are neither loaded nor found, so that this host's kernel cannot mount by RDMA: %s", l)
	}
}

// link looks for the kernel's RDMA device on an interface.
func (r *Report) link(h *Host, name string) {
	for _, d := range h.rdmaDevices() {
		i := slices.IndexFunc(d.Ports, func(p sysfs.Port) bool { return p.NetDev == name })
		if i < 0 {
			continue
		}
		p, kind := &d.Ports[i], "hardware"
		if d.Soft {
			kind = d.Driver
		}
		if p.State != "ACTIVE" && p.State != "" {
			r.add(Fail, "rdma-link", fmt.Sprintf("ip link set dev %s up", name), "RDMA link %s/%d on %s (%s) is %s", d.Name,
				p.Number, name, kind, p.State)
			r.fix(Step{"ip", "link", "set", "dev", name, "up"})
			return
		}
		r.ok("rdma-link", "RDMA link %s/%d on %s (%s) is active", d.Name, p.Number, name, kind)
		return
	}
	r.add(Warn, "rdma-link", fmt.Sprintf("'modprobe rdma_rxe' and 'rdma link add rxe0 type rxe netdev %s'", name),
		"no RDMA link of the kernel is on %s: the kernel cannot mount by RDMA from here, programs in user space can", name)
	if s := h.module("rdma_rxe"); s != moduleUnknown {
		r.fix(Step{"rstorectl", "device", "add", "rxe", name})
	}
}

// sources are the addresses to try the server from: the one that routing chooses,
// then others of its interface.
func sources(h *Host, local netip.Addr) []netip.Addr {
	out := []netip.Addr{local}
	name, _ := h.interfaceOf(local)
	list, err := h.Interfaces()
	if err != nil || !local.IsValid() {
		return out
	}
	for _, a := range list {
		if a.Interface == name && a.Addr != local && a.Addr.Is4() == local.Is4() && !a.Addr.IsLinkLocalUnicast() {
			out = append(out, a.Addr)
		}
	}
	return out
}
