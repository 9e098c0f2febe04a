package ctl

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
)

func (t *tool) cluster() *cobra.Command {
	status := &cobra.Command{
		Use:   "status",
		Short: "Show the grace period that the servers of a cluster share",
		Args:  cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := t.daemon().Cluster(cmd.Context())
			if err != nil {
				return err
			}
			return t.g.Print(c, func(w io.Writer) {
				fmt.Fprintf(w, "node\t%q, of %d in pool %s\nepoch\t%d\n", c.Node, len(c.Nodes), c.Pool, c.Epoch)
				switch {
				case c.Recovery != 0:
					fmt.Fprintf(w, "grace\tclients with records of epoch %d may reclaim\n", c.Recovery)
				case c.Grace:
					fmt.Fprintf(w, "grace\tthis node grants nothing new: it has read the state %.1f s ago\n", c.ReadSeconds)
				default:
					fmt.Fprintln(w, "grace\tnone")
				}
			})
		},
	}
	nodes := &cobra.Command{
		Use:   "nodes",
		Short: "List the servers of a cluster",
		Args:  cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := t.daemon().Cluster(cmd.Context())
			if err != nil {
				return err
			}
			return t.g.Print(c.Nodes, func(w io.Writer) {
				fmt.Fprintln(w, "NODE\tEPOCH\tSTATE")
				for _, n := range c.Nodes {
					fmt.Fprintf(w, "%s\t%d\t%s\n", n.Node, n.Epoch, nodeState(&n))
				}
			})
		},
	}
	var wait time.Duration
	drain := &cobra.Command{
		Use:   "drain NODE",
		Short: "Let a server leave its cluster, and stop",
		Long: `drain stops the server NODE as a stop does. Its clients may reclaim at the other nodes. Move its address to
one of them. It comes back when its service is started.`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			d := t.daemon()
			asked, err := d.Cluster(cmd.Context())
			if err != nil {
				return err
			}
			if err := d.DrainNode(cmd.Context(), args[0]); err != nil {
				return err
			}
			for end := time.Now().Add(wait); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				c, err := d.Cluster(cmd.Context())
				switch {
				case err != nil && asked.Node == args[0]:
					return nil // the process has ended, as it was asked to
				case err != nil:
					return err
				}
				left := true
				for _, n := range c.Nodes {
					left = left && (n.Node != args[0] || n.Lost && n.Unreleased == 0)
				}
				if left {
					return nil
				}
			}
			return fmt.Errorf("node %q has not left after %v", args[0], wait)
		},
	}
	drain.Flags().DurationVar(&wait, "wait", time.Minute, "fail if the node has not left within this `TIME`")
	return group("cluster", "Show the servers of a cluster, and let one leave", status, nodes, drain)
}

func nodeState(n *control.ClusterNode) string {
	var out []string
	add := func(is bool, text string) {
		if is {
			out = append(out, text)
		}
	}
	add(n.Lost, "lost")
	add(!n.Lost, "serves")
	add(n.Drain, "is asked to leave")
	add(n.Unreleased > 0, "has locks that are not released")
	add(n.Need && n.By == "", "its clients reclaim")
	add(n.Need && n.By != "", "its clients reclaim, "+n.By+" waits for them")
	add(n.Enforces, "enforces the grace period")
	return strings.Join(out, ", ")
}
