package ports

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/udp"
)

// openUDP opens the endpoint of a port over UDP. It serves the port mapper and the programs around
// NFS. Clients that call another program learn that it is not available.
func (s *Set) openUDP(at config.Listen) (endpoint, error) {
	to := netip.AddrPortFrom(at.Addr, at.Port)
	if !at.Addr.IsValid() {
		to = netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port) // both families
	}
	c, release, err := s.Sockets.ListenUDP(to, func() (*net.UDPConn, error) {
		c, err := listen(to, !at.Addr.IsValid(), "udp", func(ctx context.Context, network, where string) (any, error) {
			return new(net.ListenConfig).ListenPacket(ctx, network, where)
		})
		if err != nil {
			return nil, err
		}
		return c.(*net.UDPConn), nil
	})
	if err != nil {
		return endpoint{}, err
	}
	l, err := udp.Config{
		Route: s.routeUDP, Admits: s.Admits, Later: true, Logger: s.Log.Slog("udp"),
	}.Serve(c)
	if err != nil {
		release()
		_ = c.Close()
		return endpoint{}, fmt.Errorf("preparing the socket: %w", err)
	}
	s.From.WhenServing(l.Start)
	s.Counters.AddUDP(l)
	return endpoint{addr: l.Addr(), datagrams: l, stop: func(ctx context.Context) error {
		release()
		err := l.Shutdown(ctx)
		s.Counters.DropUDP(l)
		return err
	}}, nil
}

// routeUDP is udp.Config.Route. The port mapper's server answers for programs that are not served.
// RFC 1833 section 3.2 wants no answer to a CALLIT that fails.
func (s *Set) routeUDP(prog, _, proc uint32) *rpc.Server {
	switch {
	case prog == portmap.Program && proc == portmap.ProcCallIt:
		return nil
	case slices.ContainsFunc(udpPrograms, func(p portmap.Service) bool { return p.Program == prog }):
		return s.RPC
	}
	return s.Portmap
}
