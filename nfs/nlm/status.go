package nlm

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The status monitor (NSM) reports restarts to other hosts. A client that has restarted calls
// NOTIFY here, and the server ends the client's locks. After a restart of this server, the server
// calls NOTIFY of each client that had locks, and the client reclaims them. MON and UNMON are
// refused: only programs of the monitor's own host may call them.
//
// NOTIFY has no authentication. A forged one would end the locks of a client that is up, without
// its knowledge. So gone compares the source address, and for exports with the option secure also
// the source port. Over TCP and RDMA that keeps other hosts out. Over UDP both can be forged.

func (s *Server) statusProcs() []rpc.Proc {
	p := make([]rpc.Proc, numStatusProcs)
	p[StatusNull] = rpc.Proc{Name: "NULL", Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }}
	refuse := func(c *rpc.Call, _ bool) rpc.Status {
		const statFail = 1
		c.Res.Uint32(statFail)
		c.Res.Uint32(uint32(s.cfg.State))
		return rpc.Done
	}
	p[StatusStat] = rpc.Proc{Name: "STAT", Serve: refuse}
	p[StatusMon] = rpc.Proc{Name: "MON", Serve: refuse}
	p[StatusUnmon] = rpc.Proc{Name: "UNMON", Serve: func(c *rpc.Call, _ bool) rpc.Status {
		c.Res.Uint32(uint32(s.cfg.State))
		return rpc.Done
	}}
	p[StatusNotify] = rpc.Proc{Name: "NOTIFY", Serve: func(c *rpc.Call, _ bool) rpc.Status {
		name := c.Args.String(stringMax)
		c.Args.Uint32() // state
		if c.Args.Err() != nil {
			return rpc.Garbage
		}
		s.gone(&c.Peer, name)
		return rpc.Done
	}}
	return p
}

// gone ends the locks of a client that has restarted. It finds the client by address and name;
// either name may lack its domain. Another host cannot end the client's locks, unless UDP is served
// and it forges the source. Nor can a user without privileges on the client's own host, if an
// export requires ports below 1024.
func (s *Server) gone(peer *rpc.Peer, name string) {
	addr := peer.Addr.Addr().Unmap()
	const reserved = 1024
	if peer.Addr.Port() >= reserved && slices.ContainsFunc(s.cfg.Exports.Exports(), func(x *nfs.Export) bool {
		rule, st := x.Rule(addr)
		return st == nfs.OK && rule.Secure
	}) {
		s.log.Warn("a client's restart was announced from an unprivileged port and is ignored; its locks stay",
			"client", name, "addr", peer.Addr.String())
		return
	}
	short, _, _ := strings.Cut(name, ".")
	s.mu.Lock()
	var list []string
	for k, c := range s.clients {
		if n, _, _ := strings.Cut(c.Name, "."); c.Addr == addr && (c.Name == name || n == short || name == addr.String()) {
			list = append(list, k)
		}
	}
	s.mu.Unlock()
	for _, k := range list {
		had := s.cfg.Locks.Drop(k)
		if s.cfg.Shares != nil {
			s.cfg.Shares.UnreserveAll(k)
		}
		s.log.Info("a client has restarted; its locks are released", "client", name, "addr", addr.String(), "held_locks", had)
	}
}

// remember adds a client to the list of those that get NOTIFY after the next start. In a full list
// it replaces a client without locks. It returns false if all clients of a full list have locks, or
// if the list cannot be written.
func (s *Server) remember(c Client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := c.key()
	if old, ok := s.clients[k]; ok && old == c {
		return true
	}
	if len(s.clients) >= clientsMax {
		for old := range s.clients {
			if !s.cfg.Locks.Holds(old) {
				delete(s.clients, old)
				break
			}
		}
	}
	if len(s.clients) >= clientsMax {
		return false
	}
	s.clients[k] = c
	list := slices.SortedFunc(maps.Values(s.clients), func(a, b Client) int { return strings.Compare(a.key(), b.key()) })
	if err := s.cfg.Remember(list); err != nil {
		s.log.Error("a client gets no locks: its name cannot be written to the state directory",
			"client", c.Name, "error", err.Error())
		delete(s.clients, k)
		return false
	}
	return true
}

// notify calls NOTIFY of a client's status monitor until the client answers, or until it can no
// longer reclaim its locks.
func (s *Server) notify(ctx context.Context, c Client, state int32) {
	const pause = 5 * time.Second
	done := func() {
		s.mu.Lock()
		delete(s.notices, c)
		s.mu.Unlock()
	}
	for s.grace() {
		err := s.call(ctx, callTries, c.Addr, StatusProgram, StatusVersion, StatusNotify, func(e *xdr.Encoder) {
			// mon_name: the client compares it with the server's address, or resolves it.
			e.String(c.Server.String())
			e.Uint32(uint32(state))
		}, nil)
		if err == nil {
			done()
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
	if ctx.Err() == nil {
		done()
		s.log.Warn("a client with locks could not be notified of the restart of the server; its locks are lost",
			"client", c.Name, "addr", c.Addr.String())
	}
}
