package sysfs

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Device is an RDMA device of the kernel.
type Device struct {
	Name     string `json:"name"`
	Driver   string `json:"driver,omitempty"` // such as mlx5_core, rdma_rxe, siw; empty if unknown
	Kind     string `json:"kind"`             // of node: CA (InfiniBand and RoCE) or RNIC (iWARP)
	Soft     bool   `json:"soft"`             // on an ordinary network interface
	NUMA     *int   `json:"numa_node,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	GUID     string `json:"node_guid,omitempty"`
	Ports    []Port `json:"ports"`
}

// Port is a port of a device.
type Port struct {
	Number int    `json:"port"`
	State  string `json:"state"`    // such as ACTIVE or DOWN
	Phys   string `json:"physical"` // such as LinkUp
	Layer  string `json:"link_layer"`
	Rate   string `json:"rate,omitempty"`
	NetDev string `json:"netdev,omitempty"`
	LID    uint16 `json:"lid,omitempty"` // of InfiniBand
	GIDs   []GID  `json:"gids"`          // those that are set
}

// GID is an entry of a port's table.
type GID struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type,omitempty"` // such as RoCE v2
	NetDev string `json:"netdev,omitempty"`
}

// Addr is the IPv4 or IPv6 address that the GID stands for; IPv4 ones are mapped into IPv6
// (IBTA A17.4.1).
func (g GID) Addr() netip.Addr {
	a, err := netip.ParseAddr(g.GID)
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap()
}

// class is the directory of the devices in sysfs.
const class = "class/infiniband"

// List reads the devices from a file system like /sys, in order of their names. A kernel
// without RDMA has none.
func List(sys fs.FS) ([]Device, error) {
	return list(sys, func(string) bool { return true })
}

// ListUsable is List without the devices that programs cannot use any more (Usable).
func ListUsable(sys fs.FS) ([]Device, error) {
	return list(sys, func(name string) bool { return Usable(sys, name) })
}

func list(sys fs.FS, wanted func(name string) bool) ([]Device, error) {
	entries, err := fs.ReadDir(sys, class)
	if errors.Is(err, fs.ErrNotExist) {
		return []Device{}, nil
	}
	if err != nil {
		return nil, err
	}
	out := make([]Device, 0, len(entries))
	for _, e := range entries {
		if wanted(e.Name()) {
			out = append(out, read(sys, e.Name()))
		}
	}
	return out, nil
}

// Named reads one device, and reports whether there is one of that name.
func Named(sys fs.FS, name string) (Device, bool) {
	if name != path.Base(name) || !fs.ValidPath(name) {
		return Device{}, false
	}
	if _, err := fs.Stat(sys, path.Join(class, name)); err != nil || name == "." {
		return Device{}, false
	}
	return read(sys, name), true
}

// Host is this host's devices.
func Host() ([]Device, error) { return List(os.DirFS("/sys")) }

// verbsClass is the directory of the character devices by which programs use the devices.
const verbsClass = "class/infiniband_verbs"

// Usable reports whether programs can use a device. The removal of a device begins with its
// character device. The kernel removes a soft device only when all programs have closed it, and
// sends them no event.
func Usable(sys fs.FS, name string) bool {
	entries, err := fs.ReadDir(sys, verbsClass)
	if err != nil {
		return true // this sysfs has no file that shows it
	}
	for _, e := range entries {
		b, err := fs.ReadFile(sys, path.Join(verbsClass, e.Name(), "ibdev"))
		if err == nil && strings.TrimSpace(string(b)) == name {
			return true
		}
	}
	return false
}

