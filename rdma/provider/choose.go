package provider

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sysfs"
	"github.com/rstored/rstored/rdma/verbs"
)

// Kind names a provider.
type Kind string

// The kinds.
const (
	Auto  Kind = "auto"
	Soft  Kind = "soft"  // RoCEv2 in user space
	Verbs Kind = "verbs" // a device of the kernel
)

// Kinds are all there are.
var Kinds = []Kind{Auto, Soft, Verbs}

// Parse reads a kind. The empty string is Auto.
func Parse(s string) (Kind, error) {
	k := Kind(strings.ToLower(s))
	if k == "" {
		return Auto, nil
	}
	if !slices.Contains(Kinds, k) {
		return "", fmt.Errorf("unknown RDMA provider %q: use auto, soft or verbs", s)
	}
	return k, nil
}

// Set implements pflag.Value, as do String and Type.
func (k *Kind) Set(s string) (err error) {
	*k, err = Parse(s)
	return err
}

func (k Kind) String() string { return string(k) }

// Type is the name of the type for users.
func (Kind) Type() string { return "PROVIDER" }

// Host is the state of a host that decides which provider is chosen.
type Host struct {
	// Sys is a file system like /sys.
	Sys fs.FS
	// Interfaces lists the network interfaces that are up, with their addresses.
	Interfaces func() ([]sysfs.Interface, error)
	// Available says why devices of the kernel cannot be used by this program, nil if they can.
	Available func() error
	// Source returns the local address from which routing reaches remote. It is invalid if remote is
	// an address of this host.
	Source func(remote netip.Addr) (netip.Addr, error)
}

// System is the host that this program runs on.
func System() *Host {
	return &Host{Sys: os.DirFS("/sys"), Interfaces: sysfs.Interfaces, Available: verbs.Available, Source: roce.SourceFor}
}

// Choice is where a device is opened.
type Choice struct {
	Kind Kind       // Soft or Verbs
	Addr netip.Addr // invalid for a free loopback address, with Soft
	// Device is the kernel's device that has the address, also if Kind is Soft; empty if there is
	// none.
	Device string
	// Why says in words what decided.
	Why string
	// Warning is what is likely to go wrong; empty for nothing.
	Warning string
}

// active is the state of a port that carries data.
const active = "ACTIVE"

// Choose chooses for a local address, or for a device of the kernel by its name.
func (h *Host) Choose(k Kind, addr netip.Addr, device string) (Choice, error) {
	devices, err := sysfs.ListUsable(h.Sys)
	if err != nil {
		return Choice{}, fmt.Errorf("listing the RDMA devices of the kernel: %w", err)
	}
	if device != "" {
		return h.named(k, devices, device)
	}
	c := Choice{Kind: Soft, Addr: addr.Unmap(), Why: "it is asked for"}
	d, p := h.find(devices, c.Addr)
	if d != nil {
		c.Device = d.Name
	}
	switch k {
	case Soft:
		if d != nil && !d.Soft && d.Kind != sysfs.RNIC && p.Layer != sysfs.InfiniBand {
			c.Warning = fmt.Sprintf("%s, which has %v, may keep the packets of UDP port 4791 for itself", d.Name, c.Addr)
		}
		return c, nil
	case Verbs:
		if err := h.Available(); err != nil {
			return c, err
		}
		if d == nil {
			return c, fmt.Errorf("%w: none has the address %v (see 'rstorectl device list')",
				verbs.ErrNoDevice, c.Addr)
		}
		c.Kind, c.Warning = Verbs, exposed(d)
		if p.State != active {
			c.Warning = fmt.Sprintf("port %d of %s is %s", p.Number, d.Name, strings.ToLower(p.State))
		}
		return c, nil
	}
	switch err := h.Available(); {
	case d == nil:
		c.Why = "no RDMA device of the kernel has the address"
	case p.State != active:
		c.Why = fmt.Sprintf("port %d of %s, which has the address, is %s", p.Number, d.Name, strings.ToLower(p.State))
	case err != nil:
		c.Why = fmt.Sprintf("%s has the address, but %v", d.Name, err)
	default:
		c.Kind, c.Why, c.Warning = Verbs, d.Name+" has the address", exposed(d)
	}
	return c, nil
}

