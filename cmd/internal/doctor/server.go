package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/sysfs"
	"github.com/rstored/rstored/rdma/wire"
)

// Daemon is the part of the control interface that is asked.
type Daemon interface {
	Status(context.Context) (control.Status, error)
	Exports(context.Context) ([]control.Export, error)
	Ports(context.Context) ([]control.Port, error)
	Devices(context.Context) ([]control.Device, error)
	Stats(context.Context) (control.Stats, error)
	PostMortems(context.Context) ([]control.PostMortem, error)
	Drift(context.Context) (control.Drift, error)
}

const (
	// recent is how old a post-mortem may be to be shown, and recentMax how many are.
	recent    = 24 * time.Hour
	recentMax = 8

	portmapPort = 111
	// jumboMTU is an interface MTU that has room for the largest path MTU, 4096.
	jumboMTU = 4200
	pathMax  = 4096
)

// Server looks at the server of this host.
func Server(ctx context.Context, h *Host, d Daemon) Report {
	var r Report
	st, err := d.Status(ctx)
	if err != nil {
		r.add(Fail, "daemon", "start it ('systemctl start rstored', or 'rstored --export DIR'), or name its socket with --control", "%v", err)
		r.udpPort(h, 0, nil)
		r.receiveLimit(h)
		r.firewall(h)
		return r
	}
	r.ok("daemon", "rstored %s is %s, pid %d", st.Version, st.State, st.PID)
	r.tls(st.TLS, time.Now())
	r.providers(h, st.Providers)
	ports, err := d.Ports(ctx)
	if err != nil {
		r.add(Fail, "port", "", "the ports cannot be listed: %v", err)
	} else {
		r.ports(h, ports, st.PID)
	}
	devices, err := d.Devices(ctx)
	if err != nil {
		r.add(Fail, "device", "", "the devices cannot be listed: %v", err)
	}
	r.devices(h, devices)
	r.udpPort(h, st.PID, devices)
	stats, err := d.Stats(ctx)
	if err != nil {
		r.add(Fail, "counters", "", "the counters cannot be read: %v", err)
	} else {
		r.counters(h, devices, stats)
	}
	exports, err := d.Exports(ctx)
	if err != nil {
		r.add(Fail, "export", "", "the exports cannot be listed: %v", err)
	} else {
		r.exports(h, exports, public(ports))
		r.wantTLS(st.TLS, exports)
	}
	if drift, err := d.Drift(ctx); err != nil {
		r.add(Fail, "config-drift", "", "what is written cannot be compared: %v", err)
	} else {
		r.drift(&drift)
	}
	r.firewall(h)
	dead, err := d.PostMortems(ctx)
	if err != nil {
		r.add(Fail, "post-mortem", "", "the post-mortems cannot be listed: %v", err)
	} else {
		r.postMortems(dead, time.Now())
	}
	return r
}

// providers looks at who provides RDMA.
func (r *Report) providers(h *Host, list []control.Provider) {
	i := slices.IndexFunc(list, func(p control.Provider) bool { return p.Name == string(provider.Verbs) })
	var devices []string
	for _, d := range h.rdmaDevices() {
		devices = append(devices, d.Name)
	}
	switch {
	case i >= 0 && list[i].Error != "":
		r.add(Warn, "provider", "install libibverbs and librdmacm (Debian: libibverbs1 librdmacm1 ibverbs-providers), and restart rstored", "RDMA devices cannot be used, and RDMA is in software: %s", list[i].Error)
	case i >= 0:
		r.ok("provider", "RDMA by devices of the kernel (verbs) and in software (soft)")
	case len(devices) > 0:
		r.add(OK, "provider", "the package rstored-rdma, to use "+strings.Join(devices, ", "), "RDMA in software alone (soft)")
	case len(list) > 0:
		r.ok("provider", "RDMA in software alone (soft)")
	}
}

// expiring is how long before the end of a certificate it is told of.
const expiring = 14 * 24 * time.Hour

