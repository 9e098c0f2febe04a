package daemon

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// Reload reads the configuration again and applies what may change at run time:
// exports, ports and the log level. A bad configuration changes nothing; of a
// good one, what cannot be opened is left out and reported. The service manager gets RELOADING and
// READY also if rstorectl asked for the reload.
func (d *Daemon) Reload() error {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	d.notify(d.manager.Reloading())
	err := d.reload()
	d.notify(d.manager.Ready(d.summary()))
	return err
}

func (d *Daemon) reload() error {
	if d.isReplaced() {
		return errUpgrading
	}
	if !upgrade.Runs(d.exe) {
		_, err := d.upgrade("")
		return err
	}
	cfg, err := d.Load()
	if err != nil {
		return fmt.Errorf("the old configuration stays in force: %w", err)
	}
	old := d.cfg.Load()
	for _, c := range config.Waiting(old, cfg) {
		d.log.Warn("a changed setting takes effect at the next start", zap.String("key", c.Key),
			zap.String("in_force", c.Old), zap.String("configured", c.New))
	}
	if err := d.log.Level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		return err
	}
	d.monitor.pprof.Store(cfg.OpsPprof)
	if err := d.audit.Reopen(); err != nil {
		d.log.Error("the audit log cannot be opened anew", zap.Error(err))
	}
	defer func() { d.logWarnings(cfg, d.Exports()) }()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cfg.Store(cfg)
	d.LimitMapped(cfg.MappedBytes())
	if err := errors.Join(d.tls.Apply(cfg), d.applyOTLP(cfg), d.devices.ApplyPKeys(), d.ApplyExports(false),
		d.ApplyPorts(false)); err != nil {
		return fmt.Errorf("the new configuration is in force, except: %w", err)
	}
	d.LogShadowed()
	d.log.Info("configuration reloaded", zap.String("file", cfg.File))
	return nil
}

// mountsChanged applies the exports that depend on mounts, and tries the exports again that could
// not be opened.
func (d *Daemon) mountsChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	depends := func(e *exports.Export) bool { return e.CrossMnt || e.MountPoint != "" || e.Error != "" }
	if d.draining.Load() || d.handedOver || !slices.ContainsFunc(d.ExportSet.All(), depends) {
		return
	}
	if err := d.ApplyExports(false); err != nil {
		d.log.Debug("after a change of the host's mounts", zap.Error(err)) // logged when it was new
	}
}

// retryExports tries exports that cannot be served again, every exportRetry until end is closed. It
// looks for a missing directory without the lock, because its file system may not answer.
func (d *Daemon) retryExports(end <-chan struct{}) {
	t := time.NewTicker(exportRetry)
	defer t.Stop()
	for {
		select {
		case <-end:
			return
		case <-t.C:
		}
		if slices.ContainsFunc(d.ExportSet.All(), func(e *exports.Export) bool {
			if e.Error == "" {
				return false
			}
			_, err := os.Stat(e.Path)
			return err == nil
		}) {
			d.mountsChanged()
		}
		if d.SnapshotsChanged() {
			_ = d.Rescan() // what cannot be served has its error in the list of exports
		}
	}
}

// Rescan implements control.Backend.
func (d *Daemon) Rescan() error {
	if err := d.MayChange(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	return d.ApplyExports(false)
}

// exportRetry is the time between two attempts to serve an export, and between two looks for new
// snapshots.
const exportRetry = 5 * time.Second
