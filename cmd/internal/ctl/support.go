package ctl

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/bundle"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

func (t *tool) supportBundle() *cobra.Command {
	var out, file, unit string
	var anonymous bool
	var profile time.Duration
	c := &cobra.Command{
		Use:   "support-bundle",
		Short: "Collect data to diagnose a fault, without secrets",
		Long: `Collect data for the search for a fault in a compressed archive: the configuration, exports and
clients, counters, metrics, slow calls, the log, stacks of goroutines, versions, settings of the
kernel, network and RDMA devices, and the findings of the doctor. manifest.json in it describes
each file, with its checksum, and names what is missing. Without a daemon it has the data of the host.

Keys, passwords, tokens and comments of configurations are left out. The state directory is not read.
Names of exports and addresses of clients are in the archive. --anonymous replaces them, and names of
hosts and files, by other names, the same in the whole archive. Look at it before you give it away.`,
		Example: "  rstorectl support-bundle\n  rstorectl support-bundle -w case.tar.gz --profile 10s --anonymous",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if profile < 0 || profile > control.ProfileMax || profile%time.Second != 0 {
				return cli.Usagef("--profile is whole seconds, at most %v", control.ProfileMax)
			}
			if out == "" {
				out = "rstored-support-" + time.Now().Format("20060102-150405") + ".tar.gz"
			}
			if file == "" {
				if st, err := t.daemon().Status(cmd.Context()); err == nil && st.Config != "" {
					file = st.Config
				} else {
					file = config.SystemFile
				}
			}
			ctx, stop := untilSignal(cmd, 0)
			defer stop()
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			m, err := bundle.Write(ctx, f, bundle.Config{
				Daemon: t.daemon(), File: file, Unit: unit, Profile: profile, Anonymous: anonymous,
			})
			if err = errors.Join(err, ctx.Err(), f.Close()); err != nil {
				return errors.Join(err, os.Remove(out))
			}
			return t.g.Print(m, func(w io.Writer) {
				for _, x := range m.Missing {
					t.sayf(w, "missing: %s: %s", x.Name, x.Why)
				}
				fmt.Fprintf(w, "%s has %d files\n", out, len(m.Files)+1)
			})
		},
	}
	c.Flags().StringVarP(&out, "write", "w", "", "`FILE` to write (default: rstored-support-TIME.tar.gz here)")
	c.Flags().StringVar(&file, "config", "", "configuration `FILE` (default: that of the daemon)")
	c.Flags().StringVar(&unit, "unit", "rstored", "`UNIT` of systemd whose journal is read")
	c.Flags().DurationVar(&profile, "profile", 0, "profile the daemon for this `DURATION`")
	c.Flags().BoolVar(&anonymous, "anonymous", false, "replace addresses, names of hosts, and paths")
	return c
}
