package guest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// portGoes removes the RDMA port under load and adds it again, twice.
func portGoes(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "loaded"); err != nil {
		return err
	}
	at := r.rdmaAt()
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

// frozen stops the first guest for longer than the lease of the case, twice: once until it
// has run out, once until the other guest has what the first had.
func frozen(ctx context.Context, r *Run) error {
	const lease = 10 * time.Second
	for _, round := range []struct {
		name  string
		until func() error
	}{
		{"first", func() error { return r.Sleep(ctx, lease+5*time.Second) }},
		{"second", func() error { return r.Await(ctx, "taken") }},
	} {
		if err := r.Await(ctx, round.name); err != nil {
			return err
		}
		if err := r.signalGuest(0, syscall.SIGSTOP); err != nil {
			return err
		}
		err := errors.Join(r.Tell(round.name+".frozen"), round.until())
		// It is ended with the case, frozen or not.
		if err := errors.Join(err, r.signalGuest(0, syscall.SIGCONT)); err != nil {
			return err
		}
		if err := r.Tell(round.name + ".over"); err != nil {
			return err
		}
	}
	return nil
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
