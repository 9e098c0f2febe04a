package daemon

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/ctl"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/cmd/internal/handover"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// Root makes the command tree of rstored.
func Root(g *cli.Globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "rstored",
		Short: "Serve directories by NFS over RDMA and TCP",
		Long: `rstored serves directories by NFS versions 3, 4.0, 4.1 and 4.2 over RDMA (RoCEv2,
in software) and over TCP. It stays in the foreground and logs to standard error.

For a first try nothing needs to be configured:

  rstored --export /srv/data

SIGTERM and SIGINT stop it gracefully, a second signal at once. At SIGHUP it reads its
configuration again. Every flag is also a key of the configuration file and an
environment variable: --state-dir, state_dir, RSTORED_STATE_DIR.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			before, err := handover.Inherited()
			if err != nil {
				return err
			}
			defer func() {
				if before != nil && err != nil {
					upgrade.Fail(before, err)
				}
			}()
			load := func() (*config.Config, error) { return config.Load(cmd.Flags()) }
			cfg, err := load()
			if err != nil {
				return &cli.ConfigError{Err: err}
			}
			log, err := telemetry.NewLog(cfg.LogLevel, cfg.LogFormat)
			if err != nil {
				return &cli.ConfigError{Err: err}
			}
			return Run(cmd.Context(), cfg, load, log, before)
		},
		Version: cli.ReadBuild().String(),
	}
	cli.Prepare(root)
	config.AddFlags(root.PersistentFlags())
	root.SetOut(g.Out)
	root.SetErr(g.Err)
	root.AddCommand(configCommand(g), ctl.UpgradeCommand(g, func(cmd *cobra.Command) (*control.Dialer, error) {
		cfg, err := config.Load(cmd.Flags())
		if err != nil {
			return nil, &cli.ConfigError{Err: err}
		}
		return control.Dial(cfg.Control), nil
	}), cli.VersionCommand(g, "rstored"))
	return root
}

func configCommand(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Work with the configuration without starting",
		Args:  cli.Args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(
		&cobra.Command{
			Use:   "validate",
			Short: "Check the configuration, and what a start opens",
			Long: `Check the configuration, and what a start with it opens. Exit codes:

  0   the configuration is good
  1   it is good, but a start could not serve all exports and ports now: a directory is
      missing, or an address is taken. The daemon serves the rest, and tries these again
  78  a start would fail

Ports that a running daemon serves are not tried.`,
			Args: cli.Args(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error {
				cfg, err := config.Load(cmd.Flags())
				if err != nil {
					return &cli.ConfigError{Err: err}
				}
				unknown, err := check(cfg)
				if err != nil {
					return err
				}
				for _, w := range append(cfg.Advice(), unknown...) {
					fmt.Fprintln(g.Err, "warning:", w)
				}
				if list := unserved(cmd.Context(), cfg); len(list) > 0 {
					return fmt.Errorf("the configuration is good, but a start could not serve all of it now:\n  %s",
						strings.Join(list, "\n  "))
				}
				fmt.Fprintln(g.Out, "the configuration is good")
				return nil
			},
		},
		&cobra.Command{
			Use:   "default",
			Short: "Print the defaults as a configuration file",
			Args:  cli.Args(cobra.NoArgs),
			RunE:  func(*cobra.Command, []string) error { return printConfig(g, config.Default()) },
		},
		&cobra.Command{
			Use:   "dump",
			Short: "Print the configuration that results from file, environment and flags",
			Args:  cli.Args(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error {
				cfg, err := config.Load(cmd.Flags())
				if err != nil {
					return &cli.ConfigError{Err: err}
				}
				return printConfig(g, cfg)
			},
		},
	)
	return c
}

func printConfig(g *cli.Globals, cfg *config.Config) error {
	y, err := cfg.YAML()
	if err != nil {
		return err
	}
	_, err = g.Out.Write(y)
	return err
}

// Run starts a daemon and serves until a signal or the end of ctx stops it, or until a successor
// serves. before is the connection to the old process of an upgrade, or nil.
func Run(ctx context.Context, cfg *config.Config, load func() (*config.Config, error), log *telemetry.Log,
	before *handover.Conn,
) error {
	defer func() { _ = log.Sync() }() // standard error may not support it
	// The client chooses the mode of a new file. The daemon sets the modes of its own files where it
	// makes them.
	unix.Umask(0)
	sig := hangups()
	defer signal.Stop(sig)
	var from *upgrade.Predecessor
	if before != nil {
		var err error
		if from, err = prepare(before, cfg); err != nil {
			return err
		}
	}
	d, err := start(cfg, load, log, true, from, devices.System())
	if errors.Is(err, errNotRestored) {
		log.Error("clients have a grace period instead", zap.Error(err))
		return again(log)
	}
	if err != nil {
		return err
	}
	return d.wait(ctx, sig)
}
