package ctl

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
)

func (t *tool) qp() *cobra.Command {
	c := &cobra.Command{Use: "qp", Short: "Look at the queue pairs of the server", Args: cli.Args(cobra.NoArgs)}
	c.AddCommand(t.qpList(), t.qpShow())
	return c
}

func (t *tool) qpList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the queue pairs",
		RunE: list(t, (*control.Dialer).QPs,
			"QPN\tTYPE\tSTATE\tREMOTE\tREMOTE QPN\tMTU\tAGE\tRTT\tSEND\tRECEIVE\tRETRANSMITS",
			func(q *control.QP) []any {
				hex := func(n uint32) string { return fmt.Sprintf("%#x", n) }
				use := func(n, of int) string { return fmt.Sprintf("%d/%d", n, of) }
				return []any{
					hex(q.QPN), q.Type, q.State, dash(q.Remote), hex(q.RemoteQPN), q.PathMTU, since(q.AgeUS).Round(time.Second),
					rtt(q), use(q.SendQueued, q.SendDepth), use(q.RecvQueued, q.RecvDepth), q.Counters["retransmits"],
				}
			}),
	}
}

func rtt(q *control.QP) string {
	if q.RTTUS == 0 {
		return dash("")
	}
	return since(q.RTTUS).String()
}

func (t *tool) qpShow() *cobra.Command {
	return &cobra.Command{
		Use:     "show QPN",
		Short:   "Show one queue pair and its counters, with the names of hw_counters",
		Example: "  rstorectl qp show 0x4f2a10",
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := parseQPN(args[0])
			if err != nil {
				return err
			}
			list, err := t.daemon().QPs(cmd.Context())
			if err != nil {
				return err
			}
			i := slices.IndexFunc(list, func(q control.QP) bool { return q.QPN == n })
			if i < 0 {
				return fmt.Errorf("there is no queue pair %#x; rstorectl qp list shows those that there are, "+
					"rstorectl connections --failed those that failed", n)
			}
			q := &list[i]
			return t.g.Print(q, func(w io.Writer) {
				fmt.Fprintf(w, "qpn\t%#x\ntype\t%s\nstate\t%s\ndevice\t%s, loop %d\nlocal\t%s\n",
					q.QPN, q.Type, q.State, q.Device, q.Loop, q.Local)
				icrc := "yes"
				if q.NoICRC {
					icrc = "no, the peer is on this host"
				}
				fmt.Fprintf(w, "remote\t%s, queue pair %#x\nage\t%v\npath MTU\t%d\nICRC\t%s\n",
					dash(q.Remote), q.RemoteQPN, since(q.AgeUS).Round(time.Millisecond), q.PathMTU, icrc)
				fmt.Fprintf(w, "next PSN\t%#x, acknowledged before %#x\nexpected PSN\t%#x\nround trip\t%s\n",
					q.NextPSN, q.AckedPSN, q.ExpectedPSN, rtt(q))
				fmt.Fprintf(w, "send queue\t%d of %d\nreceive queue\t%d of %d\nREADs at once\t%d ours, %d of the peer\n",
					q.SendQueued, q.SendDepth, q.RecvQueued, q.RecvDepth, q.ReadsStarted, q.ReadsServed)
				fmt.Fprintf(w, "ACK timeout\tcode %d\nretries\t%d, receiver not ready %d\n", q.AckTimeout, q.RetryCount,
					q.RNRRetryCount)
				for _, k := range slices.Sorted(maps.Keys(q.Counters)) {
					fmt.Fprintf(w, "%s\t%d\n", k, q.Counters[k])
				}
			})
		},
	}
}

// parseQPN reads a queue pair number, in decimal or with the prefix 0x.
func parseQPN(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 0, 24)
	if err != nil {
		return 0, cli.Usagef("%q is not a queue pair number: it has 24 bits, as in rstorectl qp list", s)
	}
	return uint32(n), nil
}
