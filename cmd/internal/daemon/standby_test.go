package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/lease"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
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

// TestStandbyMetrics: a node that waits says so to Prometheus and to health checks, with the age of
// what it has seen of the lease, and the ports are free when it serves.
func TestStandbyMetrics(t *testing.T) {
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	d := &Daemon{log: log, manager: telemetry.NewNotifier()}
	cfg := &config.Config{
		HALease: 4 * time.Second, HANode: "b", HAPromote: config.PromoteAuto, StateDir: t.TempDir(), OpsListen: []string{at},
		Control: filepath.Join(t.TempDir(), "control"),
	}
	d.cfg.Store(cfg)
	s, err := d.standBy(cfg, control.Access{})
	if err != nil {
		t.Fatal(err)
	}
	look := s.sharing().Waiting
	look(lease.Record{Epoch: 3, Node: "a", Count: 1}) // the address is not free yet
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	look(lease.Record{Epoch: 3, Node: "a", Count: 1})
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get("http://" + at + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	lag := func() (v float64) {
		t.Helper()
		const name = `rstored_ha_lag_seconds{holder="a"} `
		_, text := get("/metrics")
		_, rest, ok := strings.Cut(text, name)
		if _, err := fmt.Sscan(rest, &v); !ok || err != nil {
			t.Fatalf("no %s: %v\n%s", name, err, text)
		}
		for _, want := range []string{"rstored_ha_lease_seconds 4\n", `rstored_ha_since_seconds{role="standby"} `} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s", want)
			}
		}
		if strings.Contains(text, "rstored_ha_epoch") {
			t.Error("a standby has the metric of who serves")
		}
		return v
	}
	before := lag()
	time.Sleep(10 * time.Millisecond)
	look(lease.Record{Epoch: 3, Node: "a", Count: 1})
	if after := lag(); after < before+0.01 {
		t.Errorf("the lag is %v, and was %v, without a renewal", after, before)
	}
	seen := s.seen.Load().at
	look(lease.Record{Epoch: 3, Node: "a", Count: 2})
	if !s.seen.Load().at.After(seen) {
		t.Error("a renewal was not seen")
	}
	if code, text := get("/livez"); code != http.StatusOK {
		t.Errorf("a standby is not alive: %d %s", code, text)
	}
	if code, text := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "standby") {
		t.Errorf("a standby is ready: %d %s", code, text)
	}
	s.end(lease.Record{})
	if free, err = net.Listen("tcp", at); err != nil {
		t.Fatalf("the port is in use: %v", err)
	}
	_ = free.Close()
}
