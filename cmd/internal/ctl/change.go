package ctl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/exportsfile"
)

// Exit codes of plan and drift, besides cli.ExitOK and cli.ExitFailed.
const (
	exitChanges  = 2
	exitDisrupts = 3
)

const changeCodes = `The exit code is 0 if nothing would change, 2 if something would, 3 if that would disrupt
clients, and 1 if there is no answer, mistakes on the command line included.`

const fileText = `FILE has the keys of rstored.yaml for exports and ports (exports, rdma_listen, tcp_listen,
mount_listen, portmap_listen, udp_listen, ops_listen), or is a table as /etc/exports, with those
in its .d directory, if its name ends in "exports" or --syntax says so. - is standard input. A key
that FILE does not have stays as it is. With --configuration, in its place, it is about what the
daemon has read from rstored.yaml, environment and flags.`

// coded makes a command whose exit codes 2 and 3 report its result. So a mistake on its command
// line ends with ExitFailed, not with ExitUsage.
func (t *tool) coded(c *cobra.Command) *cobra.Command {
	failed := func(err error) error {
		if err == nil {
			return nil
		}
		return &cli.ExitError{Code: cli.ExitFailed, Err: err}
	}
	if args := c.Args; args != nil {
		c.Args = func(cmd *cobra.Command, a []string) error { return failed(args(cmd, a)) }
	}
	c.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return failed(fmt.Errorf("%w\nsee '%s --help'", err, cmd.CommandPath()))
	})
	c.PersistentPreRunE = func(*cobra.Command, []string) error { return failed(t.g.Check()) }
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, a []string) error {
		err := run(cmd, a)
		var exit *cli.ExitError
		if errors.As(err, &exit) {
			return err
		}
		return failed(err)
	}
	return c
}

func outcome(code int) error {
	if code == cli.ExitOK {
		return nil
	}
	return &cli.ExitError{Code: code}
}

// planCode returns the exit code for a plan.
func planCode(p *control.Plan) int {
	switch {
	case len(p.Problems) > 0:
		return cli.ExitFailed
	case len(p.Disruptions) > 0:
		return exitDisrupts
	case len(p.Changes) > 0:
		return exitChanges
	}
	return cli.ExitOK
}

// readChange reads a file with exports and ports.
func readChange(name, syntax string, stdin io.Reader) (f control.File, err error) {
	f = control.File{Name: name, Syntax: syntax}
	if syntax == "" {
		f.Syntax = config.SyntaxYAML
		if strings.HasSuffix(name, config.SyntaxTable) {
			f.Syntax = config.SyntaxTable
		}
	} else if syntax != config.SyntaxYAML && syntax != config.SyntaxTable {
		return f, cli.Usagef("--syntax %q is neither %s nor %s", syntax, config.SyntaxYAML, config.SyntaxTable)
	}
	if name == "-" {
		f.Name = "standard input"
		b, err := io.ReadAll(io.LimitReader(stdin, config.DocumentMax+1))
		f.Text = string(b)
		return f, err
	}
	if f.Name, err = filepath.Abs(name); err != nil {
		return f, err
	}
	files := []string{name}
	if f.Syntax == config.SyntaxTable {
		more, err := filepath.Glob(filepath.Join(exportsfile.Directory(name), "*"+exportsfile.Suffix))
		if err != nil {
			return f, err
		}
		slices.Sort(more)
		hidden := func(p string) bool { return strings.HasPrefix(filepath.Base(p), ".") }
		files = append(files, slices.DeleteFunc(more, hidden)...)
	}
	for i, p := range files {
		b, err := readAtMost(p)
		if errors.Is(err, fs.ErrNotExist) && i == 0 && len(files) > 1 {
			continue // the file may be missing if its directory has files
		}
		if err != nil {
			return f, err
		}
		if len(files) > 1 {
			f.Text += "# " + p + "\n"
		}
		f.Text += string(b)
		if !strings.HasSuffix(f.Text, "\n") && len(files) > 1 {
			f.Text += "\n"
		}
	}
	return f, nil
}

func readAtMost(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, config.DocumentMax+1))
}

func (t *tool) plan() *cobra.Command {
	var in input
	c := &cobra.Command{
		Use:   "plan FILE",
		Short: "Show what a file of exports and ports would change, and which clients that would disrupt",
		Long: `Show what a file of exports and ports would change, and which clients that would disrupt. The
daemon checks its connections and the clients of the last day. Nothing is changed.

` + fileText + "\n\n" + changeCodes,
		Example: "  rstorectl plan exports.yaml\n  rstorectl plan --syntax exports /etc/exports.new",
		Args:    cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := in.read(cmd, args)
			if err != nil {
				return err
			}
			p, err := t.daemon().Plan(cmd.Context(), f)
			if err != nil {
				return err
			}
			if err := t.printPlan(&p); err != nil {
				return err
			}
			return outcome(planCode(&p))
		},
	}
	in.declare(c)
	return t.coded(c)
}

// input is the file on the command line.
type input struct {
	syntax string
	own    bool
}

