package service

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// lateNFS4 is the server of version 4 for the lock manager. Each of the two needs the other, so its
// Server is set after both are made and before any call is served.
type lateNFS4 struct{ *nfs4.Server }

// newNLM makes the lock manager. starts is the number of the start that it announces to clients.
func (s *Service) newNLM(common *nfs.Config, v4 *lateNFS4, starts int32) *nlm.Server {
	cfg := nlm.Config{
		Exports: s.Table, Codec: common.Codec, Groups: s.IDMap, Locks: s.LockTable, State: starts,
		Call: s.callHost, Remember: s.State.SetLockClients,
		OthersReclaim: func() bool { return v4.State().Grace(clock.Now()) },
		EndExpired:    func(client string) bool { return v4.State().EndExpired(clock.Now(), client) },
		Delegations:   v4, Shares: v4,
		Logger: s.Log.Slog("nlm"),
	}
	if s.From == nil && slices.Contains(s.Settings().NFSVersions, config.Version3) {
		cfg.Known = s.State.LockClients()
	}
	return nlm.New(cfg)
}

// callHost calls a program of another host, whose portmap knows the port. A server that may not
// serve any more grants no locks: it calls nobody.
func (s *Service) callHost(ctx context.Context, host netip.Addr, prog, vers, proc uint32, args func(*xdr.Encoder),
	res func(*xdr.Decoder) error,
) error {
	dial := func(port uint16) (*tcp.Client, error) {
		return tcp.Dial(ctx, net.JoinHostPort(host.String(), strconv.Itoa(int(port))))
	}
	pm, err := dial(portmap.Port)
	if err != nil {
		return err
	}
	port, err := client.Port(ctx, pm, prog, vers)
	_ = pm.Close()
	if err != nil {
		return err
	}
	c, err := dial(port)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if may := s.mayServe(); may != nil && !may() {
		return errors.New("this node has lost the lease on the state directory")
	}
	return c.Call(ctx, &rpc.Request{Prog: prog, Vers: vers, Proc: proc, Args: args, Res: res})
}

// reclaiming reports whether the only locks that clients get now are those that they reclaim.
func (s *Service) reclaiming() bool { return s.NFS4.State().GracePending() || s.NLM.Grace() }

// hostRetry is the time between two attempts to take reclaimed locks on the host.
const hostRetry = time.Second

// lockOnHost takes locks on the host when the process that served before, on a node that was
// stopped, no longer has them.
func (s *Service) lockOnHost() {
	for t := time.NewTicker(hostRetry); ; {
		select {
		case <-s.end:
			t.Stop()
			return
		case <-t.C:
		}
		if s.LockTable.RetryHost() == 0 && !s.reclaiming() {
			t.Stop()
			return
		}
	}
}
