package ctl

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/rdmadev"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/sysfs"
)

// device makes the commands for the RDMA devices of this host's kernel. They need no daemon.
func (t *tool) device() *cobra.Command {
	list := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the RDMA devices of this host's kernel",
		Long: `List the RDMA devices of this host's kernel, a line for each port: network cards, and soft
devices on ordinary network interfaces. rstored needs none of them. The programs of the
package rstored-rdma may use them. The kernel's NFS client needs one.`,
		RunE: func(*cobra.Command, []string) error {
			all, err := sysfs.Host()
			if err != nil {
				return err
			}
			return t.g.Print(all, func(w io.Writer) {
				if len(all) == 0 {
					fmt.Fprintln(w, "the kernel has no RDMA device")
					return
				}
				fmt.Fprintln(w, "DEVICE\tPORT\tDRIVER\tLINK\tSTATE\tRATE\tNETDEV\tADDRESSES")
				for _, d := range all {
					for _, p := range d.Ports {
						at := strings.Join(addresses(&d, &p, interfaceAddrs), ",")
						fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, p.Number, dash(d.Driver), dash(p.Layer),
							dash(p.State), dash(p.Rate), dash(p.NetDev), dash(at))
					}
				}
				if err := provider.System().Available(); err != nil {
					fmt.Fprintf(w, "\nThis program does not use them: %v\n", err)
				}
			})
		},
	}
	show := &cobra.Command{
		Use:   "show DEVICE",
		Short: "Show an RDMA device of this host's kernel, with the GIDs of its ports",
		Args:  cli.Args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			all, err := sysfs.Host()
			if err != nil {
				return err
			}
			i := slices.IndexFunc(all, func(d sysfs.Device) bool { return d.Name == args[0] })
			if i < 0 {
				return fmt.Errorf("the kernel has no RDMA device %s: see 'rstorectl device list'", args[0])
			}
			d := &all[i]
			return t.g.Print(d, func(w io.Writer) {
				fmt.Fprintf(w, "device\t%s\ndriver\t%s\nkind\t%s\nsoft\t%t\n", d.Name, dash(d.Driver), d.Kind, d.Soft)
				fmt.Fprintf(w, "firmware\t%s\nnode GUID\t%s\n", dash(d.Firmware), dash(d.GUID))
				if d.NUMA != nil {
					fmt.Fprintf(w, "NUMA node\t%d\n", *d.NUMA)
				}
				for _, p := range d.Ports {
					fmt.Fprintf(w, "port %d\t%s, %s, %s, %s, interface %s\n", p.Number, p.State,
						dash(p.Phys), dash(p.Layer), dash(p.Rate), dash(p.NetDev))
					if p.LID != 0 {
						fmt.Fprintf(w, "  LID\t%d\n", p.LID)
					}
					for _, g := range p.GIDs {
						fmt.Fprintf(w, "  GID %d\t%s\t%s\t%s\n", g.Index, g.GID, dash(g.Type), dash(g.NetDev))
					}
				}
			})
		},
	}
	var name string
	add := &cobra.Command{
		Use:   "add {rxe|siw} NETDEV",
		Short: "Make a soft RDMA device on a network interface",
		Long: `Make a soft RDMA device of the kernel on a network interface, until the next boot: rxe is
RoCEv2, siw is iWARP. A Linux client without an RDMA card needs one to mount. It needs root.
rdma_rxe takes UDP port 4791 of all addresses of its network namespace, so
rstored's own RDMA cannot run beside it.`,
		Example:   "  rstorectl device add rxe eth0",
		Args:      cli.Args(cobra.ExactArgs(2)),
		ValidArgs: []string{rdmadev.RXE, rdmadev.SIW},
		RunE: func(_ *cobra.Command, args []string) error {
			kind, netdev := args[0], args[1]
			if kind != rdmadev.RXE && kind != rdmadev.SIW {
				return cli.Usagef("unknown kind of soft device %q: use rxe or siw", kind)
			}
			if name == "" {
				name = kind + "_" + netdev
			}
			if err := rdmadev.Add(kind, netdev, name); err != nil {
				return err
			}
			return t.done(map[string]string{"device": name}, "added %s on %s", name, netdev)
		},
	}
	add.Flags().StringVar(&name, "name", "", "`NAME` of the device; the kind and the interface if not said")
	remove := &cobra.Command{
		Use:     "remove DEVICE",
		Aliases: []string{"rm"},
		Short:   "Remove a soft RDMA device",
		Long: `Remove a soft RDMA device of the kernel. Mounts that use it hang until there is another
on the same interface. It needs root.`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := rdmadev.Remove(args[0]); err != nil {
				return err
			}
			return t.done(map[string]string{"device": args[0]}, "removed %s", args[0])
		},
	}
	return group("device", "List, make and remove the RDMA devices of this host's kernel", list, show, add, remove)
}

// addresses lists each address by which other hosts reach a port, once. The GIDs of an iWARP device
// are MAC addresses, so the addresses of its network interface take their place.
func addresses(d *sysfs.Device, p *sysfs.Port, interfaceAddrs func(string) []netip.Addr) []string {
	var all []netip.Addr
	switch {
	case d.Kind == sysfs.RNIC:
		all = interfaceAddrs(p.NetDev)
	case p.Layer != "InfiniBand":
		for _, g := range p.GIDs {
			all = append(all, g.Addr())
		}
	}
	var out []string
	for _, a := range all {
		if s := a.String(); a.IsValid() && !a.IsLinkLocalUnicast() && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	if p.LID != 0 {
		out = append(out, "LID "+strconv.Itoa(int(p.LID)))
	}
	return out
}

// interfaceAddrs returns the addresses of a network interface.
func interfaceAddrs(name string) (out []netip.Addr) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	list, err := i.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr())
		}
	}
	return out
}
