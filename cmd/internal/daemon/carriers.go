package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// serveTCP serves the file programs on a listener.
func (d *Daemon) serveTCP(l net.Listener) (endpoint, error) { return d.serveOn(l, d.rpc) }

// servePortmap answers queries about the other ports on a listener.
func (d *Daemon) servePortmap(l net.Listener) (endpoint, error) { return d.serveOn(l, d.portmap) }

func (d *Daemon) serveOn(l net.Listener, srv *rpc.Server) (endpoint, error) {
	at := boundAddr(l)
	t := tcp.Config{Logger: d.log.Slog("tcp"), TLS: d.tlsConfig, Secured: d.secured, Later: true}.Serve(l, srv)
	if d.from != nil {
		if err := d.from.tcp(t, at); err != nil {
			return endpoint{}, errors.Join(err, t.Close())
		}
	}
	d.from.later(t.Start)
	d.meters.addTCP(t)
	return endpoint{addr: at, tcp: t, stop: func(ctx context.Context) error {
		err := t.Shutdown(ctx)
		d.meters.dropTCP(t)
		return err
	}}, nil
}

// serveRDMA serves the file programs on a port of a device, which it opens if
// it is the first on that address. Call with mu held.
func (d *Daemon) serveRDMA(at netip.AddrPort) (endpoint, error) {
	dev, err := d.acquire(at.Addr())
	if err != nil {
		return endpoint{}, err
	}
	l, err := rpcrdma.ServeHandler(dev, at.Port(), func(p rpc.Peer, _ func()) (rpcrdma.Handler, error) { return d.connected(p), nil }, rpcrdma.Config{MaxConns: d.cfg.Load().MaxConnections, Logger: d.log.Slog("rpcrdma")})
	if err != nil {
		_ = dev.release()
		return endpoint{}, err
	}
	if d.from != nil {
		if err := d.from.rdma(l, at); err != nil {
			return endpoint{}, err // and the process ends
		}
	}
	d.meters.addRDMA(l)
	return endpoint{addr: at, rdma: l, stop: func(ctx context.Context) error {
		err := l.Shutdown(ctx)
		d.meters.dropRDMA(l)
		return errors.Join(err, dev.release())
	}}, nil
}
