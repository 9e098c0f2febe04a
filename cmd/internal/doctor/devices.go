package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/sysfs"
	"github.com/rstored/rstored/rdma/wire"
)

// public reports whether other hosts can reach a port.
func public(ports []control.Port) bool {
	return slices.ContainsFunc(ports, func(p control.Port) bool {
		return slices.ContainsFunc(p.Addresses, func(a string) bool {
			at, err := netip.ParseAddrPort(a)
			return err == nil && !at.Addr().IsLoopback()
		})
	})
}

// ports checks the ports. h is nil for a server of another host.
func (r *Report) ports(h *Host, ports []control.Port, pid int) {
	serving := make(map[string]bool)
	tcpPort := uint16(0) // the first, where MOUNT is too
	for _, p := range ports {
		if len(p.Addresses) > 0 {
			serving[p.Transport] = true
			if a, err := netip.ParseAddrPort(p.Addresses[0]); err == nil && p.Transport == control.TransportTCP && tcpPort == 0 {
				tcpPort = a.Port()
			}
			r.ok("port", "%s %s listens on %s", p.Transport, p.Listen, strings.Join(p.Addresses, " "))
		}
		if p.Error != "" {
			level := Fail
			if len(p.Addresses) > 0 {
				level = Warn
			}
			do := fmt.Sprintf("free the port, or 'rstorectl port remove %s %s' and add another", p.Transport, p.Listen)
			if len(p.Waiting) > 0 {
				do = fmt.Sprintf("'rstorectl device list' and 'dmesg' show what became of the device; it is served by itself "+
					"when that is back, or 'rstorectl port remove %s %s'", p.Transport, p.Listen)
			}
			r.add(level, "port", do, "%s %s: %s", p.Transport, p.Listen, p.Error)
		}
	}
	if !serving[control.TransportRDMA] {
		r.add(Fail, "port", "rstorectl port add rdma ADDR", "nothing is served over RDMA")
	}
	if !serving[control.TransportTCP] {
		r.add(Warn, "port", "rstorectl port add tcp :2049",
			"nothing is served over TCP, by which mount(8) asks for an export before it uses RDMA")
	}
	if h != nil {
		r.portmap(h, serving[control.TransportPortmap], tcpPort, pid)
	}
}

// portmap checks which process answers portmap queries.
func (r *Report) portmap(h *Host, ours bool, tcpPort uint16, pid int) {
	clients := "for version 3, clients mount with " + withoutPortmap(strconv.Itoa(int(cmp.Or(tcpPort, nfsPort))))
	list := h.listeners("tcp", portmapPort)
	for _, o := range h.owners(list) {
		if o.pid != pid {
			r.add(Warn, "portmap", clients+"; or stop rpcbind and 'rstorectl port add portmap 0.0.0.0'",
				"port %d is held by %v, which does not know of rstored", portmapPort, o)
			return
		}
	}
	switch {
	case ours:
	case len(list) > 0:
		r.add(Warn, "portmap", "run this as root to see by whom; "+clients,
			"port %d is held by another user's process, probably rpcbind", portmapPort)
	default:
		r.add(OK, "portmap", clients+"; or 'rstorectl port add portmap 0.0.0.0' answers there",
			"port %d is free: nobody tells clients of version 3 the ports", portmapPort)
	}
}

// withoutPortmap are the options of a mount of version 3 that asks no port mapper.
func withoutPortmap(tcpPort string) string {
	return fmt.Sprintf("-o vers=3,nolock,mountproto=tcp,mountport=%s, and port=%s over TCP", tcpPort, tcpPort)
}

func (r *Report) devices(h *Host, devices []control.Device) {
	for _, d := range devices {
		a, err := netip.ParseAddr(d.Address)
		if err != nil {
			continue
		}
		name, mtu := h.interfaceOf(a)
		if d.Provider == string(provider.Verbs) {
			r.kernelDevice(h, &d)
			continue
		}
		switch {
		case name == "":
			if a.IsLoopback() {
				r.ok("device", "RDMA device %s: loopback, interface MTU %d, path MTU up to %d", d.Address, d.InterfaceMTU,
					d.PathMTU)
				continue
			}
			r.add(Fail, "device",
				"'ip addr' shows the addresses; 'rstorectl port list' and 'port remove' take back what is gone",
				"no interface has the address of RDMA device %s any more", d.Address)
		case mtu != 0 && mtu != d.InterfaceMTU:
			r.add(Warn, "device", "systemctl restart rstored",
				"RDMA device %s: the MTU of %s is %d now and was %d when the device was opened", d.Address, name, mtu,
				d.InterfaceMTU)
			r.fixRestart(h)
		case d.PathMTU < pathMax:
			r.add(OK, "device", fmt.Sprintf(
				"larger packets cost less: 'ip link set dev %s mtu %d', if the switches and the clients have it too", name,
				jumboMTU),
				"RDMA device %s: interface %s, MTU %d, path MTU up to %d", d.Address, name, d.InterfaceMTU, d.PathMTU)
		default:
			r.ok("device", "RDMA device %s: interface %s, MTU %d, path MTU up to %d", d.Address, name, d.InterfaceMTU, d.PathMTU)
		}
	}
}

