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

// The status monitor tells hosts of each other's restarts. Ours is told of those of
// clients, whose locks then go, and tells clients of its own, who then reclaim
// theirs. It watches nobody by itself, and nothing of this host has it watch.

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

// gone takes the locks of a client that has started anew. It is known by its
// address and by its name, of which it may leave out or add the domain; nobody can
// speak for a host with another address. Where an export wants its calls from ports below 1024, no
// other user of the host can speak for it.
func (s *Server) gone(peer *rpc.Peer, name string) {
	addr := peer.Addr.Addr().Unmap()
	const reserved = 1024
	if peer.Addr.Port() >= reserved && slices.ContainsFunc(s.cfg.Exports.Exports(), func(x *nfs.Export) bool {
		rule, st := x.Rule(addr)
		return st == nfs.OK && rule.Secure
	}) {
		s.log.Warn("a client is said to have started anew, from a port that any of its users may use; its locks stay", "client", name, "addr", peer.Addr.String())
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
		s.log.Info("a client has started anew", "client", name, "addr", addr.String(), "held_locks", had)
	}
}

// remember adds a client to those who are told of the next start.
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
		s.log.Error("a client gets no locks: it could not be remembered for the next start", "client", c.Name, "error", err.Error())
		delete(s.clients, k)
		return false
	}
	return true
}

// notify tells a client's status monitor that the server has started anew, for
// as long as the client may reclaim its locks.
func (s *Server) notify(ctx context.Context, c Client) {
	const pause = 5 * time.Second
	done := func() {
		s.mu.Lock()
		delete(s.notices, c)
		s.mu.Unlock()
	}
	for s.grace() {
		err := s.call(ctx, c.Addr, StatusProgram, StatusVersion, StatusNotify, func(e *xdr.Encoder) {
			// A client knows its server by address, or by a name that has it.
			e.String(c.Server.String())
			e.Uint32(uint32(s.cfg.State))
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
		s.log.Warn("a client with locks could not be told that the server has started anew; its locks are lost",
			"client", c.Name, "addr", c.Addr.String())
	}
}
