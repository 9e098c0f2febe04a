package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/lease"
)

// leaseState is the lease on a state directory as this host reads it.
type leaseState struct {
	lease.Record
	Renewed bool `json:"renewed"` // the record changed while it was watched
}

func (t *tool) ha() *cobra.Command {
	var watch time.Duration
	status := &cobra.Command{
		Use:   "status [DIR]",
		Short: "Show which of several nodes serves",
		Long: "Without DIR, asks the daemon of this node whether it serves or waits, and which standbys it can hand over " +
			"to. With DIR, a state directory, reads the lease there, and watches whether its node renews it: no daemon " +
			"has to run on this node.",
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				h, err := t.daemon().HA(cmd.Context())
				if err != nil {
					return err
				}
				return t.g.Print(h, func(w io.Writer) { printHA(w, &h) })
			}
			s, err := watchLease(args[0], watch)
			if err != nil {
				return err
			}
			return t.g.Print(s, func(w io.Writer) {
				said := "does not renew it"
				switch {
				case s.Released && s.To != "":
					said = fmt.Sprintf("has released it to %q", s.To)
				case s.Released:
					said = "has released it"
				case s.Renewed:
					said = "serves, and renews it"
				}
				fmt.Fprintf(w, "node\t%q %s\nepoch\t%d\n", s.Node, said, s.Epoch)
			})
		},
	}
	status.Flags().DurationVar(&watch, "watch", 3*time.Second, "with DIR, watch for a renewal for this `TIME`")
	return group("ha", "Show and choose which of several nodes serves", status, t.promote(), t.demote())
}

func printHA(w io.Writer, h *control.HA) {
	fmt.Fprintf(w, "node\t%q\nrole\t%s since %s\nepoch\t%d\n", h.Node, h.Role,
		h.Since.Local().Format(time.DateTime), h.Epoch)
	if h.Role == control.RoleStandby {
		said := "had the lease last"
		if h.Released {
			said = "has released the lease"
		}
		fmt.Fprintf(w, "other\t%q %s\n", h.Holder, said)
		if h.Manual {
			fmt.Fprintln(w, "waits\tfor 'rstorectl ha promote', or to be handed over to")
		}
		if len(h.Needs) > 0 {
			fmt.Fprintf(w, "needs\tthe address %s\n", strings.Join(h.Needs, " or "))
		}
	}
	for _, s := range h.Standbys {
		fmt.Fprintf(w, "standby\t%q at %s\n", s.Node, s.Address)
	}
}

func (t *tool) promote() *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use:   "promote",
		Short: "Let the standby on this node take the lease when that is free, and wait until it serves",
		Long: `promote lets a standby take the lease as soon as the node that has it releases or loses it, and
waits until the daemon of this node serves. It takes the lease from nobody: see 'rstorectl ha demote'
and 'rstorectl failover' for the node that serves. On a node that serves it does nothing.
With ha_promote: address a standby takes the lease only while its host has the address. Without the
address promote fails at once. It ends a demotion nevertheless: the standby takes the lease when the
address comes.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.daemon().Promote(cmd.Context()); err != nil {
				return err
			}
			return t.awaitServing(cmd.Context(), wait)
		},
	}
	c.Flags().DurationVar(&wait, "wait", time.Minute, "fail if the node does not serve within this `TIME`")
	return c
}

// awaitServing waits until the daemon of this node serves.
func (t *tool) awaitServing(ctx context.Context, wait time.Duration) error {
	var last control.HA
	for end := time.Now().Add(wait); ; {
		h, err := t.daemon().HA(ctx)
		if err == nil && h.Role == control.RoleServing {
			return nil
		}
		if err == nil {
			last = h
		}
		if len(last.Needs) > 0 {
			return fmt.Errorf("ha_promote is \"address\", and this host does not have the address %s: move it here, and this "+
				"node takes the lease when that is free", strings.Join(last.Needs, " or "))
		}
		if time.Now().After(end) {
			return fmt.Errorf("this node does not serve after %v: node %q had the lease last", wait, last.Holder)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *tool) demote() *cobra.Command {
	return &cobra.Command{
		Use:   "demote",
		Short: "Let the server on this node release the lease, and wait for a promotion",
		Long: `demote stops the server as a stop does, releases the lease, and starts it again as a standby that
takes no lease until it is promoted, handed over to, or started again. Another node that waits takes the lease at once,
and clients have a grace period there. 'rstorectl failover' hands over without one.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return t.daemon().Demote(cmd.Context()) },
	}
}

func (t *tool) failover() *cobra.Command {
	var to string
	c := &cobra.Command{
		Use:   "failover",
		Short: "Hand the clients over to another node, without a grace period",
		Long: `failover hands clients, sessions, opens, locks, delegations and replies to a standby, which must wait
for the lease with ha_listen set. Then the standby serves, and this node waits as a standby. The
address has to move right afterwards: by keepalived, another cluster manager, or you. This node keeps
its connections for up to five seconds until then; clients connect again to the other node.

If the standby does not get ready, this node continues unchanged. If it is lost later, it or another
node serves with a grace period.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := t.daemon().Failover(cmd.Context(), to)
			if err != nil {
				return err
			}
			return t.g.Print(f, func(w io.Writer) {
				fmt.Fprintf(w, "from\t%q\nto\t%q, %s\n", f.From, f.To, f.Version)
				fmt.Fprintf(w, "pause\t%.1f ms, after %.0f ms of preparation\n", f.PauseMillis, f.PrepareMillis)
				if f.Dropped > 0 {
					fmt.Fprintf(w, "ended\t%d connections whose clients did not answer\n", f.Dropped)
				}
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "`NODE` that waits for the lease (required)")
	_ = c.MarkFlagRequired("to")
	return c
}

// watchLease reads the lease of a directory until it changes, but not longer than watch.
func watchLease(dir string, watch time.Duration) (*leaseState, error) {
	first, err := lease.Peek(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &cli.ConfigError{Err: fmt.Errorf("no node has ever had a lease on %s: is it the state_dir, and is "+
			"ha_lease set?", dir)}
	}
	if err != nil {
		return nil, err
	}
	s := &leaseState{Record: first}
	for end := time.Now().Add(watch); !s.Renewed && !s.Released && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
		now, err := lease.Peek(dir)
		if err != nil {
			return nil, err
		}
		s = &leaseState{Record: now, Renewed: now != first && !now.Released}
	}
	return s, nil
}