// tls looks at the certificates. Without TLS there is nothing to say.
func (r *Report) tls(t *control.TLS, now time.Time) {
	if t == nil {
		return
	}
	if t.Error != "" {
		r.add(Fail, "tls", "put a certificate with its key in place; they are used at once", "the files as they are cannot be used, and those of %s still are: %s", t.Loaded.Local().Format(time.DateTime), t.Error)
	}
	renew := fmt.Sprintf("renew %s and %s; they are used at once", t.Certificate, t.Key)
	switch left := t.NotAfter.Sub(now); {
	case now.Before(t.NotBefore):
		r.add(Fail, "tls", "set the clock, or wait", "the certificate is not valid before %s: clients refuse it", t.NotBefore.Local().Format(time.DateTime))
	case left <= 0:
		r.add(Fail, "tls", renew, "the certificate has expired at %s: clients refuse it", t.NotAfter.Local().Format(time.DateTime))
	case left < expiring:
		r.add(Warn, "tls", renew, "the certificate expires at %s", t.NotAfter.Local().Format(time.DateTime))
	default:
		r.ok("tls", "TLS by a certificate of %s, valid until %s", strings.Join(t.Names, " "), t.NotAfter.Local().Format(time.DateTime))
	}
	if len(t.Names) == 0 {
		r.add(Fail, "tls", "have the certificate issued with the server's name as subjectAltName", "the certificate has no name and no address: clients refuse it")
	}
	if end := t.ClientCANotAfter; end != nil && now.Add(expiring).After(*end) {
		r.add(Warn, "tls", "put new authorities into "+t.ClientCA, "the authorities of clients expire at %s", end.Local().Format(time.DateTime))
	}
}

// wantTLS finds rules of exports that nobody over TCP can meet.
func (r *Report) wantTLS(t *control.TLS, exports []control.Export) {
	for _, e := range exports {
		for _, c := range e.Clients {
			switch {
			case t == nil && config.OnlyTLS(c.XprtSec):
				r.add(Fail, "tls", "set tls.certificate and tls.key, and reload", "%s wants xprtsec=%s of %s, but TLS is not offered", e.Pseudo, strings.Join(c.XprtSec, ":"), c.Name())
			case t != nil && t.ClientCA == "" && slices.Equal(c.XprtSec, []string{config.XprtMutual}):
				r.add(Fail, "tls", "set tls.client_ca, and reload", "%s wants xprtsec=%s of %s, but no certificate of a client is verified", e.Pseudo, config.XprtMutual, c.Name())
			}
		}
	}
}

// Remote looks at a server of another host, as far as it tells by itself.
func Remote(ctx context.Context, d Daemon) Report {
	var r Report
	st, err := d.Status(ctx)
	if err != nil {
		r.add(Fail, "daemon", "on its host 'rstorectl doctor' says more", "%v", err)
		return r
	}
	r.ok("daemon", "rstored %s is %s, pid %d", st.Version, st.State, st.PID)
	ports, err := d.Ports(ctx)
	if err != nil {
		r.add(Fail, "port", "", "the ports cannot be listed: %v", err)
	} else {
		r.ports(nil, ports, st.PID)
	}
	exports, err := d.Exports(ctx)
	if err != nil {
		r.add(Fail, "export", "", "the exports cannot be listed: %v", err)
	} else {
		r.exports(nil, exports, public(ports))
	}
	dead, err := d.PostMortems(ctx)
	if err != nil {
		r.add(Fail, "post-mortem", "", "the post-mortems cannot be listed: %v", err)
	} else {
		r.postMortems(dead, time.Now())
	}
	r.add(OK, "host", "run 'rstorectl doctor' there", "interfaces, UDP port %d, buffers and packet filters of its host cannot be seen from here", wire.Port)
	return r
}

// public reports whether other hosts can reach a port.
func public(ports []control.Port) bool {
	return slices.ContainsFunc(ports, func(p control.Port) bool {
		return slices.ContainsFunc(p.Addresses, func(a string) bool {
			at, err := netip.ParseAddrPort(a)
			return err == nil && !at.Addr().IsLoopback()
		})
	})
}

