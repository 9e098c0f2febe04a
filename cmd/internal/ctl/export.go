package ctl

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

func (t *tool) export() *cobra.Command {
	return group("export", "Manage the exports",
		t.exportAdd(), t.exportRemove(), t.exportList(), t.exportShow(), t.exportSet(), t.exportCheck())
}

// exportFlags are the flags of add and set.
type exportFlags struct {
	ro, rw, async, sync bool
	hostLocks           bool
	clients             []string
}

func (f *exportFlags) declare(c *cobra.Command) {
	c.Flags().BoolVar(&f.ro, "ro", false, "refuse changes from every client")
	c.Flags().BoolVar(&f.rw, "rw", false, "allow changes where the client's rule does")
	c.Flags().BoolVar(&f.async, "async", false, "acknowledge stable writes before they are on disk (risks data)")
	c.Flags().BoolVar(&f.sync, "sync", false, "acknowledge stable writes once they are on disk")
	c.Flags().BoolVar(&f.hostLocks, "host-locks", true, "share locks with programs of the server's host")
	c.Flags().StringArrayVar(&f.clients, "client", nil,
		"`RULE` CLIENT[(OPTION,...)] with the options of exports(5); * is everyone; repeatable")
}

// check refuses contradictions, and a client rule that would be parsed as several rules.
func (f *exportFlags) check() error {
	if f.ro && f.rw {
		return cli.Usagef("--ro and --rw exclude each other")
	}
	if f.async && f.sync {
		return cli.Usagef("--async and --sync exclude each other")
	}
	for _, r := range f.clients {
		if strings.ContainsAny(r, " \t\n") || r == "" {
			return cli.Usagef("--client %q: one rule per flag", r)
		}
	}
	return nil
}

// rules parses the rules of --client with the parser of exports(5). The parser needs a path, which
// does not matter here.
func (f *exportFlags) rules() ([]config.Client, error) {
	e, err := config.ParseExport("/- " + strings.Join(f.clients, " "))
	if err != nil {
		return nil, cli.Usagef("--client: %v", err)
	}
	return e.Clients, nil
}

func (t *tool) exportAdd() *cobra.Command {
	var f exportFlags
	var pseudo, typ string
	c := &cobra.Command{
		Use:   "add PATH[=PSEUDO][(OPTION,...)]",
		Short: "Export a directory, now and after restarts",
		Long: `Export a directory, now and after restarts. PATH is a directory on the server's host,
relative to the working directory. Without --client the export is for the server's own
host only. --client '*' is everybody. Options are those of
exports(5), and transport=, rsize=, wsize=, bandwidth=, iops=, export_bandwidth=,
export_iops=, quota=, manage_gids, pkey=, no_host_locks, direct; docs/exports.md has them all.`,
		Example: `  rstorectl export add /srv/data --client 10.0.0.0/8
  rstorectl export add '/srv/data=/d' --client '*(ro,all_squash)'
  rstorectl export add /srv/data --client '10.0.0.7(no_root_squash)' --client '10.0.0.0/8(ro)'
  rstorectl export add scratch --type memory`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			spec := args[0]
			switch typ {
			case "", config.TypePosix:
			case config.TypeMemory, config.TypeCeph:
				if !strings.HasPrefix(spec, typ+":") {
					spec = typ + ":" + spec
				}
			default:
				return cli.Usagef("--type %q is none of %s, %s and %s", typ, config.TypePosix, config.TypeMemory, config.TypeCeph)
			}
			e, err := parseExportArg(spec, f.clients)
			if err != nil {
				return err
			}
			if pseudo != "" {
				e.Pseudo = pseudo
			}
			e.ReadOnly = e.ReadOnly || f.ro
			e.Async = (e.Async || f.async) && !f.sync
			if cmd.Flags().Changed("host-locks") {
				e.HostLocks = &f.hostLocks
			}
			if err := e.Normalize(); err != nil {
				return cli.Usagef("%v", err)
			}
			got, err := t.daemon().AddExport(cmd.Context(), e)
			if err != nil {
				return err
			}
			warnExposed(cmd, &got)
			if len(got.Clients) == 0 {
				return t.done(got, "exported %s as %s for the server's own host alone; --client CIDR names others",
					got.Path, got.Pseudo)
			}
			return t.done(got, "exported %s as %s", got.Path, got.Pseudo)
		},
	}
	f.declare(c)
	c.Flags().StringVar(&pseudo, "pseudo", "", "`PATH` that clients see (default: / and the directory's name)")
	c.Flags().StringVar(&typ, "type", "", "`TYPE` posix, memory or ceph")
	return c
}

