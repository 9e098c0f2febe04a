package ctl

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/live"
	"github.com/rstored/rstored/cmd/internal/mount"
	"github.com/rstored/rstored/cmd/internal/top"
)

func (t *tool) top() *cobra.Command {
	var batch, asJSON, idle bool
	var count, rows int
	var interval time.Duration
	var table, sortBy string
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch the activity of clients, exports, operations, queue pairs and mounts",
		Long: `Watch the activity of clients, exports, operations and queue pairs: calls a second, their duration,
and calls in progress. Keys choose the table (1 to 5), the column to sort by (left and right), and rows
by a word (/). ? lists more keys, q ends the program.

IN is what the server receives, OUT what it sends, in millions of bytes a second. MEAN and P99 are
the time from the arrival of a call to its reply. P99 is estimated within powers of two. DEPTH is the
average number of calls in progress.

Mounts are those of 'rstorectl mount' on this host. Their calls are those of programs, and they are shown
on a host without a server, too.

With --batch, or without a terminal, it writes plain text: every table, or that of --table. The
first report comes after an interval. With --json, or -o json, each report is a JSON object in a line of its
own, in which bytes are bytes and times microseconds.`,
		Example: `  rstorectl top
  rstorectl top --table qps --sort retx
  rstorectl top --table mounts
  rstorectl top -b -n 3 -d 5s
  rstorectl top --json -n 1`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON = asJSON || t.g.Output == cli.FormatJSON
			switch {
			case interval < top.MinInterval || interval > top.MaxInterval:
				return cli.Usagef("--interval is within %v and %v", top.MinInterval, top.MaxInterval)
			case count < 0 || rows < 0:
				return cli.Usagef("--count and --rows are not negative")
			case t.g.Output == cli.FormatYAML:
				return cli.Usagef("top writes tables or JSON")
			}
			m, err := top.NewModel(table, sortBy)
			if err != nil {
				return cli.Usagef("%v", err)
			}
			m.Interval = interval
			if idle {
				m.Key("z")
			}
			d := t.daemon()
			answered := false
			fetch := func(ctx context.Context) (*live.Sample, error) {
				s, err := d.Sample(ctx)
				answered = answered || err == nil
				return withMounts(&s, err, answered)
			}
			if out, ok := t.g.Out.(*os.File); ok && !batch && !asJSON && top.Usable(os.Stdin, out) {
				m.Color = os.Getenv("NO_COLOR") == ""
				screen := &top.Screen{In: os.Stdin, Out: out, Fetch: fetch, Count: count, Model: m}
				return screen.Run(cmd.Context())
			}
			m.Width = 1 << 16 // leave nothing out
			ctx, stop := untilSignal(cmd, 0)
			defer stop()
			batch := &top.Batch{
				Fetch: fetch, Interval: interval, Count: count, JSON: asJSON, All: table == "", Rows: rows, Model: m,
			}
			return batch.Run(ctx, t.g.Out)
		},
	}
	f := c.Flags()
	f.BoolVarP(&batch, "batch", "b", false, "plain text, for scripts and logs")
	f.BoolVar(&asJSON, "json", false, "a JSON object in each line, for scripts")
	f.IntVarP(&count, "count", "n", 0, "end after `N` reports, 0 for no end")
	f.DurationVarP(&interval, "interval", "d", time.Second, "`DURATION` between reports")
	f.StringVarP(&table, "table", "t", "", "`TABLE` to show: "+strings.Join(top.TableNames(), ", "))
	f.StringVarP(&sortBy, "sort", "s", "", "`COLUMN` to sort by, as in its heading: ops, in, out, p99, ...")
	f.IntVar(&rows, "rows", 0, "at most `N` rows of each table in plain text, 0 for all")
	f.BoolVar(&idle, "idle", false, "show rows in which nothing happens, too")
	completeFlag(c, "table", top.TableNames()...)
	return c
}

// began is the start of samples without a server.
var began = time.Now()

// withMounts adds the mounts of this host to the daemon's sample. Mounts need no daemon: if none has
// ever answered, the sample has the mounts alone.
func withMounts(s *live.Sample, err error, answered bool) (*live.Sample, error) {
	if err != nil && answered {
		return s, err
	}
	mounts, failed := mount.Samples()
	switch {
	case failed != nil, len(mounts) == 0:
		return s, err
	case err != nil:
		name, _ := os.Hostname()
		s = &live.Sample{
			Host: name, State: live.NoServer, Started: began, Taken: time.Now(), UptimeNS: int64(time.Since(began)),
		}
	}
	s.Mounts = mounts
	return s, nil
}
