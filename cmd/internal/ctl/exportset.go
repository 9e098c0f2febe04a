package ctl

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

func (t *tool) exportSet() *cobra.Command {
	var f exportFlags
	var d editFlags
	c := &cobra.Command{
		Use:   "set NAME",
		Short: "Change an export, now and after restarts",
		Long: `Change an export, now and after restarts. What no flag names stays as it is.

--add-client adds the rule of one client, or replaces the rule of that client.
--remove-client CLIENT removes one. --client replaces all rules. --option sets any option
of docs/exports.md: those of the whole export (direct, crossmnt, fsid=, pkey=,
export_bandwidth=, ...) once, those of clients (sec=, bandwidth=, secure, ...) in every rule.
--unset gives an option with a value its default. The opposites of the others are options:
no_direct, nocrossmnt, insecure. Another fsid makes the file handles of the export stale.`,
		Example: `  rstorectl export set /data --ro
  rstorectl export set /data --add-client '10.0.0.7(no_root_squash)'
  rstorectl export set /data --remove-client 10.0.0.7
  rstorectl export set /data --option direct,export_bandwidth=2G
  rstorectl export set /data --option sec=sys --unset export_bandwidth
  rstorectl export set /data --client '192.168.0.0/16(all_squash,anonuid=1000)'`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeExports,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			p, err := d.patch()
			if err != nil {
				return err
			}
			if f.ro || f.rw {
				p.ReadOnly = &f.ro
			}
			if f.async || f.sync {
				p.Async = &f.async
			}
			if cmd.Flags().Changed("host-locks") {
				p.HostLocks = &f.hostLocks
			}
			if len(f.clients) > 0 {
				rules, err := f.rules()
				if err != nil {
					return err
				}
				p.Clients = &rules
			}
			if p.Empty() {
				return cli.Usagef("nothing to change: give --add-client, --remove-client, --client, --option, --unset, " +
					"--ro, --rw, --sync, --async or --host-locks")
			}
			e, err := t.daemon().SetExport(cmd.Context(), args[0], p)
			if err != nil {
				return err
			}
			warnExposed(cmd, &e)
			return t.done(e, "changed export %s", e.Pseudo)
		},
	}
	f.declare(c)
	d.declare(c)
	return c
}

// editFlags are the flags of set that change one part of an export.
type editFlags struct{ add, remove, options, unset []string }

func (d *editFlags) declare(c *cobra.Command) {
	c.Flags().StringArrayVar(&d.add, "add-client", nil,
		"add `RULE` CLIENT[(OPTION,...)], or replace the rule of that client; repeatable")
	c.Flags().StringArrayVar(&d.remove, "remove-client", nil, "remove the rule of `CLIENT`; repeatable")
	c.Flags().StringArrayVar(&d.options, "option", nil, "set `OPTION[,OPTION...]`; repeatable")
	c.Flags().StringArrayVar(&d.unset, "unset", nil, "give `OPTION[,OPTION...]` with a value its default; repeatable")
	completeFlag(c, "unset", config.Unsettable()...)
}

// patch returns the change that the flags describe. It makes the checks that need no daemon.
func (d *editFlags) patch() (p control.ExportPatch, err error) {
	for _, rule := range d.add {
		_, opts, _ := strings.Cut(strings.TrimSuffix(rule, ")"), "(")
		if whole := config.WholeOptions(words([]string{opts})); len(whole) > 0 {
			return p, cli.Usagef("--add-client %q: %s belongs to the whole export; give it with --option",
				rule, strings.Join(whole, ", "))
		}
	}
	if len(d.add) > 0 {
		f := exportFlags{clients: d.add}
		if err := f.check(); err != nil {
			return p, err
		}
		if p.AddClients, err = f.rules(); err != nil {
			return p, err
		}
	}
	p.RemoveClients = d.remove
	p.Options = words(d.options)
	p.Unset = words(d.unset)
	if err := new(config.Export).ApplyOptions(new(config.Client), p.Options); err != nil {
		return p, cli.Usagef("--option: %v", err)
	}
	return p, nil
}

// words splits comma-separated lists into words. It drops empty words.
func words(lists []string) (out []string) {
	for _, l := range lists {
		for w := range strings.SplitSeq(l, ",") {
			if w = strings.TrimSpace(w); w != "" {
				out = append(out, w)
			}
		}
	}
	return out
}
