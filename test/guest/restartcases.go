package guest

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// restarts stops the daemon gracefully, kills it, and leaves it away for longer than
// the client's patience with a connection, each time under load.
func restarts(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "loaded"); err != nil {
		return err
	}
	for _, round := range []struct {
		sig  syscall.Signal
		away time.Duration
	}{{syscall.SIGTERM, 0}, {syscall.SIGKILL, 0}, {syscall.SIGKILL, 8 * time.Second}} {
		if err := r.Sleep(ctx, 4*time.Second); err != nil {
			return err
		}
		r.Logf("restart: %v, %v away", round.sig, round.away)
		if err := r.StopDaemon(round.sig); err != nil {
			return err
		}
		if err := r.Sleep(ctx, round.away); err != nil {
			return err
		}
		if err := r.StartDaemon(ctx); err != nil {
			return err
		}
	}
	if err := r.Sleep(ctx, 5*time.Second); err != nil {
		return err
	}
	return r.Tell("stop")
}

// ownServer lets guests run the daemon themselves.
func ownServer(_ context.Context, r *Run) error {
	for _, program := range []string{"rstored", "rstorectl"} {
		b, err := os.ReadFile(filepath.Join(r.runner.Bin, program))
		if err == nil {
			err = os.WriteFile(filepath.Join(r.Share, program), b, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return r.Tell("programs")
}

// killed kills the daemon once and starts it again.
func killed(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "loaded"); err != nil {
		return err
	}
	if err := r.StopDaemon(syscall.SIGKILL); err != nil {
		return err
	}
	if err := r.StartDaemon(ctx); err != nil {
		return err
	}
	return r.Tell("restarted")
}

// killedAgain kills the daemon under load eight times.
func killedAgain(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "loaded"); err != nil {
		return err
	}
	for range 8 {
		if err := r.Sleep(ctx, 3*time.Second); err != nil {
			return err
		}
		if err := r.StopDaemon(syscall.SIGKILL); err != nil {
			return err
		}
		if err := r.StartDaemon(ctx); err != nil {
			return err
		}
	}
	if err := r.Sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	return r.Tell("stop")
}
