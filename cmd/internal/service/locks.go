package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/udp"
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
	if s.Cluster != nil {
		cfg.Remember, cfg.State = s.rememberHosts, s.Cluster.LockState()
		return nlm.New(cfg)
	}
	if s.From == nil && slices.Contains(s.Settings().NFSVersions, config.Version3) {
		cfg.Known = s.State.LockClients()
	}
	return nlm.New(cfg)
}

// callHost calls a program of another host, whose portmap knows the port: by TCP, and by UDP if
// that does not lead to an answer in half of the time.
func (s *Service) callHost(ctx context.Context, host netip.Addr, prog, vers, proc uint32, args func(*xdr.Encoder),
	res func(*xdr.Decoder) error,
) error {
	half, cancel := ctx, context.CancelFunc(func() {})
	if until, ok := ctx.Deadline(); ok {
		half, cancel = context.WithTimeout(ctx, time.Until(until)/2)
	}
	defer cancel()
	r := &rpc.Request{Prog: prog, Vers: vers, Proc: proc, Args: args, Res: res}
	err := s.callBy(half, portmap.ProtoTCP, host, r)
	if err == nil || errors.Is(err, errNoLease) || ctx.Err() != nil {
		return err
	}
	r.XID = 0
	if e := s.callBy(ctx, portmap.ProtoUDP, host, r); e != nil {
		return fmt.Errorf("by TCP: %w; by UDP: %w", err, e)
	}
	return nil
}

// errNoLease is the error of calls to clients after the lease is lost: a server that may not serve
// grants no locks.
var errNoLease = errors.New("this node has lost the lease on the state directory")

// callBy calls a program of another host by a protocol, portmap.ProtoTCP or portmap.ProtoUDP.
func (s *Service) callBy(ctx context.Context, proto uint32, host netip.Addr, r *rpc.Request) error {
	dial := func(port uint16) (rpc.Client, error) {
		at := netip.AddrPortFrom(host, port)
		if proto == portmap.ProtoUDP {
			return udp.Dial(at)
		}
		return tcp.Dial(ctx, at.String())
	}
	pm, err := dial(portmap.Port)
	if err != nil {
		return err
	}
	port, err := client.Port(ctx, pm, r.Prog, r.Vers, proto)
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
		return errNoLease
	}
	return c.Call(ctx, r)
}

// reclaiming reports whether the only locks that clients get now are those that they reclaim.
func (s *Service) reclaiming() bool { return s.NFS4.State().GracePending() || s.NLM.Grace() }

// hostRetry is the time between two attempts to take reclaimed locks on the host.
const hostRetry = time.Second

// lockHere takes the locks that another node has handed over on this one. That node has released
// them. A program that has taken one since keeps it until it ends.
func (s *Service) lockHere() {
	s.LockTable.Rehost()
	if left := s.LockTable.RetryHost(); left > 0 {
		s.Log.Warn("programs have locked files since the other node has released its locks: both the programs and "+
			"clients have these locks until the programs release them", zap.Int("files", left))
		s.end = make(chan struct{})
		s.ended.Go(s.lockOnHost)
	}
}

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
