package guest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// portGoes removes the RDMA port under load and adds it again, twice.
func portGoes(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "loaded"); err != nil {
		return err
	}
	at := HostAddr + ":20049"
	for range 2 {
		if err := r.Sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		if err := r.Ctl("port", "remove", "rdma", at); err != nil {
			return err
		}
		if err := r.Sleep(ctx, 3*time.Second); err != nil {
			return err
		}
		if err := r.Ctl("port", "add", "rdma", at); err != nil {
			return err
		}
	}
	if err := r.Sleep(ctx, 8*time.Second); err != nil {
		return err
	}
	return r.Tell("stop")
}

// forgets waits until the daemon has nothing left of a client that was switched off.
func forgets(ctx context.Context, r *Run) error {
	before, err := r.holdings()
	if err != nil {
		return err
	}
	if err := r.Await(ctx, "off"); err != nil {
		return err
	}
	off := time.Now()
	for {
		if err := r.Sleep(ctx, time.Second); err != nil {
			return errors.Join(fmt.Errorf("the daemon still has the client after %v", time.Since(off)), err)
		}
		clients, err := r.CtlOutput("clients", "-o", "json")
		if err != nil {
			return err
		}
		if !strings.Contains(clients, guestAddr(0)+":") {
			break
		}
	}
	after, err := r.holdings()
	if err != nil {
		return err
	}
	r.Logf("forgotten after %v; %+v, then %+v", time.Since(off), before, after)
	return after.leftover(before)
}
