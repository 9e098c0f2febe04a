package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// exportfs are the flags of exportfs(8).
type exportfs struct {
	t                                          *tool
	all, again, remove, verbose, asFile, flush bool
	ignore                                     bool
	options                                    []string
}

func (t *tool) exportfs() *cobra.Command {
	x := &exportfs{t: t}
	c := &cobra.Command{
		Use:   "exportfs [CLIENT:/PATH...]",
		Short: "List and change exports as exportfs(8) does",
		Long: `List and change exports with the flags of exportfs(8), for scripts and habits.

Without flags it lists who may mount what. CLIENT:/PATH exports a directory to one client,
with the options of -o; the others are ro, sync, secure and root_squash, as in exports(5). It
replaces an earlier rule of that client. -u ends that. Clients are those of exports(5); an
IPv6 address is in brackets, and :/PATH is everybody.

Unlike those of exportfs(8), changes outlast restarts. -r ends them: what rstored.yaml, the
table and an applied file say is served again. -a reads these again and keeps the changes,
except that exports ended by -u are back. -u and -o need no table: -i makes no difference.`,
		Example: `  rstorectl exportfs -v
  rstorectl exportfs -o rw,no_root_squash 10.0.0.7:/srv/data
  rstorectl exportfs -u 10.0.0.7:/srv/data
  rstorectl exportfs -ra`,
		Args: cli.Args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, args []string) error { return x.run(cmd, args) },
	}
	f := c.Flags()
	f.BoolVarP(&x.all, "all", "a", false, "export everything that is written, or with -u nothing")
	f.BoolVarP(&x.again, "reexport", "r", false, "export what is written and nothing else")
	f.BoolVarP(&x.remove, "unexport", "u", false, "end the exports")
	f.BoolVarP(&x.verbose, "verbose", "v", false, "list with options; say what is done")
	f.BoolVarP(&x.asFile, "show", "s", false, "list in the syntax of exports(5)")
	f.BoolVarP(&x.flush, "flush", "f", false, "look up names and groups of clients again")
	f.BoolVarP(&x.ignore, "ignore", "i", false, "accepted; makes no difference")
	f.StringArrayVarP(&x.options, "options", "o", nil, "`OPTIONS` of exports(5), with commas between them; repeatable")
	// -o is a flag of exportfs(8) here, so --output has no short form.
	f.Var(newFormat(&t.g.Output), "output", "output `FORMAT`: table, json or yaml")
	return c
}

// newFormat returns a flag that sets the output format.
func newFormat(to *string) pflag.Value {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.StringVar(to, "output", cli.FormatTable, "")
	return f.Lookup("output").Value
}

func (x *exportfs) run(cmd *cobra.Command, args []string) error {
	every := x.all || x.again
	switch {
	case every && len(args) > 0:
		return cli.Usagef("-a and -r are for all exports, CLIENT:/PATH for one")
	case x.again && x.remove:
		return cli.Usagef("-r and -u exclude each other")
	case x.remove && len(x.options) > 0:
		return cli.Usagef("-u and -o exclude each other")
	case x.remove && !x.all && len(args) == 0:
		return cli.Usagef("-u needs CLIENT:/PATH, or -a")
	case len(x.options) > 0 && len(args) == 0:
		return cli.Usagef("-o needs CLIENT:/PATH")
	}
	ctx, d := cmd.Context(), x.t.daemon()
	if x.flush {
		if err := d.FlushIDMap(ctx); err != nil {
			return err
		}
	}
	switch {
	case x.all && x.remove:
		return x.removeAll(ctx, cmd)
	case every:
		if err := d.Reload(ctx); err != nil {
			return err
		}
		if err := d.RevertExports(ctx, !x.again); err != nil {
			return err
		}
		return x.sayAll(ctx, cmd, "exporting")
	case len(args) == 0:
		if x.flush {
			return nil
		}
		return x.list(ctx)
	}
	var errs []error
	for _, a := range args {
		if err := x.one(ctx, cmd, a); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

// one exports one directory to one client, or ends such an export.
func (x *exportfs) one(ctx context.Context, cmd *cobra.Command, arg string) error {
	client, dir, err := splitExportfs(arg)
	if err != nil {
		return err
	}
	e, whole, warnings, err := config.ParseTableEntry(dir, client, words(x.options))
	if err != nil {
		return cli.Usagef("%v", err)
	}
	for _, w := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
	}
	d := x.t.daemon()
	all, err := d.Exports(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(o control.Export) bool {
		return o.Path == e.Path && o.Type == config.TypePosix && !o.Derived()
	})
	rule := e.Clients[0]
	if x.remove {
		if i < 0 {
			return fmt.Errorf("export %s: %w", e.Path, control.ErrNotFound)
		}
		own := func(c config.Client) bool { return strings.EqualFold(c.Name(), rule.Name()) }
		if len(all[i].Clients) == 1 && own(all[i].Clients[0]) {
			err = d.RemoveExport(ctx, all[i].Pseudo)
		} else {
			_, err = d.SetExport(ctx, all[i].Pseudo, control.ExportPatch{
				ExportEdit: config.ExportEdit{RemoveClients: []string{rule.Name()}},
			})
		}
		return x.say(cmd, err, "unexporting", &rule, e.Path)
	}
	var got control.Export
	if i < 0 {
		got, err = d.AddExport(ctx, e)
	} else {
		got, err = d.SetExport(ctx, all[i].Pseudo, control.ExportPatch{
			ExportEdit: config.ExportEdit{AddClients: e.Clients, Options: whole},
		})
	}
	if err == nil {
		warnExposed(cmd, &got)
	}
	return x.say(cmd, err, "exporting", &rule, e.Path)
}

// splitExportfs splits CLIENT:/PATH. An IPv6 address is in brackets.
func splitExportfs(s string) (client, dir string, err error) {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		addr, rest, ok := strings.Cut(rest, "]")
		bits, dir, found := strings.Cut(rest, ":")
		if _, err := netip.ParseAddr(addr); !ok || !found || err != nil {
			return "", "", cli.Usagef("not [IPv6 ADDRESS]:/PATH or [IPv6 ADDRESS]/BITS:/PATH")
		}
		return addr + bits, dir, nil
	}
	client, dir, ok := strings.Cut(s, ":")
	if !ok || !strings.HasPrefix(dir, "/") {
		return "", "", cli.Usagef("not CLIENT:/PATH; :/PATH is for everybody")
	}
	if client == "" {
		client = config.Everyone
	}
	return client, dir, nil
}

