package ctl

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/migrate"
)

func (t *tool) importFiles() *cobra.Command {
	var from string
	c := &cobra.Command{
		Use:   "import FILE...",
		Short: "Make rstored.yaml from the configuration of another NFS server, without a daemon",
		Long: `Read ganesha.conf of NFS-Ganesha, or nfs.conf and /etc/exports of the Linux kernel's server,
and print a configuration for rstored. nfs.conf brings /etc/exports with it. What could not be
carried over goes to standard error, with file and line, and into comments of the output.
Nobody gets more access than before: an export that rules cannot say exactly is left out.`,
		Example: `  rstorectl import /etc/ganesha/ganesha.conf
  rstorectl import /etc/nfs.conf > /etc/rstored/rstored.yaml`,
		Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if from != "" && !slices.Contains(migrate.Kinds, from) {
				return cli.Usagef("--from %q is none of %s", from, strings.Join(migrate.Kinds, ", "))
			}
			if t.g.Output == cli.FormatJSON {
				return cli.Usagef("a configuration is YAML")
			}
			im := migrate.New()
			for _, file := range args {
				if err := im.Add(file, from); err != nil {
					return importError(err)
				}
			}
			text, err := im.YAML()
			if err != nil {
				return importError(err)
			}
			for _, n := range im.Notes() {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", n)
			}
			_, err = t.g.Out.Write(text)
			return err
		},
	}
	c.Flags().StringVar(&from, "from", "",
		"`KIND` of the files: ganesha, nfs.conf or exports (default: by name and text)")
	completeFlag(c, "from", migrate.Kinds...)
	return c
}

// importError distinguishes a file that cannot be read from a file with mistakes.
func importError(err error) error {
	if errors.As(err, new(*fs.PathError)) {
		return err
	}
	return &cli.ConfigError{Err: err}
}
