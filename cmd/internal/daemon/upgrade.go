package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/safepath"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// This file runs an upgrade of the old process. The protocol between the two processes is in
// cmd/internal/upgrade, the order of the components in handover.go, and the stages in
// upgrade.Freezer.
//
// What happens on failure depends on the word go. Before it every failure kills the new process and
// thaws the components, the last stage first; the old process continues, and its state has not
// changed. After it the old process never serves again (abandon).

// errUpgrading is returned while another reload or upgrade is under way.
var errUpgrading = errors.New("a reload or an upgrade is under way")

// Upgrade implements control.Backend. After a success the process has only to exit.
func (d *Daemon) Upgrade(path string) (control.Upgraded, error) {
	if !d.reloading.TryLock() {
		return control.Upgraded{}, errUpgrading
	}
	defer d.reloading.Unlock()
	d.notify(d.manager.Reloading())
	u, err := d.upgrade(path)
	if err != nil {
		d.notify(d.manager.Ready(d.summary()))
	}
	return u, err
}

// upgrade is Upgrade, with reloading held.
func (d *Daemon) upgrade(path string) (_ control.Upgraded, err error) {
	if d.isReplaced() {
		return control.Upgraded{}, errReplaced
	}
	if d.cluster != nil {
		return control.Upgraded{}, errors.New("a node of a cluster is not upgraded live: restart it, and its clients " +
			"reclaim")
	}
	named := path != "" && path != d.exe
	path = cmp.Or(path, d.exe)
	for _, e := range d.Exports() {
		if e.Type == config.TypeMemory {
			return control.Upgraded{}, fmt.Errorf("export %s is in the memory of this process, and would be lost; "+
				"a restart loses it too", e.Pseudo)
		}
	}
	began := time.Now()
	d.log.Info("upgrading", zap.String("executable", path))
	defer func() {
		if err != nil {
			if !errors.Is(err, errSuccessorFailed) {
				err = fmt.Errorf("%w; %s goes on", err, cli.ReadBuild().Version)
			}
			d.log.Error("the upgrade has failed", zap.Error(err))
		}
		d.audit.Record("upgrade", zap.String("executable", path), zap.Error(err))
	}()
	if named {
		if err := safepath.Check(path, safepath.Me()...); err != nil {
			return control.Upgraded{}, fmt.Errorf("only what nobody but root can change is executed: %w", err)
		}
	}
	h, err := upgrade.Spawn(path)
	if err != nil {
		return control.Upgraded{}, err
	}
	u := control.Upgraded{Executable: path, OldVersion: cli.ReadBuild().String(), OldPID: os.Getpid(), PID: h.PID()}
	said, err := h.Prepare(d.times.Prepare,
		upgrade.Hello{Version: u.OldVersion, StateDir: d.cfg.Load().StateDir, Control: d.cfg.Load().Control})
	if err != nil {
		return control.Upgraded{}, errors.Join(fmt.Errorf("%s did not get ready: %w", path, err), h.Kill())
	}
	u.NewVersion = said.Version
	u.PrepareMillis = millis(time.Since(began))

	if err := d.mayChange(); err != nil {
		return control.Upgraded{}, errors.Join(err, h.Kill())
	}
	defer d.mu.Unlock()
	if !d.acting.TryLock() {
		return control.Upgraded{}, errors.Join(errActing, h.Kill())
	}
	defer d.acting.Unlock()
	stood := time.Now()
	f := upgrade.Freezer{Components: d.components(), Work: d.work, Slow: d.RPC.InProgress, Times: d.times}
	var got upgrade.Restored
	if err = f.Freeze(); err == nil {
		got, err = h.HandOver(f.Components, d.times.Restore)
	}
	if err == nil && d.draining.Load() { // since it began
		err = errDraining
	}
	if err != nil {
		err = errors.Join(err, h.Kill()) // before anything continues here
		return control.Upgraded{}, errors.Join(err, f.Thaw())
	}
	// There is no way back from here.
	d.handedOver = true
	u.RDMA, u.TCP, u.DrainMillis, u.Dropped = got.RDMA, got.TCP, millis(f.Drained), f.Dropped+d.ports.Fixed()
	d.notify(d.manager.MainPID(u.PID))
	if err := h.Go(); err != nil {
		return control.Upgraded{}, d.abandon(h, err)
	}
	u.Dropped += d.ports.CloseKernel()
	if err := h.Await(upgrade.WordServing, d.times.Serving, nil); err != nil {
		return control.Upgraded{}, d.abandon(h, err)
	}
	u.PauseMillis = millis(time.Since(stood))
	h.Release()
	d.log.Info("upgraded: the new process serves", zap.String("version", u.NewVersion), zap.Int("pid", u.PID),
		zap.Float64("pause_ms", u.PauseMillis), zap.Float64("drain_ms", u.DrainMillis),
		zap.Int("rdma", u.RDMA), zap.Int("tcp", u.TCP), zap.Int("dropped", u.Dropped))
	close(d.replaced)
	return u, nil
}

func millis(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

// errSuccessorFailed ends a process whose successor failed after the word go. What the successor
// has done by then is unknown.
var errSuccessorFailed = errors.New("the new process failed after it had taken over")

// abandon kills a successor that does not report that it serves, and ends this process. The service
// manager starts another one, as after a crash.
func (d *Daemon) abandon(h *upgrade.Successor, why error) error {
	err := errors.Join(fmt.Errorf("%w: %w", errSuccessorFailed, why), h.Kill())
	d.notify(d.manager.MainPID(os.Getpid()))
	d.failed <- err
	return err
}
