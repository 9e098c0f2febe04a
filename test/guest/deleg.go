package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// recalls has the Go client, by either version, look at and change what is delegated to a guest,
// and checks that the daemon called the guest for that.
func recalls(ctx context.Context, r *Run) error {
	return r.wanted(ctx, "delegated", "written", "removable")
}

// recallsRead is recalls for files that are delegated for reading alone.
func recallsRead(ctx context.Context, r *Run) error { return r.wanted(ctx, "delegated", "removable") }

// wanted does what the Go client does in recalls, at these stages.
func (r *Run) wanted(ctx context.Context, stages ...string) error {
	url := "nfs+tcp://" + r.Addr() + "/e/"
	two := r.path("two")
	if err := os.WriteFile(two, []byte("two\n"), 0o644); err != nil {
		return err
	}
	for _, s := range []struct {
		before, after string
		args          []string
	}{
		{"delegated", "changed", []string{"put", "--nfs-version", "3", two, url + "file"}},
		{"written", "read", []string{"get", "--nfs-version", "4.2", url + "other", filepath.Join(r.Share, "got")}},
		{"removable", "removed", []string{"rm", "--nfs-version", "3", url + "third"}},
	} {
		if !slices.Contains(stages, s.before) {
			continue
		}
		if s.before == "written" {
			if err := measured(ctx, r, url+"other", len("mine\nmore\nkept\n")); err != nil {
				return err
			}
		}
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

// measured has the Go client look at a file that a guest has changed and not written yet:
// the guest is asked for its size, and keeps the delegation.
func measured(ctx context.Context, r *Run, url string, size int) error {
	if err := r.Await(ctx, "unwritten"); err != nil {
		return err
	}
	was, err := r.counts()
	if err != nil {
		return err
	}
	out, err := os.Create(r.path("stat.json"))
	if err != nil {
		return err
	}
	defer out.Close()
	p, err := r.start("rstorectl", out, filepath.Join(r.runner.Bin, "rstorectl"), "stat", "--nfs-version", "4.2", "-o",
		"json", url)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.stop(syscall.SIGTERM)
		return context.Cause(ctx)
	}
	if p.err != nil {
		return p.err
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		return err
	}
	if want := fmt.Sprintf(`"size": %d,`, size); !strings.Contains(string(b), want) {
		return fmt.Errorf("not %s in %s", want, b)
	}
	is, err := r.counts()
	if err != nil {
		return err
	}
	const asked, recalls = "nfs4_callback_getattrs", "nfs4_recalls"
	if is.Events[asked] <= was.Events[asked] || is.Events[recalls] != was.Events[recalls] {
		return fmt.Errorf("asked for attributes %d times, for delegations %d, %d before", is.Events[asked],
			is.Events[recalls], was.Events[recalls])
	}
	return r.Tell("measured")
}

// recallsLate takes the RDMA port away when a file is delegated, has the Go client ask
// for the file, and puts the port back.
func recallsLate(ctx context.Context, r *Run) error {
	two := r.path("two")
	if err := os.WriteFile(two, []byte("two\n"), 0o644); err != nil {
		return err
	}
	if err := r.Await(ctx, "delegated"); err != nil {
		return err
	}
	at := r.rdmaAt()
	if err := r.Ctl("port", "remove", "rdma", at); err != nil {
		return err
	}
	if err := r.Tell("cut"); err != nil {
		return err
	}
	put := make(chan error, 1)
	go func() {
		put <- r.Command(ctx, "rstorectl", "put", "--nfs-version", "3", two, "nfs+tcp://"+r.Addr()+"/e/file")
	}()
	if err := r.Sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	select {
	case err := <-put:
		return fmt.Errorf("the file was changed while it was delegated to a guest that could not be asked: %w", err)
	default:
	}
	if err := r.Ctl("port", "add", "rdma", at); err != nil {
		return err
	}
	if err := <-put; err != nil {
		return err
	}
	n, err := r.counts()
	if err != nil {
		return err
	}
	r.Logf("%v %v", n.Events, n.Errors)
	if n.Errors["nfs4_delegations_revoked"] > 0 || n.Events["nfs4_recalls"] == 0 {
		return fmt.Errorf("%d recalls, %d delegations taken away", n.Events["nfs4_recalls"],
			n.Errors["nfs4_delegations_revoked"])
	}
	return r.Tell("changed")
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
