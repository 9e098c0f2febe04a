package ctl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/lease"
)

// leaseState is the lease on a state directory as this host reads it.
type leaseState struct {
	lease.Record
	Renewed bool `json:"renewed"` // while it was watched
}

func (t *tool) ha() *cobra.Command {
	var watch time.Duration
	status := &cobra.Command{
		Use:   "status DIR",
		Short: "Show which node has the lease on a state directory that nodes share",
		Long: "Shows which node has the lease on the state directory DIR, and whether that node renews it. The lease is " +
			"read from the directory: no daemon has to run on this node.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := watchLease(args[0], watch)
			if err != nil {
				return err
			}
			return t.g.Print(s, func(w io.Writer) {
				said := "does not renew it"
				switch {
				case s.Released:
					said = "has released it"
				case s.Renewed:
					said = "serves, and renews it"
				}
				fmt.Fprintf(w, "node\t%q %s\nepoch\t%d\n", s.Node, said, s.Epoch)
			})
		},
	}
	status.Flags().DurationVar(&watch, "watch", 3*time.Second, "watch for a renewal for this `TIME`")
	return group("ha", "Show which of several nodes serves", status)
}

// watchLease reads the lease of a directory until it changes, for some time.
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