func (i *input) declare(c *cobra.Command) {
	c.Flags().StringVar(&i.syntax, "syntax", "", "`SYNTAX` of the file: yaml or exports (default: by its name)")
	c.Flags().BoolVar(&i.own, "configuration", false, "in the place of FILE: the daemon's own configuration")
	completeFlag(c, "syntax", config.SyntaxYAML, config.SyntaxTable)
}

func (i *input) read(cmd *cobra.Command, args []string) (control.File, error) {
	if i.own != (len(args) == 0) {
		return control.File{}, cli.Usagef("give a FILE or --configuration\nusage: %s", cmd.UseLine())
	}
	if i.own {
		return control.File{Syntax: config.SyntaxOwn}, nil
	}
	return readChange(args[0], i.syntax, cmd.InOrStdin())
}

// printPlan prints a plan as lines, or in a machine format.
func (t *tool) printPlan(p *control.Plan) error {
	if t.g.Output != cli.FormatTable {
		return t.g.Print(p, nil)
	}
	w := t.g.Out
	printChanges(w, p.Changes)
	each := func(format string, list []string) {
		for _, s := range list {
			fmt.Fprintf(w, format, s)
		}
	}
	each("ignored: %s is not a setting of exports and ports\n", p.Ignored)
	each("warning: %s\n", p.Warnings)
	for _, h := range p.Disruptions {
		fmt.Fprintf(w, "disrupts: %s\n", h.Text)
	}
	each("impossible: %s\n", p.Problems)
	if len(p.Changes) == 0 {
		fmt.Fprintln(w, "nothing would change")
	} else {
		fmt.Fprintf(w, "%s, %s\n", count(len(p.Changes), "change"), count(len(p.Disruptions), "disruption"))
	}
	return nil
}

// count returns a number and its noun, in singular or plural.
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func printChanges(w io.Writer, list []control.Change) {
	signs := map[string]string{control.ActionAdd: "+", control.ActionRemove: "-", control.ActionChange: "~"}
	for _, c := range list {
		fmt.Fprintf(w, "%s %s %s\n", signs[c.Action], c.Kind, c.Name)
		for _, o := range c.Options {
			switch {
			case o.Old == "":
				fmt.Fprintf(w, "    + %s: %s\n", o.Option, o.New)
			case o.New == "":
				fmt.Fprintf(w, "    - %s: %s\n", o.Option, o.Old)
			default:
				fmt.Fprintf(w, "    ~ %s: %s -> %s\n", o.Option, o.Old, o.New)
			}
		}
	}
}

// applying are the flags of apply and rollback.
type applying struct {
	yes, disrupt bool
	comment      string
}

func (a *applying) declare(c *cobra.Command) {
	c.Flags().BoolVarP(&a.yes, "yes", "y", false, "apply even if clients are disrupted (as --allow-disruption)")
	c.Flags().BoolVar(&a.disrupt, "allow-disruption", false, "apply even if clients are disrupted")
	c.Flags().StringVar(&a.comment, "comment", "", "`TEXT` for the history")
}

// apply requests a plan, prints it, and applies exactly that plan.
func (t *tool) apply(cmd *cobra.Command, f control.File, a *applying, rollback int) error {
	d := t.daemon()
	p, err := d.Plan(cmd.Context(), f)
	if err != nil {
		return err
	}
	stop := len(p.Disruptions) > 0 && !a.yes && !a.disrupt && len(p.Problems) == 0
	if stop || t.g.Output == cli.FormatTable {
		if err := t.printPlan(&p); err != nil {
			return err
		}
	}
	if stop {
		err := errors.New("nothing was changed: it would disrupt clients; --allow-disruption applies it all the same")
		return &cli.ExitError{Code: exitDisrupts, Err: err}
	}
	done, err := d.Apply(cmd.Context(), control.Apply{
		File: f, State: p.State, Disrupt: a.yes || a.disrupt, Comment: a.comment, RollbackOf: rollback,
	})
	switch {
	case err != nil:
		return err
	case done.Number == 0:
		return t.done(done, "applied already")
	}
	return t.done(done, "applied as number %d of the history", done.Number)
}

func (t *tool) applyFile() *cobra.Command {
	var a applying
	var in input
	c := &cobra.Command{
		Use:   "apply FILE",
		Short: "Apply a file of exports and ports, as a whole or not at all",
		Long: `Show the plan of a file of exports and ports and apply it, as a whole or not at all. It is
refused if the running state has changed since the plan. If a client would be disrupted, it needs
--allow-disruption (exit code 3 without).

From then on, over restarts and reloads, FILE replaces its keys in rstored.yaml. Earlier
changes by 'rstorectl export' and 'rstorectl port' are forgotten, later ones are added.
'rstorectl history' lists the applied files. With --configuration no file is applied any more,
and the configuration is in force again.

` + fileText,
		Example: `  rstorectl apply exports.yaml --comment 'ticket 4711'
  rstorectl apply --syntax exports --allow-disruption /etc/exports.new`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := in.read(cmd, args)
			if err != nil {
				return err
			}
			return t.apply(cmd, f, &a, 0)
		},
	}
	a.declare(c)
	in.declare(c)
	return c
}