// named chooses for a device of the kernel.
func (h *Host) named(k Kind, devices []sysfs.Device, device string) (Choice, error) {
	if k == Soft {
		return Choice{}, fmt.Errorf("the provider soft cannot use %s, which is a device of the kernel: name an address",
			device)
	}
	if err := h.Available(); err != nil {
		return Choice{}, err
	}
	i := slices.IndexFunc(devices, func(d sysfs.Device) bool { return d.Name == device })
	if i < 0 {
		return Choice{}, fmt.Errorf("%w: none is named %s (see 'rstorectl device list')", verbs.ErrNoDevice,
			device)
	}
	addrs := sysfs.Addrs(h.Sys, &devices[i], h.interfaces())
	if len(addrs) == 0 {
		return Choice{}, fmt.Errorf("%w: %s has no address, of which RDMA-CM needs one: give its network interface one "+
			"('ip addr add')", verbs.ErrNoDevice, device)
	}
	return Choice{Kind: Verbs, Addr: addrs[0], Device: device, Why: "it is asked for", Warning: exposed(&devices[i])}, nil
}

// exposed warns of siw, which serves READs without checking the access rights of the memory.
func exposed(d *sysfs.Device) string {
	if d.Driver != sysfs.SIWDriver {
		return ""
	}
	return d.Name + " is of the kernel's driver siw, which lets every peer that is connected read all memory that is " +
		"registered: for tests, and among those who may see each other's data"
}

// ChooseFor chooses for a connection to another host, or to this one. source is the local address.
// If it is invalid, routing chooses the local address.
func (h *Host) ChooseFor(k Kind, remote, source netip.Addr) (Choice, error) {
	if source.IsValid() {
		return h.Choose(k, source, "")
	}
	local, err := h.Source(remote)
	if err != nil {
		return Choice{}, err
	}
	if local.IsValid() {
		return h.Choose(k, local, "")
	}
	// A device of the kernel reaches this host from the address itself. The stack in user space has
	// one process on each address, and the server has that one.
	c, err := h.Choose(k, remote.Unmap(), "")
	if c.Kind == Soft {
		c.Addr, c.Warning = netip.Addr{}, ""
	}
	return c, err
}

// Addresses lists, in order, the addresses of the kernel's devices whose port is up.
func (h *Host) Addresses() ([]netip.Addr, error) {
	devices, err := sysfs.ListUsable(h.Sys)
	if err != nil {
		return nil, fmt.Errorf("listing the RDMA devices of the kernel: %w", err)
	}
	var out []netip.Addr
	ifs := h.interfaces()
	for i := range devices {
		for _, a := range sysfs.Addrs(h.Sys, &devices[i], ifs) {
			if _, p := h.find(devices, a); p != nil && p.State == active && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}

// RXE returns the name of a device of the kernel's software RoCE. If there is none, it returns the
// name of the module, or "" if the module is not loaded. While the module is loaded the kernel has
// UDP port 4791 on all addresses of the host.
func (h *Host) RXE() string {
	devices, _ := sysfs.List(h.Sys)
	if i := slices.IndexFunc(devices, func(d sysfs.Device) bool { return d.Driver == sysfs.RXEDriver }); i >= 0 {
		return devices[i].Name
	}
	if _, err := fs.Stat(h.Sys, path.Join("module", sysfs.RXEDriver)); err == nil {
		return sysfs.RXEDriver
	}
	return ""
}

// find returns the device and the port that have an address, or nil. A port that is up goes before
// others.
func (h *Host) find(devices []sysfs.Device, addr netip.Addr) (*sysfs.Device, *sysfs.Port) {
	if !addr.IsValid() {
		return nil, nil
	}
	var dev *sysfs.Device
	var port *sysfs.Port
	ifs := h.interfaces()
	for i := range devices {
		for j := range devices[i].Ports {
			d, p := &devices[i], &devices[i].Ports[j]
			if (port == nil || port.State != active && p.State == active) &&
				slices.Contains(sysfs.PortAddrs(h.Sys, d, p, ifs), addr) {
				dev, port = d, p
			}
		}
	}
	return dev, port
}

func (h *Host) interfaces() []sysfs.Interface {
	ifs, err := h.Interfaces()
	if err != nil {
		return nil
	}
	return ifs
}

// Usable reports whether programs can use a device of the kernel, by its name.
func (h *Host) Usable(device string) bool { return sysfs.Usable(h.Sys, device) }

// Gone reports whether an error says that the kernel does not have the device. The device may
// appear later.
func Gone(err error) bool { return errors.Is(err, verbs.ErrNoDevice) }
