package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/lease"
	"github.com/rstored/rstored/cmd/internal/state"
)

// TestDemotedUnreleased: a demoted process whose stop took too long has not released the lease. The
// process that replaces it leaves the lease to the other node. A process that was killed has its
// successor take the lease at once.
func TestDemotedUnreleased(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Skip("the kernel has no boot ID: ", err)
	}
	record, err := json.Marshal(lease.Record{Epoch: 1, Node: "a", Boot: strings.TrimSpace(string(boot)), Count: 7})
	if err != nil {
		t.Fatal(err)
	}
	// sharing is what the daemon of a node opens dir with.
	sharing := func(dir, node string, term time.Duration) *state.Sharing {
		cfg := &config.Config{HALease: term, HANode: node, HAPromote: config.PromoteAuto, StateDir: dir}
		s, err := new(Daemon).standBy(cfg, control.Access{})
		if err != nil {
			t.Fatal(err)
		}
		out := s.sharing()
		out.Waiting, out.Lost = nil, func(error) {}
		return out
	}
	directory := func() string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "lease.1"), record, 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}

	killed := directory()
	s, err := state.Open(t.Context(), killed, sharing(killed, "a", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	const term = 500 * time.Millisecond
	demoted := directory()
	t.Setenv(demotedVariable, "1")
	a := sharing(demoted, "a", term)
	looked := make(chan lease.Record, 1)
	a.Waiting = func(r lease.Record) {
		select {
		case looked <- r:
		default:
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waits := make(chan error, 1)
	go func() {
		s, err := state.Open(ctx, demoted, a)
		if err == nil {
			_ = s.Close()
		}
		waits <- err
	}()
	select {
	case <-looked:
	case err := <-waits:
		t.Fatalf("the demoted node has the lease again: %v", err)
	}
	if s, err = state.Open(t.Context(), demoted, sharing(demoted, "b", term)); err != nil {
		t.Fatal(err)
	}
	if l := s.Lease(); l.Before.Node != "a" || !l.Unclean {
		t.Errorf("node b has the lease over %+v, unclean %v", l.Before, l.Unclean)
	}
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("the demoted node: %v", err)
	}
	_ = s.Close() // a busy machine may have lost the lease by now
}