// parseExportArg reads the one-line form. The whole argument is one field, so blanks in it belong
// to the path. Its options apply to the clients, too.
func parseExportArg(s string, clients []string) (config.Export, error) {
	if !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, config.TypeMemory+":") &&
		!strings.HasPrefix(s, config.TypeCeph+":") {
		abs, err := filepath.Abs(".")
		if err != nil {
			return config.Export{}, err
		}
		s = abs + "/" + s
	}
	e, err := config.ParseExport(strings.Join(append([]string{strings.ReplaceAll(s, " ", `\040`)}, clients...), " "))
	if err != nil {
		return e, cli.Usagef("%v", err)
	}
	return e, nil
}

func (t *tool) exportRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME...",
		Aliases: []string{"rm", "delete"},
		Short:   "Stop exporting, now and after restarts",
		Long: "Stop exporting, now and after restarts. The files stay. NAME is an export's pseudo path or its path " +
			"on the host.",
		Args:              cli.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: t.completeExports,
		RunE: func(cmd *cobra.Command, args []string) error {
			var errs []error
			for _, name := range args {
				if err := t.daemon().RemoveExport(cmd.Context(), name); err != nil {
					errs = append(errs, err)
					continue
				}
				if t.g.Output == cli.FormatTable {
					t.sayf(t.g.Out, "removed export %s", name)
				}
			}
			return errors.Join(errs...)
		},
	}
}

func (t *tool) exportList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the exports",
		RunE: list(t, (*control.Dialer).Exports, "PSEUDO\tPATH\tTYPE\tMODE\tCLIENTS\tORIGIN\tSTATE",
			func(e *control.Export) []any {
				names := append([]string{e.Pseudo}, e.Aliases...)
				return []any{strings.Join(names, ","), e.Path, e.Type, mode(e), clientList(&e.Export), e.Origin, serving(e)}
			}),
	}
}

func (t *tool) exportShow() *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show one export",
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeExports,
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := t.daemon().Export(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return t.g.Print(e, func(w io.Writer) {
				fmt.Fprintf(w, "pseudo\t%s\npath\t%s\ntype\t%s\nid\t%d\naliases\t%s\nmode\t%s\norigin\t%s\nstate\t%s\n",
					e.Pseudo, e.Path, e.Type, e.ID, dash(strings.Join(e.Aliases, " ")), mode(&e), e.Origin, serving(&e))
				for _, c := range e.Rules() {
					fmt.Fprintf(w, "client\t%s\n", c.String())
				}
			})
		},
	}
}

func (t *tool) exportCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check an export table as /etc/exports, without a daemon",
		Long: `Read a table in the syntax of exports(5), with those in its .d directory, and print
its exports. Warnings of probable mistakes and the wrong line go to standard error.`,
		Example: `  rstorectl export check
  rstorectl export check /srv/exports.new`,
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := "/etc/exports"
			if len(args) > 0 {
				file = args[0]
			}
			list, warnings, err := config.ReadExports(file)
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
			}
			if err != nil {
				return &cli.ConfigError{Err: err}
			}
			return t.g.Print(list, func(w io.Writer) {
				rows(w, "PATH\tPSEUDO\tOPTIONS\tCLIENTS\tLINE", list, func(e *config.Export) []any {
					return []any{e.Path, e.Pseudo, dash(strings.Join(e.Options(), ",")), clientList(e), e.Source}
				})
			})
		},
	}
}

func (t *tool) completeExports(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	list, err := t.daemon().Exports(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, 0, len(list))
	for _, e := range list {
		names = append(names, e.Pseudo)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func mode(e *control.Export) string {
	m := []string{choose(e.ReadOnly, "ro", "rw"), choose(e.Async, "async", "sync")}
	return strings.Join(append(m, e.Options()...), ",")
}

func serving(e *control.Export) string { return cmp.Or(e.Error, "serving") }

func clientList(e *config.Export) string {
	rules := e.Rules()
	s := make([]string, len(rules))
	for i := range rules {
		s[i] = rules[i].String()
	}
	return strings.Join(s, " ")
}

// warnExposed prints to standard error what an export allows to everybody.
func warnExposed(cmd *cobra.Command, e *control.Export) {
	for _, w := range e.Exposure() {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
	}
}
