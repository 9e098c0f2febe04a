package doctor

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sysfs"
	"github.com/rstored/rstored/rdma/wire"
)

// Host is the machine that is looked at.
type Host struct {
	// Root is where its /proc, /sys and /lib are, "/" for this one.
	Root string
	// Interfaces lists the addresses of the host. Route returns the local address from which the
	// host reaches another address, and the path MTU if the kernel knows it. The invalid address
	// stands for an address of this host.
	Interfaces func() ([]Address, error)
	Route      func(netip.Addr) (local netip.Addr, mtu int, err error)
}

// Address is an address of an interface.
type Address struct {
	Interface string
	Addr      netip.Addr
}

// This is the host that we run on.
func This() *Host { return &Host{Root: "/", Interfaces: addresses, Route: route} }

func addresses() ([]Address, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var out []Address
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface went away meanwhile
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					out = append(out, Address{i.Name, ip.Unmap()})
				}
			}
		}
	}
	return out, nil
}

func route(to netip.Addr) (local netip.Addr, mtu int, err error) {
	if local, err = roce.SourceFor(to); err != nil || !local.IsValid() {
		return local, 0, err
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, wire.Port)))
	if err != nil {
		return local, 0, err
	}
	defer func() { _ = c.Close() }()
	raw, err := c.SyscallConn()
	if err != nil {
		return local, 0, err
	}
	level, opt := unix.IPPROTO_IP, unix.IP_MTU
	if to.Is6() {
		level, opt = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	var e error
	err = raw.Control(func(fd uintptr) { mtu, e = unix.GetsockoptInt(int(fd), level, opt) })
	if err == nil {
		err = e
	}
	return local, mtu, err
}

func (h *Host) path(p ...string) string { return filepath.Join(append([]string{h.Root}, p...)...) }

// text returns the content of a file without blanks at its ends, or "" if it cannot be read.
func (h *Host) text(p ...string) string {
	b, err := os.ReadFile(h.path(p...))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// number returns the number in a file, or 0 if there is none.
func (h *Host) number(p ...string) int {
	n, _ := strconv.Atoi(h.text(p...))
	return n
}

func (h *Host) names(p ...string) []string {
	list, _ := os.ReadDir(h.path(p...)) // sorted; what is not there has no entries
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = e.Name()
	}
	return out
}

func (h *Host) exists(p ...string) bool {
	_, err := os.Stat(h.path(p...))
	return err == nil
}

// interfaceOf returns the interface that has an address, and its MTU. name is "" if no interface
// has it.
func (h *Host) interfaceOf(a netip.Addr) (name string, mtu int) {
	list, err := h.Interfaces()
	if err != nil {
		return "", 0
	}
	for _, i := range list {
		if i.Addr.WithZone("") == a.WithZone("") {
			return i.Interface, h.number("sys/class/net", i.Interface, "mtu")
		}
	}
	return "", 0
}

// moduleState says whether the kernel has the code of a module.
type moduleState uint8

const (
	moduleUnknown moduleState = iota // neither loaded nor installed, as far as doctor can see
	moduleHere                       // can be loaded
	moduleLoaded                     // or built in
)

func (h *Host) module(name string) moduleState {
	for line := range strings.Lines(h.text("proc/modules")) {
		if n, _, _ := strings.Cut(line, " "); n == name {
			return moduleLoaded
		}
	}
	if h.exists("sys/module", name) {
		return moduleLoaded
	}
	lib := filepath.Join("lib/modules", h.text("proc/sys/kernel/osrelease"))
	is := func(line string) bool {
		file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		base, _, _ := strings.Cut(filepath.Base(file), ".")
		return strings.ReplaceAll(base, "-", "_") == name
	}
	for line := range strings.Lines(h.text(lib, "modules.builtin")) {
		if is(line) {
			return moduleLoaded
		}
	}
	for line := range strings.Lines(h.text(lib, "modules.dep")) {
		if is(line) {
			return moduleHere
		}
	}
	return moduleUnknown
}

// rdmaDevices returns the RDMA devices of the kernel, or none if sysfs cannot be read.
func (h *Host) rdmaDevices() []sysfs.Device {
	list, _ := sysfs.List(os.DirFS(h.path("sys")))
	return list
}

// socket is a row of /proc/net/udp, udp6, tcp or tcp6.
type socket struct {
	addr  netip.Addr
	inode string
}

// listeners returns the sockets with a local port. TCP sockets count only if they listen.
func (h *Host) listeners(proto string, port uint16) []socket {
	var out []socket
	for _, file := range []string{proto, proto + "6"} {
		s := bufio.NewScanner(strings.NewReader(h.text("proc/net", file)))
		for s.Scan() {
			f := strings.Fields(s.Text())
			const local, state, inode, tcpListen = 1, 3, 9, "0A"
			if len(f) <= inode || proto == "tcp" && f[state] != tcpListen {
				continue
			}
			host, p, ok := strings.Cut(f[local], ":")
			n, err := strconv.ParseUint(p, 16, 16)
			a, good := procAddr(host)
			if ok && err == nil && good && uint16(n) == port {
				out = append(out, socket{a, f[inode]})
			}
		}
	}
	return out
}

// procAddr reads an address as /proc/net writes it: words in the host's order.
func procAddr(s string) (netip.Addr, bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b)%4 != 0 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	return a.Unmap(), ok
}

// owner is the process that has a socket. name is "" if no process is visible: the socket belongs
// to the kernel or to another user.
type owner struct {
	pid  int
	name string
}

func (o owner) String() string { return fmt.Sprintf("%s (pid %d)", o.name, o.pid) }

// owners finds the processes of sockets, by inode.
func (h *Host) owners(list []socket) map[string]owner {
	out := make(map[string]owner)
	if len(list) == 0 {
		return out
	}
	for _, p := range h.names("proc") {
		pid, err := strconv.Atoi(p)
		if err != nil {
			continue
		}
		for _, fd := range h.names("proc", p, "fd") {
			to, err := os.Readlink(h.path("proc", p, "fd", fd))
			if err != nil {
				continue
			}
			inode, ok := strings.CutPrefix(strings.TrimSuffix(to, "]"), "socket:[")
			if ok && slices.ContainsFunc(list, func(s socket) bool { return s.inode == inode }) {
				out[inode] = owner{pid, h.text("proc", p, "comm")}
			}
		}
	}
	return out
}

// softRoCE reports whether the kernel's software RoCE is there, which takes UDP
// port 4791 of all addresses with its first link.
func (h *Host) softRoCE() bool {
	return h.module("rdma_rxe") == moduleLoaded ||
		slices.ContainsFunc(h.rdmaDevices(), func(d sysfs.Device) bool { return d.Driver == sysfs.RXEDriver })
}

// firewall reports whether a packet filter may be active. It does not read the rules: that needs
// privileges, and a rule alone does not say which packets pass.
func (r *Report) firewall(h *Host) {
	var loaded []string
	for _, m := range []string{"nf_tables", "ip_tables", "ip6_tables"} {
		if h.module(m) == moduleLoaded {
			loaded = append(loaded, m)
		}
	}
	if len(loaded) == 0 {
		r.ok("firewall", "no packet filter is loaded in this kernel (others on the way cannot be seen from here)")
		return
	}
	r.add(Warn, "firewall", fmt.Sprintf(
		"'nft list ruleset' and 'iptables -S' as root; they must let UDP port %d in and out", wire.Port),
		"a packet filter is loaded (%s); its rules are not read here", strings.Join(loaded, ", "))
}
