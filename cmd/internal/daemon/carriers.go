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
	at, cfg := boundAddr(l), d.cfg.Load()
	t := tcp.Config{
		MaxConns: cfg.MaxConnections, Door: d.door, WriteTimeout: cfg.SlowTimeout, Logger: d.log.Slog("tcp"),
		TLS: d.tlsConfig, Secured: d.secured, Later: true,
	}.Serve(l, srv)
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
	cfg := d.cfg.Load()
	if d.memory == nil {
		if d.memory, err = rpcrdma.NewMemory(cfg.MemoryBytes(), rpcrdma.Config{}); err != nil {
			return endpoint{}, errors.Join(err, dev.release())
		}
	}
	l, err := rpcrdma.ServeHandler(dev, at.Port(), func(p rpc.Peer, _ func()) (rpcrdma.Handler, error) { return d.connected(p), nil },
		rpcrdma.Config{MaxConns: cfg.MaxConnections, Shared: d.memory, Door: d.door, SlowTimeout: cfg.SlowTimeout, Logger: d.log.Slog("rpcrdma")})
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

// freeMemory gives the memory of the RDMA ports back once all are closed, unless err says that
// something may be using it yet.
func (d *Daemon) freeMemory(err error) {
	if err == nil && d.memory != nil {
		_ = d.memory.Close()
		d.memory = nil
	}
}
