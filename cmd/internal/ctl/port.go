package ctl

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// defaultPorts are the port numbers of the transports.
var defaultPorts = map[string]uint16{
	control.TransportRDMA:    config.RDMAPort,
	control.TransportTCP:     config.TCPPort,
	control.TransportPortmap: config.PortmapPort,
	control.TransportUDP:     config.PortmapPort,
	control.TransportPerf:    config.PerfPort,
	control.TransportOps:     config.OpsPort,
	control.TransportControl: config.ControlPort,
}

func (t *tool) port() *cobra.Command {
	complete := func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return control.Transports, cobra.ShellCompDirectiveNoFileComp
	}
	const long = `
TRANSPORT is rdma (port 20049 by default), tcp (2049), portmap (111, over TCP), udp (111: the port
mapper, MOUNT, locks and quotas for clients that ask by UDP), perf (18515), ops (9049) or control
(9048, if control_tls has its certificates). Without an address the port is on
every address of the host. For rdma and perf, soft://ADDR and verbs://ADDR choose the provider of
the RDMA device, user space or the kernel. verbs://DEVICE names a device of the kernel, such as mlx5_0.`
	add := &cobra.Command{
		Use:   "add TRANSPORT [PROVIDER://][ADDR][:PORT]",
		Short: "Listen on another port, now and after restarts",
		Long:  "Listen on another port, now and after restarts." + long,
		Example: `  rstorectl port add rdma 192.168.7.1
  rstorectl port add rdma verbs://mlx5_0
  rstorectl port add tcp 127.0.0.1:3049`,
		Args:              cli.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := portSpec(args)
			if err != nil {
				return err
			}
			p, err := t.daemon().AddPort(cmd.Context(), spec)
			if err != nil {
				return err
			}
			return t.g.Print(p, func(w io.Writer) {
				t.sayf(w, "listening on %s %s", p.Transport, strings.Join(p.Addresses, " "))
				if p.Error != "" {
					t.sayf(w, "but: %s", p.Error)
				}
			})
		},
	}
	remove := &cobra.Command{
		Use:               "remove TRANSPORT [PROVIDER://][ADDR][:PORT]",
		Aliases:           []string{"rm", "delete"},
		Short:             "Stop listening on a port, now and after restarts",
		Long:              "Stop listening on a port, now and after restarts. Its connections end." + long,
		Args:              cli.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := portSpec(args)
			if err != nil {
				return err
			}
			if err := t.daemon().RemovePort(cmd.Context(), spec); err != nil {
				return err
			}
			return t.done(spec, "removed port %s %s", spec.Transport, spec.Listen)
		},
	}
	all := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the ports",
		RunE: list(t, (*control.Dialer).Ports, "TRANSPORT\tLISTEN\tADDRESSES\tDEVICES\tORIGIN\tSTATE",
			func(p *control.Port) []any {
				return []any{
					p.Transport, p.Listen, dash(strings.Join(p.Addresses, " ")), dash(strings.Join(p.Devices, " ")), p.Origin,
					cmp.Or(strings.ReplaceAll(p.Error, "\n", "; "), "listening"),
				}
			}),
	}
	return group("port", "Manage the ports that are served", add, remove, all)
}

// portSpec reads TRANSPORT [WHERE]; see listenAt.
func portSpec(args []string) (control.PortSpec, error) {
	p := control.PortSpec{Transport: args[0]}
	if !slices.Contains(control.Transports, p.Transport) {
		return p, cli.Usagef("unknown transport %q: use %s", p.Transport, strings.Join(control.Transports, ", "))
	}
	l := config.Listen{Port: defaultPorts[p.Transport]}
	if len(args) == 2 {
		var err error
		if l, err = listenAt(p.Transport, args[1], l.Port); err != nil {
			return p, cli.Usagef("%v", err)
		}
	}
	p.Listen = l.String()
	return p, nil
}

// listenAt reads where to listen: ADDR:PORT, an address, or a port number. For RDMA a provider can
// stand before the address, and a device can replace the address.
func listenAt(transport, where string, port uint16) (config.Listen, error) {
	parse := config.ParseListen
	kind, host, ok := strings.Cut(where, "://")
	switch onDevice := transport == control.TransportRDMA || transport == control.TransportPerf; {
	case ok && !onDevice:
		return config.Listen{}, fmt.Errorf("%q: only rdma and perf have a provider", where)
	case ok:
		parse = config.ParseRDMAListen
		kind += "://"
	default:
		kind, host = "", where
	}
	_, _, err := net.SplitHostPort(host)
	_, err2 := strconv.ParseUint(host, 10, 16)
	switch a, err3 := netip.ParseAddr(strings.Trim(host, "[]")); {
	case err3 == nil:
		return parse(kind + netip.AddrPortFrom(a, port).String())
	case err2 == nil:
		return parse(kind + ":" + host)
	case err != nil && ok: // a device
		return parse(kind + net.JoinHostPort(host, strconv.Itoa(int(port))))
	}
	return parse(kind + host)
}
