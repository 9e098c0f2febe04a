package ports

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// openIP opens the endpoint of a port without RDMA, for RPC or for HTTP.
func (s *Set) openIP(transport string, at config.Listen) (endpoint, error) {
	var serve func(net.Listener) (endpoint, error)
	switch transport {
	case control.TransportUDP:
		return s.openUDP(at)
	case control.TransportTCP:
		serve = func(l net.Listener) (endpoint, error) { return s.serveRPC(l, s.RPC) }
	case control.TransportPortmap:
		serve = func(l net.Listener) (endpoint, error) { return s.serveRPC(l, s.Portmap) }
	case control.TransportOps:
		serve = func(l net.Listener) (endpoint, error) {
			// A process that does not serve yet answers no health check, and has no metrics.
			var stop func(context.Context) error
			s.From.WhenServing(func() { stop = s.Ops(l) })
			return endpoint{stop: func(ctx context.Context) error { return stop(ctx) }}, nil
		}
	case control.TransportControl:
		remote, err := s.remoteControl() // before a client can connect
		if err != nil {
			return endpoint{}, err
		}
		serve = func(l net.Listener) (endpoint, error) {
			var stop func()
			s.From.WhenServing(func() { stop = s.Control.ServeRemote(l, remote) })
			return endpoint{stop: func(context.Context) error { stop(); return nil }}, nil
		}
	default:
		return endpoint{}, fmt.Errorf("unknown transport %q: use one of %s", transport,
			strings.Join(control.Transports, ", "))
	}
	to := netip.AddrPortFrom(at.Addr, at.Port)
	if !at.Addr.IsValid() {
		to = netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port) // both families
	}
	l, err := s.Sockets.Listen(to, func() (net.Listener, error) { return listenTCP(to, !at.Addr.IsValid()) })
	if err != nil {
		return endpoint{}, err
	}
	e, err := serve(l)
	e.addr = boundAddr(l)
	return e, err
}

// listenTCP listens for connections.
func listenTCP(at netip.AddrPort, everywhere bool) (net.Listener, error) {
	l, err := listen(at, everywhere, "tcp", func(ctx context.Context, network, where string) (any, error) {
		return new(net.ListenConfig).Listen(ctx, network, where)
	})
	if err != nil {
		return nil, err
	}
	return l.(net.Listener), nil
}

// listen opens a socket on one address, or on all addresses of both families. If the host has no
// IPv6, it uses IPv4.
func listen(at netip.AddrPort, everywhere bool, network string,
	open func(ctx context.Context, network, where string) (any, error),
) (any, error) {
	where := at.String()
	switch {
	case everywhere:
		where = fmt.Sprintf(":%d", at.Port())
	case at.Addr().Is4():
		network += "4" // "tcp" makes 0.0.0.0 an address of both families
	}
	l, err := open(context.Background(), network, where)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("in use by another process; choose another port (%w)", syscall.EADDRINUSE)
	case errors.Is(err, syscall.EACCES):
		return nil, errors.New("ports below 1024 need CAP_NET_BIND_SERVICE")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, errors.New("this host does not have that address")
	}
	return l, err
}

// boundAddr returns the address of a listener.
func boundAddr(l net.Listener) netip.AddrPort {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		ap := a.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// serveRPC serves the programs of a server on a listener.
func (s *Set) serveRPC(l net.Listener, srv *rpc.Server) (endpoint, error) {
	cfg := s.Settings()
	t := tcp.Config{
		MaxConns: cfg.MaxConnections, Limiter: s.Limiter, WriteTimeout: cfg.SlowTimeout, Logger: s.Log.Slog("tcp"),
		TLS: s.TLS.config, Secured: s.TLS.secured, Later: true, Reset: cfg.HALease != 0,
	}.Serve(l, srv)
	if err := s.restore(t, boundAddr(l)); err != nil {
		return endpoint{}, errors.Join(err, t.Close())
	}
	list, unfollow, err := s.followTCP(t, boundAddr(l))
	if err != nil {
		return endpoint{}, errors.Join(err, t.Close())
	}
	s.From.WhenServing(t.Start)
	s.Counters.AddTCP(t)
	return endpoint{listener: t, list: list, stop: func(ctx context.Context) error {
		unfollow()
		err := t.Shutdown(ctx)
		s.Counters.DropTCP(t)
		return err
	}}, nil
}
