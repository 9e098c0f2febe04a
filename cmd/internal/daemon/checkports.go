package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/wire"
)

// unserved lists the exports and ports of a configuration that a start could not serve now. A start
// continues without them, and tries them again. unserved does not try ports that a running daemon
// serves: the daemon frees them when it takes the new configuration.
func unserved(ctx context.Context, cfg *config.Config) (list []string) {
	for _, e := range cfg.Exports {
		if e.Type != config.TypePosix {
			continue
		}
		st, err := os.Stat(e.Path)
		if err == nil && !st.IsDir() {
			err = fmt.Errorf("%s is not a directory", e.Path)
		}
		if err != nil {
			list = append(list, fmt.Sprintf("export %s: %v", e.Pseudo, err))
		}
	}
	if c := &cfg.ControlTLS; len(c.Listen) > 0 {
		if err := checkCerts(certs.Files{Cert: c.Cert, Key: c.Key, CA: c.ClientCA}, certs.Require); err != nil {
			list = append(list, fmt.Sprintf("port control %s: %v", strings.Join(c.Listen, " "), err))
		}
	}
	own := running(ctx, cfg.Control)
	for _, t := range []struct {
		transport string
		addrs     []string
	}{
		{control.TransportTCP, slices.Concat(cfg.TCPListen, cfg.MountListen)},
		{control.TransportPortmap, cfg.PortmapListen},
		{control.TransportUDP, cfg.UDPListen},
		{control.TransportOps, cfg.OpsListen},
		{control.TransportControl, cfg.ControlTLS.Listen},
	} {
		for _, a := range t.addrs {
			at, err := config.ParseListen(a)
			network, mine := "tcp", own.tcp
			if t.transport == control.TransportUDP {
				network, mine = "udp", own.udp
			}
			if err != nil || mine[at.Port] {
				continue
			}
			where := netip.AddrPortFrom(at.Addr, at.Port).String()
			switch {
			case !at.Addr.IsValid():
				where = fmt.Sprintf(":%d", at.Port)
			case at.Addr.Is4():
				network += "4"
			}
			var l io.Closer
			if t.transport == control.TransportUDP {
				l, err = new(net.ListenConfig).ListenPacket(ctx, network, where)
			} else {
				l, err = new(net.ListenConfig).Listen(ctx, network, where)
			}
			if err != nil {
				list = append(list, fmt.Sprintf("port %s %s: %v", t.transport, a, plainListen(err)))
				continue
			}
			_ = l.Close()
		}
	}
	for _, a := range cfg.RDMAListen {
		at, err := config.ParseRDMAListen(a)
		if err == nil {
			list = append(list, unservedRDMA(ctx, cfg, a, at, own)...)
		}
	}
	return list
}

// unservedRDMA tries the addresses of a listener over RDMA that a device in user space would serve.
func unservedRDMA(
	ctx context.Context, cfg *config.Config, name string, at config.Listen, own endpoints,
) (list []string) {
	host, kind := provider.System(), provider.Kind(cfg.RDMAProvider)
	if at.Provider != "" {
		kind = at.Provider
	}
	addrs := []netip.Addr{at.Addr}
	if at.Any() && at.Device == "" {
		if kind == provider.Verbs {
			return nil // of the devices that there are, whichever
		}
		var err error
		if addrs, err = config.HostAddresses(); err != nil {
			return []string{fmt.Sprintf("port rdma %s: %v", name, err)}
		}
	}
	for _, a := range addrs {
		if at.Device == "" && !at.Has(a) {
			continue
		}
		c, err := host.Choose(kind, a, at.Device)
		switch {
		case err != nil:
			list = append(list, fmt.Sprintf("port rdma %s: %v", name, err))
			continue
		case c.Kind != provider.Soft, at.Any() && a.IsLoopback() && host.RXE() != "",
			own.rdma[a.Unmap()]:
			continue
		}
		l, err := new(net.ListenConfig).ListenPacket(ctx, "udp", netip.AddrPortFrom(a, wire.Port).String())
		if err != nil {
			list = append(list, fmt.Sprintf("port rdma %s: UDP port %d of %v: %v", name, wire.Port, a, plainListen(err)))
			continue
		}
		_ = l.Close()
	}
	return list
}

// endpoints are what a daemon has: ports of TCP and UDP, on whichever addresses, and addresses of
// RDMA devices in user space, for whichever service ports.
type endpoints struct {
	tcp, udp map[uint16]bool
	rdma     map[netip.Addr]bool
}

// running returns the endpoints of the daemon at a control socket, or nothing if there is no
// daemon.
func running(ctx context.Context, socket string) endpoints {
	own := endpoints{map[uint16]bool{}, map[uint16]bool{}, map[netip.Addr]bool{}}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	ports, err := control.Dial(socket).Ports(ctx)
	if err != nil {
		return own
	}
	for _, p := range ports {
		for _, a := range p.Addresses {
			at, err := netip.ParseAddrPort(a)
			switch {
			case err != nil:
			case len(p.Devices) > 0:
				own.rdma[at.Addr().Unmap()] = true
			case p.Transport == control.TransportUDP:
				own.udp[at.Port()] = true
			default:
				own.tcp[at.Port()] = true
			}
		}
	}
	return own
}

// plainListen returns the reason why the host cannot listen on an address.
func plainListen(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return errors.New("in use by another process")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return errors.New("this host does not have that address")
	case errors.Is(err, syscall.EACCES):
		return errors.New("this user may not listen on ports below 1024")
	}
	return err
}
