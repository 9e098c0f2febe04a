// Package bridge makes a server that speaks RPC-over-RDMA reachable for clients
// that speak RPC over TCP only. It takes record-marked calls of NFS version 3
// and MOUNT version 3, sends each on over a client of package rpc, and answers
// portmap queries with its own port.
//
// The bridge knows the calls that carry bulk data, so that data moves by RDMA on
// the far side: READ and READLINK results, WRITE and SYMLINK arguments (RFC 8267
// section 2). Everything else passes as it is. Calls keep their credentials;
// the far server sees the address of the bridge.
package bridge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// defaultWorkers is how many calls are under way at once.
const defaultWorkers = 64

// Config describes a Bridge.
type Config struct {
	// Far takes the calls. It belongs to the caller and is to outlive the bridge.
	Far rpc.Client
	// Workers is the number of calls under way at once; more wait. 0 means 64.
	Workers int
	// Logger gets what an operator should know; nil is silent.
	Logger *slog.Logger
}

// Bridge forwards calls. Its methods may be called from any goroutine.
type Bridge struct {
	far    rpc.Client
	log    *slog.Logger
	srv    *rpc.Server
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	nfs   netip.AddrPort // where portmap says that NFS and MOUNT are
	ports []*tcp.Listener
}

// New makes a bridge that listens nowhere yet.
func New(cfg Config) *Bridge {
	if cfg.Workers <= 0 {
		cfg.Workers = defaultWorkers
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Bridge{far: cfg.Far, log: cfg.Logger}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	programs := portmap.Programs(b.services)
	// The tables of our own server have the names of the procedures, and which
	// of them are not to be done twice: a call that a TCP client sends again is
	// answered from the bridge's reply cache.
	for _, p := range nfs3.Programs(nfs.Config{}) {
		own := p.Procs
		p.Procs = make([]rpc.Proc, len(own))
		for i := range own {
			p.Procs[i] = rpc.Proc{Name: own[i].Name, Mutates: own[i].Mutates, Serve: b.forward}
		}
		programs = append(programs, p)
	}
	b.srv = rpc.NewServer(rpc.ServerConfig{Programs: programs, Workers: cfg.Workers, Logger: cfg.Logger})
	return b
}

// Serve takes calls from a listener until Close. The first listener is the one
// that portmap queries are answered with; serve another on port 111 for clients
// that ask there.
func (b *Bridge) Serve(l net.Listener) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a, ok := l.Addr().(*net.TCPAddr); ok && !b.nfs.IsValid() {
		b.nfs = a.AddrPort()
	}
	b.ports = append(b.ports, tcp.Serve(l, b.srv))
}

// services is what portmap tells.
func (b *Bridge) services() []portmap.Service {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.nfs.IsValid() {
		return nil
	}
	return []portmap.Service{
		{Program: nfs3.Program, Version: nfs3.Version, Transport: rpc.TransportTCP, Addr: b.nfs},
		{Program: nfs3.MountProgram, Version: nfs3.MountVersion, Transport: rpc.TransportTCP, Addr: b.nfs},
	}
}

// Stats are the counts of what was forwarded, by procedure.
func (b *Bridge) Stats() rpc.Stats { return b.srv.Stats() }

// Close ends the listeners and the calls under way.
func (b *Bridge) Close() error {
	b.cancel()
	b.mu.Lock()
	ports := b.ports
	b.ports = nil
	b.mu.Unlock()
	var err error
	for _, l := range ports {
		err = errors.Join(err, l.Close())
	}
	b.srv.Close()
	return err
}

// forward sends one call on and waits for its reply.
func (b *Bridge) forward(c *rpc.Call, mayBlock bool) rpc.Status {
	if !mayBlock {
		return rpc.Again
	}
	p, ok := planOf(c)
	if !ok {
		return rpc.Garbage
	}
	if p.result > 0 {
		if p.dst = c.Payload(p.result); len(p.dst) != p.result {
			b.log.Warn("no memory for the data of a call", "bytes", p.result)
			return rpc.Drop // the client sends it again
		}
	}
	base := len(c.Res.B)
	cred := c.Cred
	err := b.far.Call(b.ctx, &rpc.Request{
		Prog: c.Prog, Vers: c.Vers, Proc: c.Proc, Cred: &cred, Args: p.encode, Dst: p.dst, ResMax: p.resMax,
		Res: p.relay(&c.Res),
	})
	if err == nil {
		return rpc.Done
	}
	c.Res.Truncate(base)
	var refused *rpc.AcceptError
	var denied *rpc.DeniedError
	var gone *rpc.ConnError
	switch {
	case errors.As(err, &refused) && refused.Stat == rpc.GarbageArgs:
		return rpc.Garbage
	case errors.As(err, &denied):
		return rpc.BadCred
	case errors.As(err, &gone), errors.Is(err, context.Canceled):
		b.log.Warn("a call was lost", "program", c.Prog, "procedure", c.Proc, "error", err)
		return rpc.Drop
	}
	b.log.Warn("a call failed", "program", c.Prog, "procedure", c.Proc, "error", err)
	return rpc.Failed
}