// kernelDevice checks a device of the kernel.
func (r *Report) kernelDevice(h *Host, d *control.Device) {
	list := h.rdmaDevices()
	i := slices.IndexFunc(list, func(k sysfs.Device) bool { return k.Name == d.Kernel })
	if i < 0 {
		r.add(Fail, "device", "'rstorectl device list' shows those there are", "the kernel has RDMA device %s no more",
			d.Kernel)
		return
	}
	for _, p := range list[i].Ports {
		if d.Port != 0 && p.Number != d.Port {
			continue
		}
		if p.State != "ACTIVE" {
			r.add(Warn, "device", "'ip link' and the cable: no client reaches it", "port %d of RDMA device %s is %s (%s)",
				p.Number, d.Name, p.State, p.Phys)
			continue
		}
		r.ok("device", "RDMA device %s: %s of the kernel (%s), port %d, %s, %s", d.Name, d.Kernel,
			cmp.Or(list[i].Driver, "driver unknown"), p.Number, cmp.Or(d.Speaks, p.Layer), cmp.Or(p.Rate, "rate unknown"))
	}
}

// udpPort reports the owner of UDP port 4791 on each address. pid is the daemon's process, which
// has the devices.
func (r *Report) udpPort(h *Host, pid int, devices []control.Device) {
	list := h.listeners("udp", wire.Port)
	who := h.owners(list)
	said := make(map[string]bool)
	for _, s := range list {
		o, known := who[s.inode]
		switch {
		case known && o.pid == pid,
			!known && slices.ContainsFunc(devices, func(d control.Device) bool {
				return d.Address == s.addr.String() && d.Provider != string(provider.Verbs)
			}):
			r.once(said, OK, "", "UDP port %d of %v is rstored's", wire.Port, s.addr)
		case known:
			r.once(said, Warn, "give each process an address of its own (--rdma-listen ADDR:20049), or end it",
				"UDP port %d of %v is held by %v", wire.Port, s.addr, o)
		case s.addr.IsUnspecified() && h.softRoCE() && slices.ContainsFunc(devices,
			func(d control.Device) bool { return d.Provider == string(provider.Verbs) }):
			r.once(said, OK, "", "UDP port %d of all addresses is held by the kernel's rdma_rxe, whose devices rstored uses",
				wire.Port)
		case s.addr.IsUnspecified() && h.softRoCE():
			r.once(said, Warn, "'rdma link show' and 'rdma link delete LINK', then 'rmmod rdma_rxe'; user space needs the "+
				"port on a host or network namespace without it; or install rstored-rdma, which serves on its devices: "+
				"'rstorectl port add rdma verbs://LINK'",
				"UDP port %d of all addresses is held by the kernel's rdma_rxe", wire.Port)
		default:
			r.once(said, Warn, "'ss -ulpn sport = 4791' as root shows by whom",
				"UDP port %d of %v is held by a process that cannot be seen from here", wire.Port, s.addr)
		}
	}
	if len(list) == 0 {
		r.ok("udp-4791", "UDP port %d is free on every address", wire.Port)
	}
}

// once adds a finding about UDP port 4791 unless it was already made, because a process has a
// socket for each loop.
func (r *Report) once(said map[string]bool, l Level, do, format string, a ...any) {
	if what := fmt.Sprintf(format, a...); !said[what] {
		said[what] = true
		r.add(l, "udp-4791", do, "%s", what)
	}
}

const rmemMax = "proc/sys/net/core/rmem_max"

func enlarge() string {
	return fmt.Sprintf("sysctl -w net.core.rmem_max=%d, then restart rstored; or give it CAP_NET_ADMIN",
		udp.DefaultReceiveBuffer)
}

// receiveLimit checks the limit of receive buffers when the daemon does not answer.
func (r *Report) receiveLimit(h *Host) {
	if n := h.number(rmemMax); n > 0 && n < udp.DefaultReceiveBuffer {
		r.add(Warn, "receive-buffer", enlarge(),
			"net.core.rmem_max is %d; without CAP_NET_ADMIN rstored gets no larger receive buffers, and wants %d", n,
			udp.DefaultReceiveBuffer)
		r.fixReceiveLimit(h)
	} else if n > 0 {
		r.ok("receive-buffer", "net.core.rmem_max is %d", n)
	}
}

func (r *Report) counters(h *Host, devices []control.Device, s control.Stats) {
	if m := s.NFS4Memory; m.Near() {
		r.add(Warn, "nfs4-memory",
			"set nfs4_memory to more, and restart rstored; 'rstorectl client list' shows what clients have",
			"the state of clients of version 4 takes %d of %d bytes: new clients and opens will be put off", m.Bytes, m.Limit)
	}
	for _, d := range devices {
		c := s.Devices[cmp.Or(d.Name, d.Address)]
		got, want := c["Link.RcvBufBytes"], uint64(udp.DefaultReceiveBuffer)*uint64(max(d.Sockets, 1))
		if got > 0 && got < want {
			r.add(Warn, "receive-buffer", enlarge(),
				"RDMA device %s got %d bytes of receive buffer and asked for %d: bursts will be lost (net.core.rmem_max is %d)",
				d.Address, got, want, h.number(rmemMax))
			r.fixReceiveLimit(h)
		} else if got > 0 {
			r.ok("receive-buffer", "RDMA device %s has %d bytes of receive buffer", d.Address, got)
		}
		if n := c["Link.TxTooBig"]; n > 0 {
			r.add(Warn, "counters", "set the same MTU on all interfaces and switches on the way, and mount again",
				"RDMA device %s: %d packets were larger than the path to the client carries", d.Address, n)
		}
		if n := c["ICRCErrors"]; n > 0 {
			r.add(Warn, "counters",
				"look for address translation (NAT) or a container network on the way: RoCE passes neither",
				"RDMA device %s: %d packets came with a wrong checksum", d.Address, n)
		}
	}
}