func read(sys fs.FS, name string) Device {
	dir := path.Join(class, name)
	text := func(elem ...string) string {
		b, _ := fs.ReadFile(sys, path.Join(append([]string{dir}, elem...)...)) // what is missing is not known
		return strings.TrimSpace(string(b))
	}
	parent := text("parent") // only rdma_rxe's have it
	_, bus := fs.Stat(sys, path.Join(dir, "device"))
	d := Device{
		Name: name, Kind: after(text("node_type")), Firmware: text("fw_ver"), GUID: text("node_guid"),
		Ports: []Port{},
	}
	d.Soft = parent != "" || d.Kind == RNIC && errors.Is(bus, fs.ErrNotExist)
	d.Driver = driver(d.Kind, text("device", "uevent"), d.Soft)
	if n, err := strconv.Atoi(text("device", "numa_node")); err == nil && n >= 0 {
		d.NUMA = &n
	}
	ports, _ := fs.ReadDir(sys, path.Join(dir, "ports"))
	for _, e := range ports {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		at := func(elem ...string) string { return text(append([]string{"ports", e.Name()}, elem...)...) }
		p := Port{
			Number: n, State: after(at("state")), Phys: after(at("phys_state")), Layer: at("link_layer"), Rate: at("rate"),
			NetDev: parent, GIDs: []GID{},
		}
		if lid, err := strconv.ParseUint(at("lid"), 0, 16); err == nil {
			p.LID = uint16(lid)
		}
		// A port that is down has an interface too, though perhaps no GID.
		devs, _ := fs.ReadDir(sys, path.Join(dir, "ports", e.Name(), "gid_attrs/ndevs"))
		for _, g := range devs {
			p.NetDev = cmp.Or(p.NetDev, at("gid_attrs/ndevs", g.Name()))
		}
		gids, _ := fs.ReadDir(sys, path.Join(dir, "ports", e.Name(), "gids"))
		for _, g := range gids {
			i, err := strconv.Atoi(g.Name())
			if err != nil {
				continue
			}
			gid, err := netip.ParseAddr(at("gids", g.Name()))
			if err != nil || gid.IsUnspecified() {
				continue
			}
			x := GID{
				Index: i, GID: gid.String(), Type: at("gid_attrs", "types", g.Name()),
				NetDev: at("gid_attrs", "ndevs", g.Name()),
			}
			p.GIDs = append(p.GIDs, x)
		}
		slices.SortFunc(p.GIDs, func(a, b GID) int { return cmp.Compare(a.Index, b.Index) })
		if p.NetDev == "" && d.Kind == RNIC {
			p.NetDev = interfaceOf(sys, &d, &p)
		}
		d.Ports = append(d.Ports, p)
	}
	slices.SortFunc(d.Ports, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	return d
}

// interfaceOf finds the network interface of an iWARP port whose table of GIDs names none. RDMA-CM
// finds the port by the interface's MAC address: the first GID begins with the MAC address, and the
// GUID of the node is made of it.
func interfaceOf(sys fs.FS, d *Device, p *Port) string {
	entries, _ := fs.ReadDir(sys, "class/net") // a host without it has no interface
	found, upper := "", ""
	for _, e := range entries {
		text := func(elem string) string {
			b, _ := fs.ReadFile(sys, path.Join("class/net", e.Name(), elem))
			return strings.TrimSpace(string(b))
		}
		mac, err := net.ParseMAC(text("address"))
		if err != nil || !hasMAC(p, mac) && (len(d.Ports) > 0 || !isEUI64(d.GUID, mac)) {
			continue
		}
		// Interfaces on another one, such as those of VLANs, have its MAC address.
		if text("iflink") == text("ifindex") {
			found = cmp.Or(found, e.Name())
		} else {
			upper = cmp.Or(upper, e.Name())
		}
	}
	return cmp.Or(found, upper)
}

// hasMAC reports whether the first GID of an iWARP port is made of a MAC address.
func hasMAC(p *Port, mac net.HardwareAddr) bool {
	if len(p.GIDs) == 0 || p.GIDs[0].Index != 0 || len(mac) != 6 {
		return false
	}
	gid, err := netip.ParseAddr(p.GIDs[0].GID)
	if err != nil {
		return false
	}
	b := gid.As16()
	return bytes.Equal(b[:6], mac) && [10]byte(b[6:]) == [10]byte{}
}

// isEUI64 reports whether a GUID, such as 0200:c9ff:fe12:3456, is made of a MAC address (RFC 4291
// appendix A).
func isEUI64(guid string, mac net.HardwareAddr) bool {
	b, err := hex.DecodeString(strings.ReplaceAll(guid, ":", ""))
	if err != nil || len(b) != 8 || len(mac) != 6 {
		return false
	}
	return bytes.Equal(b, []byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

// after returns the word behind the number in a value of sysfs, such as "4: ACTIVE".
func after(s string) string {
	if _, word, ok := strings.Cut(s, ": "); ok {
		return word
	}
	return s
}

// driver returns the driver that the bus names in uevent. Soft devices have no bus. For them the
// node type decides, because the kernel has one soft driver for each.
func driver(node, uevent string, soft bool) string {
	for line := range strings.Lines(uevent) {
		if d, ok := strings.CutPrefix(strings.TrimSpace(line), "DRIVER="); ok {
			return d
		}
	}
	switch {
	case !soft:
		return ""
	case node == RNIC:
		return SIWDriver
	}
	return RXEDriver
}

// Names of the kernel for a node type and a link layer.
const (
	RNIC       = "RNIC"       // a node of iWARP
	InfiniBand = "InfiniBand" // a link
)

// Drivers of the kernel's soft devices.
const (
	RXEDriver = "rdma_rxe" // RoCEv2; it has UDP port 4791 of its whole network namespace
	SIWDriver = "siw"      // iWARP, over TCP
)
