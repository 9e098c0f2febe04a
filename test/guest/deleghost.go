package guest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// hostUses writes and reads files that are delegated to a guest, as any program on the
// server's host: it waits until the guest has given them back, which takes less than a
// second.
func hostUses(ctx context.Context, r *Run) error {
	const patience = time.Second
	for _, s := range []struct {
		before, after string
		use           func() error
	}{
		{"readable", "changed", func() error {
			return os.WriteFile(filepath.Join(r.Exports, "file"), []byte("two from the host\n"), 0o644)
		}},
		{"written", "read", func() error {
			b, err := os.ReadFile(filepath.Join(r.Exports, "other"))
			if err == nil && string(b) != "mine\nkept\n" {
				err = fmt.Errorf("the host reads %q", b)
			}
			return err
		}},
	} {
		if err := r.Await(ctx, s.before); err != nil {
			return err
		}
		was, err := r.counts()
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := s.use(); err != nil {
			return err
		}
		took := time.Since(begin)
		is, err := r.counts()
		if err != nil {
			return err
		}
		r.Logf("%s after %v; %v %v", s.before, took, is.Events, is.Errors)
		if took > patience {
			return fmt.Errorf("%s: the host waited for %v", s.before, took)
		}
		for _, name := range []string{"nfs4_delegations_broken_by_host", "nfs4_recalls"} {
			if is.Events[name] <= was.Events[name] {
				return fmt.Errorf("%s: %s is %d, as before", s.before, name, is.Events[name])
			}
		}
		for _, name := range []string{"nfs4_delegations_revoked", "nfs4_callbacks_lost"} {
			if n := is.Errors[name]; n > 0 {
				return fmt.Errorf("%s: %s is %d", s.before, name, n)
			}
		}
		if n := is.Events["nfs4_delegations_unleased"]; n > 0 {
			return fmt.Errorf("%d delegations without a lease", n)
		}
		if err := r.Tell(s.after); err != nil {
			return err
		}
	}
	return nil
}
