package ctl

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
)

// A runE is what a command does.
type runE = func(cmd *cobra.Command, args []string) error

// A question is a method of control.Dialer without parameters that returns a result.
type question[T any] = func(*control.Dialer, context.Context) (T, error)

// show makes a command that prints the server's answer. table prints it for people.
func show[T any](t *tool, ask question[T], table func(w io.Writer, v T)) runE {
	return func(cmd *cobra.Command, _ []string) error {
		v, err := ask(t.daemon(), cmd.Context())
		if err != nil {
			return err
		}
		return t.g.Print(v, func(w io.Writer) { table(w, v) })
	}
}

// list makes a command that prints the server's answer with a row for each entry.
func list[T any](t *tool, ask question[[]T], heading string, cells func(*T) []any) runE {
	return show(t, ask, func(w io.Writer, all []T) { rows(w, heading, all, cells) })
}

// rows prints a heading and a row for each entry, for the tab writer of cli.Globals.Print.
func rows[T any](w io.Writer, heading string, all []T, cells func(*T) []any) {
	fmt.Fprintln(w, heading)
	for i := range all {
		for j, c := range cells(&all[i]) {
			if j > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	}
}

// done prints v in the machine formats, and a confirmation for people.
func (t *tool) done(v any, format string, a ...any) error {
	return t.g.Print(v, func(w io.Writer) { t.sayf(w, format, a...) })
}

// sayf prints a confirmation unless --quiet is given.
func (t *tool) sayf(w io.Writer, format string, a ...any) {
	if !t.g.Quiet {
		fmt.Fprintf(w, format+"\n", a...)
	}
}

// untilSignal returns the command's context. It also ends at an interrupt, and after limit if limit
// is not 0.
func untilSignal(cmd *cobra.Command, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	if limit <= 0 {
		return ctx, stop
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	return ctx, func() { cancel(); stop() }
}

// group makes a command that only has subcommands.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unknown command %q; see '%s --help'", args[0], cmd.CommandPath())
			}
			return cmd.Help()
		},
	}
	c.AddCommand(subs...)
	return c
}

// completeFlag completes the value of a flag from a list.
func completeFlag(c *cobra.Command, flag string, values ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func choose(on bool, yes, no string) string {
	if on {
		return yes
	}
	return no
}

func since(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
