package guest

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
)

// bridgePort is where bridged has the bridge listen.
const bridgePort = "3049"

// throughBridge is a script that begins when there is a bridge, and lets it end.
func throughBridge(name string) string { return "await bridged\n" + script(name) + "\ntell through\n" }

// bridged has a bridge in front of the daemon's RDMA port while a script of throughBridge runs, and
// next beside it. The bridge is on the daemon's host, whose own link carries packets of 4096 bytes:
// the daemon's interface must carry them too.
func bridged(next func(context.Context, *Run) error) func(context.Context, *Run) error {
	return func(ctx context.Context, r *Run) error {
		p, err := r.start("rstorectl", r.log, filepath.Join(r.runner.Bin, "rstorectl"), "bridge",
			"nfs+rdma://"+r.rdmaAt()+"/e",
			"--listen", HostAddr+":"+bridgePort, "--provider", "soft")
		if err != nil {
			return err
		}
		err = r.Tell("bridged")
		if err == nil && next != nil {
			err = next(ctx, r)
		}
		if err == nil {
			err = r.Await(ctx, "through")
		}
		return errors.Join(err, p.stop(syscall.SIGTERM))
	}
}
