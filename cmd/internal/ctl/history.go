package ctl

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/state"
)

func (t *tool) rollback() *cobra.Command {
	var a applying
	c := &cobra.Command{
		Use:   "rollback [NUMBER]",
		Short: "Apply a file of the history again",
		Long: `Apply a file of the history again, like 'rstorectl apply': it shows the plan, and disrupts no client
without --allow-disruption. Without NUMBER it applies the file before the last one, or if only one
file was applied, the state before it. The result is a new entry of the history.`,
		Example: "  rstorectl rollback\n  rstorectl rollback 3 --allow-disruption",
		Args:    cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := t.historyEntry(cmd, args)
			if err != nil {
				return err
			}
			if e.Number == 0 && a.comment == "" {
				a.comment = "rollback to what was served before the first file"
			}
			return t.apply(cmd, control.File{Name: e.Name, Syntax: e.Syntax, Text: e.Text}, &a, e.Number)
		},
	}
	a.declare(c)
	return c
}

func (t *tool) history() *cobra.Command {
	all := list(t, (*control.Dialer).History, "NUMBER\tTIME\tBY\tFILE\tDIGEST\tCOMMENT", func(e *state.Entry) []any {
		comment := strings.ReplaceAll(e.Comment, "\n", " ")
		if e.RollbackOf > 0 {
			comment = strings.TrimSpace(fmt.Sprintf("rollback of %d  %s", e.RollbackOf, comment))
		}
		const digits = 12
		return []any{
			e.Number, e.Time.Local().Format(time.DateTime), cmp.Or(e.User, fmt.Sprint(e.UID)), e.Name,
			e.Digest[:min(digits, len(e.Digest))], dash(comment),
		}
	})
	return &cobra.Command{
		Use:   "history [NUMBER]",
		Short: "List the files that were applied, or print one",
		Long:  "List the files that were applied, the latest first, or print the text of one. The last 32 are kept.",
		Args:  cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return all(cmd, args)
			}
			e, err := t.historyEntry(cmd, args)
			if err != nil {
				return err
			}
			return t.g.Print(e, func(w io.Writer) { fmt.Fprint(w, e.Text) })
		},
	}
}

// historyEntry returns the entry with the number on the command line. Without a number it returns
// the entry that a rollback applies.
func (t *tool) historyEntry(cmd *cobra.Command, args []string) (e state.Entry, err error) {
	n := 0
	if len(args) > 0 {
		if n, err = strconv.Atoi(args[0]); err != nil || n < 1 {
			return e, cli.Usagef("%q is not a number of the history", args[0])
		}
	}
	return t.daemon().HistoryEntry(cmd.Context(), n)
}

// printShadowed lists the settings of the configuration that an applied file replaces.
func printShadowed(w io.Writer, x *control.Drift) {
	if len(x.Shadowed) > 0 {
		fmt.Fprintf(w, "not in force: %s of the configuration, as %s stands in their place; "+
			"'rstorectl apply --configuration' ends that\n", strings.Join(x.Shadowed, ", "), x.Against[0])
	}
}

func (t *tool) drift() *cobra.Command {
	return t.coded(&cobra.Command{
		Use:   "drift",
		Short: "Show how the running exports and ports differ from the written ones",
		Long: `Show how the running exports and ports differ from the written ones. Written is the file that
was applied last, and for keys that it does not have, the configuration on disk with its export
table. The changes lead from the written to the running state.

The exit code is 0 without a difference, 2 with one, and 1 without an answer, also if the
configuration cannot be read. The metric rstored_config_drift reports the same.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			x, err := t.daemon().Drift(cmd.Context())
			if err != nil {
				return err
			}
			if t.g.Output != cli.FormatTable {
				err = t.g.Print(x, nil)
			} else {
				printChanges(t.g.Out, x.Changes)
				for _, p := range x.Problems {
					fmt.Fprintln(t.g.Out, "problem:", p)
				}
				if x.None() {
					fmt.Fprintf(t.g.Out, "the running exports and ports are those of %s\n", strings.Join(x.Against, " and "))
				}
				printShadowed(t.g.Out, &x)
			}
			switch {
			case err != nil:
				return err
			case len(x.Problems) > 0:
				return outcome(cli.ExitFailed)
			case len(x.Changes) > 0:
				return outcome(exitChanges)
			}
			return nil
		},
	})
}
