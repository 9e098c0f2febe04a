package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/snapshot"
)

func (t *tool) snapshot() *cobra.Command {
	return group("snapshot", "Manage snapshots of exports",
		t.snapshotCreate(), t.snapshotList(), t.snapshotRemove(), t.snapshotSchedule(), t.snapshotRun())
}

var errHere = cli.Usagef("snapshots are made on the host of the server: run this there, without --server")

// volume finds an export and the way to make its snapshots. This program makes the snapshots
// itself, because the daemon may neither mount nor remove subvolumes.
func (t *tool) volume(ctx context.Context, name string) (control.Export, *snapshot.Volume, error) {
	if t.g.Server != "" {
		return control.Export{}, nil, errHere
	}
	e, err := t.daemon().Export(ctx, name)
	if err != nil {
		return e, nil, err
	}
	if e.Type != config.TypePosix || e.Origin == control.OriginSnapshot {
		return e, nil, fmt.Errorf("export %s is no directory that could have snapshots", e.Pseudo)
	}
	v, err := snapshot.Open(e.Path, desired.HostMounts())
	return e, v, err
}

// seenAs returns the path at which clients find a snapshot of an export.
func seenAs(e *control.Export, name string) string {
	return path.Join(e.Pseudo, desired.SnapshotDir, name)
}

func (t *tool) snapshotCreate() *cobra.Command {
	return &cobra.Command{
		Use:   "create EXPORT [NAME]",
		Short: "Make a snapshot of an export",
		Long: `Make a snapshot of an export, on the host of the server, as root. Clients find it read-only
in the directory .snapshots of the export. NAME is the time if it is not given. The export is
a subvolume of btrfs, a dataset of ZFS, or a file system on a thin logical volume of LVM.`,
		Example: `  rstorectl snapshot create /data
  rstorectl snapshot create /data before-upgrade`,
		Args:              cli.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: t.completeExports,
		RunE: func(cmd *cobra.Command, args []string) error {
			e, v, err := t.volume(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			name := snapshot.Stamp(time.Now())
			if len(args) > 1 {
				name = args[1]
			}
			if err := v.Create(name); err != nil {
				return err
			}
			if err := t.daemon().Rescan(cmd.Context()); err != nil {
				return fmt.Errorf("the snapshot was made, and not everything is served: %w", err)
			}
			at := seenAs(&e, name)
			return t.done(map[string]string{"name": name, "path": at}, "made %s", at)
		},
	}
}

func (t *tool) snapshotList() *cobra.Command {
	return &cobra.Command{
		Use:               "list EXPORT",
		Aliases:           []string{"ls"},
		Short:             "List the snapshots of an export",
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeExports,
		RunE: func(cmd *cobra.Command, args []string) error {
			e, v, err := t.volume(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			all, err := v.List()
			if err != nil {
				return err
			}
			if all == nil {
				all = []snapshot.Snapshot{}
			}
			return t.g.Print(all, func(w io.Writer) {
				rows(w, "NAME\tMADE\tPATH", all, func(s *snapshot.Snapshot) []any {
					return []any{s.Name, s.Made.Format(time.RFC3339), seenAs(&e, s.Name)}
				})
			})
		},
	}
}

func (t *tool) snapshotRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "remove EXPORT NAME...",
		Aliases: []string{"rm", "delete"},
		Short:   "Remove snapshots of an export",
		Args:    cli.Args(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, v, err := t.volume(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var errs []error
			for _, name := range args[1:] {
				if err := v.Remove(name); err != nil {
					errs = append(errs, err)
					continue
				}
				if t.g.Output == cli.FormatTable {
					t.sayf(t.g.Out, "removed snapshot %s", name)
				}
			}
			return errors.Join(append(errs, t.daemon().Rescan(cmd.Context()))...)
		},
	}
}

func (t *tool) snapshotSchedule() *cobra.Command {
	var s snapshot.Schedule
	var off bool
	c := &cobra.Command{
		Use:   "schedule EXPORT",
		Short: "Show or set how many snapshots are made and kept",
		Long: `Show or set how many snapshots are made and kept: the last one of each of so many hours, days,
weeks and months. Flags replace the whole schedule. The timer rstored-snapshots.timer runs
'rstorectl snapshot run' every hour. Snapshots of 'snapshot create' are never removed.`,
		Example: `  rstorectl snapshot schedule /data --hourly 24 --daily 7 --weekly 4
  rstorectl snapshot schedule /data
  rstorectl snapshot schedule /data --off`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeExports,
		RunE: func(cmd *cobra.Command, args []string) error {
			if off && !s.Empty() {
				return cli.Usagef("--off and numbers exclude each other")
			}
			e, v, err := t.volume(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if off || !s.Empty() {
				if err := v.SetSchedule(s); err != nil {
					return err
				}
			} else if s, err = v.Schedule(); err != nil {
				return err
			}
			return t.done(s, "%s: %s", e.Pseudo, s)
		},
	}
	for _, p := range []struct {
		to   *int
		name string
	}{{&s.Hourly, "hour"}, {&s.Daily, "day"}, {&s.Weekly, "week"}, {&s.Monthly, "month"}} {
		flag := map[string]string{"day": "daily"}[p.name]
		c.Flags().IntVar(p.to, cmp.Or(flag, p.name+"ly"), 0, "keep the last one of each of `N` "+p.name+"s")
	}
	c.Flags().BoolVar(&off, "off", false, "make and remove no more")
	return c
}

func (t *tool) snapshotRun() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Make and remove snapshots as scheduled, for all exports",
		Long: `Make the snapshots that are due, and remove those that the schedules do not keep, for all
exports. After a restart of the host it mounts the snapshots of ZFS and LVM again.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.g.Server != "" {
				return errHere
			}
			list, err := t.daemon().Exports(cmd.Context())
			if err != nil {
				return err
			}
			type change struct {
				Export  string   `json:"export"`
				Made    []string `json:"made"`
				Removed []string `json:"removed"`
			}
			changes := []change{}
			var errs []error
			mounts := desired.HostMounts()
			for i := range list {
				e := &list[i]
				if e.Type != config.TypePosix || e.Origin == control.OriginSnapshot || e.Error != "" {
					continue
				}
				v, err := snapshot.Open(e.Path, mounts)
				if err != nil {
					continue // the export can have no snapshots
				}
				made, removed, err := v.Run(time.Now())
				if err != nil {
					errs = append(errs, fmt.Errorf("export %s: %w", e.Pseudo, err))
				}
				if len(made)+len(removed) > 0 {
					changes = append(changes, change{e.Pseudo, made, removed})
				}
			}
			errs = append(errs, t.daemon().Rescan(cmd.Context()), t.g.Print(changes, func(w io.Writer) {
				for _, c := range changes {
					t.sayf(w, "%s: made %d, removed %d", c.Export, len(c.Made), len(c.Removed))
				}
			}))
			return errors.Join(errs...)
		},
	}
}
