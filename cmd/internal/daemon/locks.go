package daemon

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// wireLocks makes the lock service, which goes on with what an earlier run left.
func (d *Daemon) wireLocks(cfg nlm.Config) error {
	var number int32
	if d.from == nil { // else it goes on, and has told nobody of an end
		var err error
		if number, err = d.state.NextLockState(); err != nil {
			return err
		}
	}
	d.locks = lock.New(0)
	d.locks.UseHost(d.table.HostLocker)
	cfg.Locks, cfg.State = d.locks, number
	if d.from == nil && slices.Contains(d.cfg.Load().NFSVersions, config.Version3) {
		cfg.Known = d.state.LockClients()
	}
	cfg.Call, cfg.Remember = callHost, d.state.SetLockClients
	// Version 4 is wired behind this, but before anything is served.
	cfg.OthersReclaim = func() bool { return d.nfs4.State().Grace(clock.Now()) }
	cfg.Silent = func(client string) bool { return d.nfs4.State().Silent(clock.Now(), client) }
	cfg.Delegations, cfg.Shares = delegations{d}, reservations{d}
	cfg.Logger = d.log.Slog("nlm")
	d.nlm = nlm.New(cfg)
	return nil
}

// delegations are those of version 4, which is wired behind who asks for them.
type delegations struct{ d *Daemon }

func (g delegations) Free(f lock.File, change, mayWait bool) bool {
	return g.d.nfs4.Free(f, change, mayWait)
}

func (g delegations) Delegating() bool { return g.d.nfs4.Delegating() }

func (g delegations) BeginChange(f lock.File) (begun, ok bool) { return g.d.nfs4.BeginChange(f) }
func (g delegations) EndChange(f lock.File)                    { g.d.nfs4.EndChange(f) }

// reservations are those of version 4, likewise.
type reservations struct{ d *Daemon }

func (r reservations) Denying() bool { return r.d.nfs4.Denying() }

func (r reservations) Denied(f lock.File, host netip.Addr, write, mayWait bool) bool {
	return r.d.nfs4.Denied(f, host, write, mayWait)
}

func (r reservations) Reserve(f lock.File, owner lock.Owner, host netip.Addr, access, deny uint32) nfs.Status {
	return r.d.nfs4.Reserve(f, owner, host, access, deny)
}

func (r reservations) Unreserve(f lock.File, owner lock.Owner) { r.d.nfs4.Unreserve(f, owner) }
func (r reservations) UnreserveAll(client string)              { r.d.nfs4.UnreserveAll(client) }

// callHost calls a program of another host, which its portmap finds.
func callHost(ctx context.Context, host netip.Addr, prog, vers, proc uint32, args func(*xdr.Encoder),
	res func(*xdr.Decoder) error,
) error {
	at := func(port uint16) string { return net.JoinHostPort(host.String(), strconv.Itoa(int(port))) }
	pm, err := tcp.Dial(ctx, at(portmap.Port))
	if err != nil {
		return err
	}
	port, err := client.Port(ctx, pm, prog, vers)
	_ = pm.Close()
	if err != nil {
		return err
	}
	c, err := tcp.Dial(ctx, at(port))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return c.Call(ctx, &rpc.Request{Prog: prog, Vers: vers, Proc: proc, Args: args, Res: res})
}

// countHostConflicts is the name of a count that is nobody's fault.
const countHostConflicts = "host_lock_conflicts"

// hostLockCounts are the counts of locks on the host, for what there was.
func (d *Daemon) hostLockCounts() map[string]uint64 {
	out := make(map[string]uint64)
	n := d.locks.HostCounts()
	for name, n := range map[string]uint64{
		countHostConflicts: n.Conflicts, "host_locks_unsupported": n.Without, "host_locks_full": n.Full,
	} {
		if n > 0 {
			out[name] = n
		}
	}
	return out
}