func (x *exportfs) removeAll(ctx context.Context, cmd *cobra.Command) error {
	d := x.t.daemon()
	all, err := d.Exports(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i := range all {
		e := &all[i]
		if e.Derived() {
			continue // it ends with the export that contains it
		}
		err := d.RemoveExport(ctx, e.Pseudo)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, c := range e.Rules() {
			_ = x.say(cmd, nil, "unexporting", &c, e.Path)
		}
	}
	return errors.Join(errs...)
}

// say prints what was done, with -v, or returns err.
func (x *exportfs) say(cmd *cobra.Command, err error, what string, c *config.Client, dir string) error {
	if err == nil && x.verbose && x.t.g.Output == cli.FormatTable {
		fmt.Fprintf(cmd.OutOrStdout(), "%s %s:%s\n", what, clientName(c), dir)
	}
	return err
}

func (x *exportfs) sayAll(ctx context.Context, cmd *cobra.Command, what string) error {
	if !x.verbose {
		return nil
	}
	all, err := x.t.daemon().Exports(ctx)
	for i := range all {
		for _, c := range all[i].Rules() {
			_ = x.say(cmd, nil, what, &c, all[i].Path)
		}
	}
	return err
}

// list prints the exports in the layout of exportfs(8), which other programs parse.
func (x *exportfs) list(ctx context.Context) error {
	all, err := x.t.daemon().Exports(ctx)
	if err != nil {
		return err
	}
	return x.t.g.Print(all, func(w io.Writer) {
		for i := range all {
			e := &all[i]
			if e.Error != "" {
				fmt.Fprintf(x.t.g.Err, "exportfs: %s is not served: %s\n", e.Path, e.Error)
				continue
			}
			for _, c := range e.Rules() {
				x.line(x.t.g.Out, e, &c)
			}
		}
	})
}

// line prints one client of one export.
func (x *exportfs) line(w io.Writer, e *control.Export, c *config.Client) {
	opts := strings.Join(e.TableOptions(c), ",")
	if x.asFile {
		if e.Type != config.TypePosix {
			return // a table can only have exports of directories
		}
		fmt.Fprintf(w, "%s %s(%s)\n", escapeTable(e.Path), clientName(c), opts)
		return
	}
	name := clientName(c)
	if name == config.Everyone {
		name = "<world>"
	}
	if x.verbose {
		name += "(" + opts + ")"
	}
	const column = 14 // a longer path gets a line of its own
	if len(e.Path) > column {
		fmt.Fprintf(w, "%s\n\t\t%s\n", e.Path, name)
		return
	}
	fmt.Fprintf(w, "%-*s\t%s\n", column, e.Path, name)
}

// clientName returns the client in the notation of exportfs(8): an address has no prefix length.
func clientName(c *config.Client) string {
	if p, err := netip.ParsePrefix(c.CIDR); err == nil && p.IsSingleIP() {
		return p.Addr().String()
	}
	return c.Name()
}

// escapeTable escapes a path as exports(5) requires it.
func escapeTable(path string) string {
	var b strings.Builder
	for _, c := range []byte(path) {
		if c <= ' ' || c == '"' || c == '\\' || c == '#' {
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