// ports says what is served. Without a host, that is another one's.
func (r *Report) ports(h *Host, ports []control.Port, pid int) {
	serving := make(map[string]bool)
	for _, p := range ports {
		if len(p.Addresses) > 0 {
			serving[p.Transport] = true
			r.ok("port", "%s %s listens on %s", p.Transport, p.Listen, strings.Join(p.Addresses, " "))
		}
		if p.Error != "" {
			level := Fail
			if len(p.Addresses) > 0 {
				level = Warn
			}
			do := fmt.Sprintf("free the port, or 'rstorectl port remove %s %s' and add another", p.Transport, p.Listen)
			if len(p.Waiting) > 0 {
				do = fmt.Sprintf("'rstorectl device list' and 'dmesg' show what became of the device; it is served by itself when that is back, or 'rstorectl port remove %s %s'", p.Transport, p.Listen)
			}
			r.add(level, "port", do, "%s %s: %s", p.Transport, p.Listen, p.Error)
		}
	}
	if !serving[control.TransportRDMA] {
		r.add(Fail, "port", "rstorectl port add rdma ADDR", "nothing is served over RDMA")
	}
	if !serving[control.TransportTCP] {
		r.add(Warn, "port", "rstorectl port add tcp :2049", "nothing is served over TCP, by which mount(8) asks for an export before it uses RDMA")
	}
	if h != nil {
		r.portmap(h, serving[control.TransportPortmap], pid)
	}
}

// portmap says who answers queries for ports.
func (r *Report) portmap(h *Host, ours bool, pid int) {
	list := h.listeners("tcp", portmapPort)
	for _, o := range h.owners(list) {
		if o.pid != pid {
			r.add(Warn, "portmap", "clients give port=, mountport=2049,mountproto=tcp; or stop rpcbind and 'rstorectl port add portmap 0.0.0.0'",
				"port %d is held by %v, which does not know of rstored", portmapPort, o)
			return
		}
	}
	switch {
	case ours:
	case len(list) > 0:
		r.add(Warn, "portmap", "run this as root to see by whom; clients give port=, mountport=2049,mountproto=tcp", "port %d is held by another user's process, probably rpcbind", portmapPort)
	default:
		r.ok("portmap", "port %d is free; clients give port= and mountport= when they mount, unless 'rstorectl port add portmap 0.0.0.0' serves it", portmapPort)
	}
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
				r.ok("device", "RDMA device %s: loopback, interface MTU %d, path MTU up to %d", d.Address, d.InterfaceMTU, d.PathMTU)
				continue
			}
			r.add(Fail, "device", "'ip addr' shows the addresses; 'rstorectl port list' and 'port remove' take back what is gone", "no interface has the address of RDMA device %s any more", d.Address)
		case mtu != 0 && mtu != d.InterfaceMTU:
			r.add(Warn, "device", "systemctl restart rstored", "RDMA device %s: the MTU of %s is %d now and was %d when the device was opened", d.Address, name, mtu, d.InterfaceMTU)
		case d.PathMTU < pathMax:
			r.add(OK, "device", fmt.Sprintf("larger packets cost less: 'ip link set dev %s mtu %d', if the switches and the clients have it too", name, jumboMTU),
				"RDMA device %s: interface %s, MTU %d, path MTU up to %d", d.Address, name, d.InterfaceMTU, d.PathMTU)
		default:
			r.ok("device", "RDMA device %s: interface %s, MTU %d, path MTU up to %d", d.Address, name, d.InterfaceMTU, d.PathMTU)
		}
	}
}

// kernelDevice says how a device of the kernel is.
func (r *Report) kernelDevice(h *Host, d *control.Device) {
	list := h.rdmaDevices()
	i := slices.IndexFunc(list, func(k sysfs.Device) bool { return k.Name == d.Kernel })
	if i < 0 {
		r.add(Fail, "device", "'rstorectl device list' shows those there are", "the kernel has RDMA device %s no more", d.Kernel)
		return
	}
	for _, p := range list[i].Ports {
		if d.Port != 0 && p.Number != d.Port {
			continue
		}
		if p.State != "ACTIVE" {
			r.add(Warn, "device", "'ip link' and the cable: no client reaches it", "port %d of RDMA device %s is %s (%s)", p.Number, d.Name, p.State, p.Phys)
			continue
		}
		r.ok("device", "RDMA device %s: %s of the kernel (%s), port %d, %s, %s", d.Name, d.Kernel, cmp.Or(list[i].Driver, "driver unknown"), p.Number, cmp.Or(d.Speaks, p.Layer), cmp.Or(p.Rate, "rate unknown"))
	}
}

