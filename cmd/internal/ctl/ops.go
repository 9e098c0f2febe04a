package ctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
)

func (t *tool) ops() *cobra.Command {
	state := &cobra.Command{
		Use:   "show",
		Short: "Show the addresses of metrics and health checks, and whether profiles are on",
		RunE: show(t, (*control.Dialer).Ops, func(w io.Writer, o control.Ops) {
			fmt.Fprintf(w, "addresses\t%s\npprof\t%s\n", dash(strings.Join(o.Addresses, " ")), choose(o.Pprof, "on", "off"))
		}),
	}
	pprof := &cobra.Command{
		Use:   "pprof on|off",
		Short: "Turn profiles at the ops ports on or off, until the next start or reload",
		Long: `Turn profiles at the ops ports on or off, until the next start or reload. While they are on,
everyone who reaches such a port can profile the process, which slows it down, and sees
names of functions and the command line.`,
		Example:   "  rstorectl ops pprof on\n  go tool pprof http://127.0.0.1:9049/debug/pprof/profile?seconds=10",
		Args:      cli.Args(cobra.ExactArgs(1)),
		ValidArgs: []string{"on", "off"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != "on" && args[0] != "off" {
				return cli.Usagef("%q is neither on nor off", args[0])
			}
			return t.daemon().SetPprof(cmd.Context(), args[0] == "on")
		},
	}
	return group("ops", "Metrics, health checks and profiles", state, pprof)
}

func (t *tool) slow() *cobra.Command {
	var most int
	c := &cobra.Command{
		Use:   "slow",
		Short: "Show the slowest calls of the last five to ten minutes, and where their time went",
		Long: `Show the slowest calls of the last five to ten minutes, and where their time went: waiting
for a worker (QUEUE), for memory and RDMA READs of the client's data (RDMA), and in the
store (STORE). The rest is the server's own time.`,
		Example: "  rstorectl slow\n  rstorectl slow -n 5 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if most < 1 {
				return cli.Usagef("--count is at least 1")
			}
			list, err := t.daemon().Slow(cmd.Context())
			if err != nil {
				return err
			}
			list = list[:min(most, len(list))]
			return t.g.Print(list, func(w io.Writer) {
				const heading = "ENDED\tTOOK\tQUEUE\tRDMA\tSTORE\tOPERATION\tSTATUS\tEXPORT\tCLIENT\tTRANSPORT\tIN\tOUT"
				rows(w, heading, list, func(s *control.SlowCall) []any {
					return []any{
						s.Ended.Local().Format(time.TimeOnly), since(s.TookUS), since(s.QueueUS), since(s.RDMAUS), since(s.StoreUS),
						s.Operation, s.Status, dash(s.Export), s.Client, s.Transport, s.BytesIn, s.BytesOut,
					}
				})
			})
		},
	}
	c.Flags().IntVarP(&most, "count", "n", 20, "show `N` calls")
	return c
}

func (t *tool) trace() *cobra.Command {
	var limit time.Duration
	var most int
	c := &cobra.Command{
		Use:   "trace [CLIENT]",
		Short: "Show calls as they are answered",
		Long: `Show calls as they are answered, of one client by its address or of all clients: arguments,
status, and where the time went. File handles are shown by their CRC-32, as in Wireshark. The
trace ends after --for, after --count calls, or at an interrupt. Calls take longer during a
trace. Calls that are too many to be shown are counted.`,
		Example: "  rstorectl trace 10.0.0.7\n  rstorectl trace --for 10s -o json",
		Args:    cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var client netip.Addr
			if len(args) > 0 {
				var err error
				if client, err = netip.ParseAddr(args[0]); err != nil {
					return cli.Usagef("%q is not an IP address", args[0])
				}
			}
			ctx, stop := untilSignal(cmd, limit)
			defer stop()
			enc := json.NewEncoder(t.g.Out)
			n := 0
			err := t.daemon().Trace(ctx, client, func(c *control.TraceCall) error {
				if t.g.Output == cli.FormatJSON {
					if err := enc.Encode(c); err != nil {
						return err
					}
				} else {
					if c.Missed > 0 {
						fmt.Fprintf(t.g.Out, "(%d calls are not shown)\n", c.Missed)
					}
					fmt.Fprintf(t.g.Out, "%s %s %s xid %s uid %d %s %s: %s ", c.Ended.Local().Format("15:04:05.000000"),
						c.Client, c.Transport, c.XID, c.UID, c.Operation, c.Arguments, c.Status)
					fmt.Fprintf(t.g.Out, "%dus (queue %d, rdma %d, store %d) in %d out %d\n",
						c.TookUS, c.QueueUS, c.RDMAUS, c.StoreUS, c.BytesIn, c.BytesOut)
				}
				if n++; n == most {
					return errEnough
				}
				return nil
			})
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		},
	}
	c.Flags().DurationVar(&limit, "for", 0, "`DURATION` to trace, 0 until interrupted")
	c.Flags().IntVarP(&most, "count", "c", 0, "end after `N` calls")
	return c
}

var errEnough = errors.New("enough")
