package ports

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/audit"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// openOnDevices opens the endpoints of a port over RDMA. Unless must is set, an endpoint waits if
// its device is missing or its address is taken. The error is about the endpoints that are neither
// open nor waiting.
func (s *Set) openOnDevices(p *port, at config.Listen, must bool) error {
	list, err := s.spread(at, p.opened.provider)
	if err != nil && !must {
		s.wait(p, at, provider.Verbs, err)
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	host := s.Devices.Host
	for _, l := range list {
		c, err := s.choose(l, p.opened.provider)
		if err == nil && c.Kind == provider.Verbs && s.From.Waiting() {
			// The old process still has the port. It continues with the port if the handover fails.
			s.wait(p, l, provider.Verbs, errPredecessor)
			continue
		}
		if err == nil && c.Kind == provider.Soft && at.Any() && c.Addr.IsLoopback() && host.RXE() != "" {
			s.Log.Info("not listening on a loopback address, as UDP port 4791 is the kernel's",
				zap.Stringer("address", c.Addr), zap.String("device", host.RXE()))
			continue
		}
		var e endpoint
		if err == nil {
			e, err = s.openOn(p.Transport, c, l)
		}
		switch {
		case err == nil:
			p.ends = append(p.ends, e)
			s.listening(p, &e)
		case provider.Gone(err) && !must:
			s.wait(p, l, provider.Verbs, err)
		case c.Kind == provider.Soft && !must:
			s.wait(p, l, provider.Soft, err)
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// spread returns a listener for each address that a listener stands for.
func (s *Set) spread(at config.Listen, kind provider.Kind) ([]config.Listen, error) {
	if !at.Any() {
		return []config.Listen{at}, nil
	}
	var addrs []netip.Addr
	var err error
	if kind == provider.Verbs {
		if err := s.Devices.Host.Available(); err != nil {
			return nil, err
		}
		if addrs, err = s.Devices.Host.Addresses(); err == nil && len(addrs) == 0 {
			err = errors.New("the kernel has no RDMA device that is up and has an address: see 'rstorectl device list'")
		}
	} else {
		addrs, err = config.HostAddresses()
	}
	list := make([]config.Listen, 0, len(addrs))
	for _, a := range addrs {
		if !at.Has(a) {
			continue
		}
		list = append(list, config.Listen{Addr: a, Port: at.Port, Provider: at.Provider})
	}
	return list, err
}

// choose chooses the provider of a listener's device.
func (s *Set) choose(l config.Listen, kind provider.Kind) (provider.Choice, error) {
	if kind == provider.Auto && s.Devices.Restores(l.Addr) {
		c, err := s.Devices.Host.Choose(provider.Soft, l.Addr, "")
		c.Why = "connections go on that the process before this one had there"
		return c, err
	}
	return s.Devices.Host.Choose(kind, l.Addr, l.Device)
}

// openOn opens an endpoint on a device. The endpoint owns a share of the device, which stop
// releases.
func (s *Set) openOn(transport string, c provider.Choice, l config.Listen) (endpoint, error) {
	dev, err := s.Devices.Acquire(c)
	if err != nil {
		return endpoint{}, err
	}
	e := endpoint{addr: netip.AddrPortFrom(c.Addr, l.Port), dev: dev, want: l}
	serve := s.serveRDMA
	if transport == control.TransportPerf {
		serve = s.servePerf
	}
	if err := serve(&e); err != nil {
		if s.From.Waiting() {
			return endpoint{}, err // the handover fails, and the old process continues with the device's sockets
		}
		return endpoint{}, errors.Join(err, dev.Release())
	}
	stop := e.stop
	e.stop = func(ctx context.Context) error { return errors.Join(stop(ctx), dev.Release()) }
	return e, nil
}

// listening logs that an endpoint is served, and which device was chosen and why.
func (s *Set) listening(p *port, e *endpoint) {
	s.announce(e.addr.Addr())
	if e.dev == nil {
		s.Log.Info("listening", zap.String("transport", p.Transport), zap.Stringer("on", e.addr))
		return
	}
	c := e.dev.Choice
	s.Log.Info("listening", zap.String("transport", p.Transport), zap.Stringer("on", e.addr),
		zap.String("provider", string(c.Kind)), zap.String("device", e.dev.Name()), zap.String("because", c.Why))
	if c.Warning != "" {
		s.Log.Warn("the RDMA device of a port may not do", zap.String("transport", p.Transport),
			zap.Stringer("on", e.addr), zap.String("provider", string(c.Kind)), zap.String("reason", c.Warning))
	}
}

// serveRDMA serves the file programs on an endpoint over RDMA.
func (s *Set) serveRDMA(e *endpoint) error {
	cfg := s.Settings()
	rc := rpcrdma.Config{
		MaxConns: cfg.MaxConnections, Limiter: s.Limiter, SlowTimeout: cfg.SlowTimeout,
		Logger: s.Log.Slog("rpcrdma"), Pinned: e.onKernelDevice(),
	}
	bytes := cfg.MemoryBytes()
	if rc.Pinned {
		bytes = s.limit(e.dev, &rc, bytes)
	}
	if s.memory[rc.Pinned] == nil {
		m, err := rpcrdma.NewMemory(bytes, rpcrdma.Config{Pinned: rc.Pinned})
		if err != nil {
			return err
		}
		s.memory[rc.Pinned] = m
	}
	rc.Shared = s.memory[rc.Pinned]
	l, err := rpcrdma.ServeHandler(e.dev.Device, e.addr.Port(), func(p rpc.Peer, _ func()) (rpcrdma.Handler, error) {
		return newConnection(s.RPC, s.Audit, p, rc.Pinned), nil
	}, rc)
	if err != nil {
		return err
	}
	if err := s.restore(l, e.addr); err != nil {
		return err
	}
	s.Counters.AddRDMA(l)
	e.listener = l
	e.stop = func(ctx context.Context) error {
		err := l.Shutdown(ctx)
		s.Counters.DropRDMA(l)
		return err
	}
	return nil
}

// limit reduces the settings of a listener to the limits of a kernel device, and returns the memory
// that the device can register. Package rpcrdma heeds the other limits of the device.
func (s *Set) limit(dev *devices.Device, rc *rpcrdma.Config, bytes int) int {
	lim := rdma.LimitsOf(dev.Device)
	if lim.QPs > 0 && lim.QPs < rc.MaxConns {
		s.Log.Info("an RDMA device has fewer queue pairs than max_connections", zap.String("device", dev.Name()),
			zap.Int("queue_pairs", lim.QPs), zap.Int("max_connections", rc.MaxConns))
		rc.MaxConns = lim.QPs
	}
	if lim.RegionBytes > 0 && lim.RegionBytes < uint64(bytes) {
		s.Log.Warn("an RDMA device takes less memory in one piece than the setting memory",
			zap.String("device", dev.Name()), zap.Uint64("bytes", lim.RegionBytes), zap.Int("memory", bytes))
		bytes = int(lim.RegionBytes)
	}
	return bytes
}

// Memory returns the use of the memory of the RDMA ports.
func (s *Set) Memory() (sum control.Memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, mem := range s.memory {
		m := mem.Stats(0)
		sum.Limit += m.Limit
		sum.Messages += m.Messages
		sum.Bulk += m.Bulk
		sum.Peak += m.Peak
		sum.Waiting += m.Waiting
		if sum.Share == 0 || m.Share < sum.Share {
			sum.Share = m.Share
		}
	}
	return sum
}

// FreeMemory frees the memory of the RDMA ports. It must not be called while a device or a call may
// still use it.
func (s *Set) FreeMemory() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.memory {
		_ = m.Close()
	}
	clear(s.memory)
}

// connection serves the calls of a connection over RDMA, and records the begin and the end of the
// connection in the audit log.
type connection struct {
	rpc   *rpc.Server
	audit *audit.Log
	peer  rpc.Peer
	// kernel says that the device is the kernel's. The kernel refuses system calls on such a device
	// by a thread that has ever had another user's credentials (ib_safe_file_access). The threads
	// that serve calls have had such credentials, so other threads post replies.
	kernel bool
}

func newConnection(srv *rpc.Server, log *audit.Log, p rpc.Peer, kernel bool) *connection {
	log.Event("rdma_connect", zap.String("client", p.Addr.String()), zap.String("local", p.Local.String()),
		zap.String("pkey", fmt.Sprintf("%#04x", p.PKey)))
	return &connection{srv, log, p, kernel}
}

// Dispatch implements rpcrdma.Handler.
func (c *connection) Dispatch(call *rpc.Call, msg xdr.Decoder, mayBlock bool) {
	call.Elsewhere = c.kernel
	c.rpc.Dispatch(call, msg, mayBlock)
}

// Pace implements rpcrdma.Pacer.
func (c *connection) Pace(call *rpc.Call, msg xdr.Decoder, bulk int, take bool) (uint32, time.Duration, bool) {
	return c.rpc.Pace(call, msg, bulk, take)
}

// Close implements io.Closer: the connection has ended.
func (c *connection) Close() error {
	c.audit.Event("rdma_disconnect", zap.String("client", c.peer.Addr.String()),
		zap.String("local", c.peer.Local.String()))
	return nil
}