// udpPort says who has UDP port 4791 on which address. Process pid is the daemon,
// which has the devices.
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
			r.once(said, Warn, "give each process an address of its own (--rdma-listen ADDR:20049), or end it", "UDP port %d of %v is held by %v", wire.Port, s.addr, o)
		case s.addr.IsUnspecified() && h.softRoCE() && slices.ContainsFunc(devices, func(d control.Device) bool { return d.Provider == string(provider.Verbs) }):
			r.once(said, OK, "", "UDP port %d of all addresses is held by the kernel's rdma_rxe, whose devices rstored uses", wire.Port)
		case s.addr.IsUnspecified() && h.softRoCE():
			r.once(said, Warn, "'rdma link show' and 'rdma link delete LINK', then 'rmmod rdma_rxe'; user space needs the port on a host or network namespace without it; or install rstored-rdma, which serves on its devices: 'rstorectl port add rdma verbs://LINK'",
				"UDP port %d of all addresses is held by the kernel's rdma_rxe", wire.Port)
		default:
			r.once(said, Warn, "'ss -ulpn sport = 4791' as root shows by whom", "UDP port %d of %v is held by a process that cannot be seen from here", wire.Port, s.addr)
		}
	}
	if len(list) == 0 {
		r.ok("udp-4791", "UDP port %d is free on every address", wire.Port)
	}
}

// once adds a finding about UDP port 4791 unless it was made: a process has a
// socket for each loop.
func (r *Report) once(said map[string]bool, l Level, do, format string, a ...any) {
	if what := fmt.Sprintf(format, a...); !said[what] {
		said[what] = true
		r.add(l, "udp-4791", do, "%s", what)
	}
}

const rmemMax = "proc/sys/net/core/rmem_max"

func enlarge() string {
	return fmt.Sprintf("sysctl -w net.core.rmem_max=%d, then restart rstored; or give it CAP_NET_ADMIN", udp.DefaultReceiveBuffer)
}

// receiveLimit is for a daemon that cannot be asked what it got.
func (r *Report) receiveLimit(h *Host) {
	if n := h.number(rmemMax); n > 0 && n < udp.DefaultReceiveBuffer {
		r.add(Warn, "receive-buffer", enlarge(), "net.core.rmem_max is %d; without CAP_NET_ADMIN rstored gets no larger receive buffers, and wants %d", n, udp.DefaultReceiveBuffer)
	} else if n > 0 {
		r.ok("receive-buffer", "net.core.rmem_max is %d", n)
	}
}

func (r *Report) counters(h *Host, devices []control.Device, s control.Stats) {
	if m := s.NFS4Memory; m.Near() {
		r.add(Warn, "nfs4-memory", "set nfs4_memory to more, and restart rstored; 'rstorectl client list' shows what clients have",
			"the state of clients of version 4 takes %d of %d bytes: new clients and opens will be put off", m.Bytes, m.Limit)
	}
	for _, d := range devices {
		c := s.Devices[cmp.Or(d.Name, d.Address)]
		got, want := c["Link.RcvBufBytes"], uint64(udp.DefaultReceiveBuffer)*uint64(max(d.Sockets, 1))
		if got > 0 && got < want {
			r.add(Warn, "receive-buffer", enlarge(), "RDMA device %s got %d bytes of receive buffer and asked for %d: bursts will be lost (net.core.rmem_max is %d)", d.Address, got, want, h.number(rmemMax))
		} else if got > 0 {
			r.ok("receive-buffer", "RDMA device %s has %d bytes of receive buffer", d.Address, got)
		}
		if n := c["Link.TxTooBig"]; n > 0 {
			r.add(Warn, "counters", "set the same MTU on all interfaces and switches on the way, and mount again", "RDMA device %s: %d packets were larger than the path to the client carries", d.Address, n)
		}
		if n := c["ICRCErrors"]; n > 0 {
			r.add(Warn, "counters", "look for address translation (NAT) or a container network on the way: RoCE passes neither", "RDMA device %s: %d packets came with a wrong checksum", d.Address, n)
		}
	}
}

