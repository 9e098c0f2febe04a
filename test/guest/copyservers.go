package guest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// copyServers is a case of copies between rstored on the host and another server in guest b. can
// says in which directions, as seen from the host: "in" and "out". If can is empty, the host's
// server has no partners.
func copyServers(other, second, carriers, can string) Case {
	name, partners := "copy-servers-"+other, []string{"--copy-partners", second}
	if can == "" {
		name, partners = name+"-off", nil
	}
	return Case{
		Name: name, Script: script("copyservers"), Guests: 2, Wires: 2, Exports: rw,
		Env:    env("OTHER", other, "SECOND", second, "CARRIERS", carriers, "CAN", can),
		Daemon: partners, Quiet: true, MemMB: 1000, Timeout: 5 * time.Minute,
		Host: func(ctx context.Context, r *Run) error {
			if other == "rstored" {
				if err := ownServer(ctx, r); err != nil {
					return err
				}
			}
			return pulledAndRead(ctx, r, can)
		},
	}
}

// pulledAndRead waits until the guests are done, and holds the counts of the host's server against
// the directions of the copies.
func pulledAndRead(ctx context.Context, r *Run, can string) error {
	if err := r.Await(ctx, "a.2"); err != nil {
		return err
	}
	n, err := r.counts()
	if err != nil {
		return err
	}
	r.Logf("%v %v", n.Events, n.Errors)
	in, out := n.Events["nfs4_copies_from_servers"], n.Events["nfs4_copies_notified"]
	if strings.Contains(can, "in") != (in > 0) || strings.Contains(can, "out") != (out > 0) {
		return fmt.Errorf("%d copies from the other server, %d copy stateids for it", in, out)
	}
	if can == "" {
		if n.Errors["nfs4_copies_denied"] == 0 {
			return errors.New("no COPY was refused")
		}
		return nil
	}
	if n.Errors["nfs4_copies_failed"]+n.Errors["nfs4_copies_denied"] > 0 {
		return fmt.Errorf("copies failed: %v", n.Errors)
	}
	return nil
}
