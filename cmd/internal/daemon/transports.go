package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"go.uber.org/zap"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/provider"
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
		MaxConns: cfg.MaxConnections, Limiter: d.connLimiter, WriteTimeout: cfg.SlowTimeout, Logger: d.log.Slog("tcp"),
		TLS: d.tlsConfig, Secured: d.secured, Later: true,
	}.Serve(l, srv)
	if d.from != nil {
		if err := d.from.tcp(t, at); err != nil {
			return endpoint{}, errors.Join(err, t.Close())
		}
	}
	d.from.whenServing(t.Start)
	d.counters.AddTCP(t)
	return endpoint{addr: at, tcp: t, stop: func(ctx context.Context) error {
		err := t.Shutdown(ctx)
		d.counters.DropTCP(t)
		return err
	}}, nil
}

// serveRDMA serves the file programs on a port of a device, which it opens if
// it is the first on that address. Call with mu held.
func (d *Daemon) serveRDMA(c provider.Choice, port uint16) (endpoint, error) {
	dev, err := d.acquire(c)
	if err != nil {
		return endpoint{}, err
	}
	at := netip.AddrPortFrom(dev.addr, port)
	cfg := d.cfg.Load()
	rc := rpcrdma.Config{
		MaxConns: cfg.MaxConnections, Limiter: d.connLimiter, SlowTimeout: cfg.SlowTimeout,
		Logger: d.log.Slog("rpcrdma"), Pinned: dev.kernel != nil,
	}
	mem, bytes := &d.memory, cfg.MemoryBytes()
	if rc.Pinned {
		mem = &d.pinned
		bytes = d.within(dev, &rc, bytes)
	}
	if *mem == nil {
		if *mem, err = rpcrdma.NewMemory(bytes, rpcrdma.Config{Pinned: rc.Pinned}); err != nil {
			return endpoint{}, errors.Join(err, dev.release())
		}
	}
	rc.Shared = *mem
	l, err := rpcrdma.ServeHandler(dev.Device, port,
		func(p rpc.Peer, _ func()) (rpcrdma.Handler, error) { return d.connected(p, dev), nil }, rc)
	if err != nil {
		_ = dev.release()
		return endpoint{}, err
	}
	if d.from != nil {
		if err := d.from.rdma(l, at); err != nil {
			return endpoint{}, err // and the process ends
		}
	}
	d.counters.AddRDMA(l)
	return endpoint{addr: at, dev: dev, rdma: l, stop: func(ctx context.Context) error {
		err := l.Shutdown(ctx)
		d.counters.DropRDMA(l)
		return errors.Join(err, dev.release())
	}}, nil
}

// within brings what is configured down to what a device offers; the rest of its limits rpcrdma
// keeps to. It returns the memory that can be registered.
func (d *Daemon) within(dev *device, rc *rpcrdma.Config, bytes int) int {
	lim := rdma.LimitsOf(dev.Device)
	if lim.QPs > 0 && lim.QPs < rc.MaxConns {
		d.log.Info("an RDMA device has fewer queue pairs than max_connections", zap.String("device", dev.name()),
			zap.Int("queue_pairs", lim.QPs), zap.Int("max_connections", rc.MaxConns))
		rc.MaxConns = lim.QPs
	}
	if lim.RegionBytes > 0 && lim.RegionBytes < uint64(bytes) {
		d.log.Warn("an RDMA device takes less memory in one piece than the setting memory",
			zap.String("device", dev.name()), zap.Uint64("bytes", lim.RegionBytes), zap.Int("memory", bytes))
		bytes = int(lim.RegionBytes)
	}
	return bytes
}

// freeMemory gives the memory of the RDMA ports back once all are closed, unless err says that
// something may be using it yet.
func (d *Daemon) freeMemory(err error) {
	for _, m := range []**rpcrdma.Memory{&d.memory, &d.pinned} {
		if err == nil && *m != nil {
			_ = (*m).Close()
			*m = nil
		}
	}
}