func (r *Report) exports(h *Host, exports []control.Export, public bool) {
	if len(exports) == 0 {
		r.add(Fail, "export", "rstorectl export add DIR --client CIDR", "nothing is exported")
	}
	for _, e := range exports {
		switch {
		case e.Error != "":
			r.add(Fail, "export", fmt.Sprintf("mend it and 'rstorectl reload', or 'rstorectl export remove %s'", e.Pseudo), "export %s: %s", e.Pseudo, e.Error)
			continue
		case e.Type == config.TypePosix && h != nil:
			st, err := os.Stat(h.path(e.Path))
			if errors.Is(err, fs.ErrNotExist) {
				r.add(Fail, "export", fmt.Sprintf("mount or make it, or 'rstorectl export remove %s'", e.Pseudo), "export %s: %s does not exist", e.Pseudo, e.Path)
				continue
			}
			if err == nil && !st.IsDir() {
				r.add(Fail, "export", "export the directory that it is in", "export %s: %s is no directory", e.Pseudo, e.Path)
				continue
			}
		}
		switch e.Identity {
		case control.IdentityDevice:
			r.add(Warn, "export-identity", "give the export the option fsid= with a number of its own before clients mount it",
				"export %s: the filesystem of %s has no UUID: file handles become stale when its device gets another number", e.Pseudo, e.Path)
		case control.IdentityState:
			r.add(OK, "export-identity", "keep the state directory with the data, or give the export the option fsid= before clients mount it",
				"export %s: file handles need the state directory: the UUID of the filesystem of %s does not tell it from others", e.Pseudo, e.Path)
		}
		remedy := fmt.Sprintf("rstorectl export set %s --client CIDR", e.Pseudo)
		exposed := e.Exposure()
		switch {
		case !public:
		case len(e.Clients) == 0 && e.Origin != control.OriginMount:
			r.ok("export", "export %s (%s) names no clients: it is for this host alone until '%s'", e.Pseudo, e.Path, remedy)
			continue
		case len(exposed) > 0 && e.Origin != control.OriginMount:
			for _, why := range exposed {
				r.add(Warn, "export", remedy, "%s", why)
			}
			continue
		}
		r.ok("export", "export %s (%s), client rules: %d", e.Pseudo, e.Path, len(e.Clients))
	}
}

func (r *Report) drift(x *control.Drift) {
	for _, p := range x.Problems {
		r.add(Warn, "config-drift", "correct it; until then a reload or a restart fails", "%s", p)
	}
	against := strings.Join(x.Against, " and ")
	if n := len(x.Changes); n > 0 {
		advice := "'rstorectl drift' shows them"
		if x.Unread {
			advice += "; 'rstorectl reload' loads what was written since"
		}
		if x.RunTime {
			advice += "; changes made at run time stay over reloads: write them down, or undo them by 'rstorectl apply FILE' or " +
				"'rstorectl apply --configuration'"
		}
		r.add(Warn, "config-drift", advice, "%d exports and ports that run differ from %s", n, against)
	} else if len(x.Problems) == 0 {
		r.ok("config-drift", "what runs is what %s says", against)
	}
	if len(x.Shadowed) > 0 {
		r.add(Warn, "config-shadowed", "'rstorectl apply --configuration' puts the configuration in force again, 'rstorectl plan "+
			"--configuration' says what that would change; or remove them from the configuration",
			"%s of the configuration are not in force: %s stands in their place", strings.Join(x.Shadowed, ", "), x.Against[0])
	}
}

func (r *Report) postMortems(list []control.PostMortem, now time.Time) {
	shown := 0
	for _, p := range list {
		if now.Sub(p.Time) > recent {
			continue
		}
		if shown++; shown > recentMax {
			continue
		}
		times := ""
		if p.Count > 1 {
			times = fmt.Sprintf(", %d times", p.Count)
		}
		r.add(Warn, "post-mortem", p.Hint, "%s %s on %s: %s: %s%s", p.Time.Local().Format(time.DateTime), p.Peer, p.Local, p.Outcome, p.Reason, times)
	}
	switch {
	case shown > recentMax:
		r.add(Warn, "post-mortem", "rstorectl clients --failed", "%d more RDMA connections failed lately", shown-recentMax)
	case shown == 0:
		r.ok("post-mortem", "no RDMA connection has failed lately")
	}
}
