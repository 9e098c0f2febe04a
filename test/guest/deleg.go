package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// recalls has the Go client, by version 3, change what is delegated to a guest, and
// checks that the daemon called the guest for that.
func recalls(ctx context.Context, r *Run) error {
	url := "nfs+tcp://" + HostAddr + "/e/"
	two := r.path("two")
	if err := os.WriteFile(two, []byte("two\n"), 0o644); err != nil {
		return err
	}
	for _, s := range []struct {
		before, after string
		args          []string
	}{
		{"delegated", "changed", []string{"put", two, url + "file"}},
		{"written", "read", []string{"get", url + "other", filepath.Join(r.Share, "got")}},
		{"removable", "removed", []string{"rm", url + "third"}},
	} {
		if err := r.Await(ctx, s.before); err != nil {
			return err
		}
		was, err := r.counts()
		if err != nil {
			return err
		}
		if err := r.Command(ctx, "rstorectl", s.args...); err != nil {
			return fmt.Errorf("%v: %w", s.args, err)
		}
		is, err := r.counts()
		if err != nil {
			return err
		}
		for _, name := range []string{"nfs4_recalls", "nfs4_recall_waits", "nfs4_callbacks"} {
			if is.Events[name] <= was.Events[name] {
				return fmt.Errorf("%v: %s is %d, as before", s.args, name, is.Events[name])
			}
		}
		for _, name := range []string{"nfs4_callbacks_lost", "nfs4_delegations_revoked", "rpcrdma_backward_message"} {
			if n := is.Errors[name]; n > 0 {
				return fmt.Errorf("%v: %s is %d", s.args, name, n)
			}
		}
		if err := r.Tell(s.after); err != nil {
			return err
		}
	}
	return nil
}

// counts are what the daemon has counted.
type counts struct {
	Messages, Errors, Events map[string]uint64
}

func (r *Run) counts() (s counts, err error) {
	out, err := r.CtlOutput("stats", "-o", "json")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(out), &s)
}
