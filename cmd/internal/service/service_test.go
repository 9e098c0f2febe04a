package service

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

var errUpgrade = errors.New("an upgrade is under way")

// newService makes a service of the state in a directory. While busy is true an upgrade is under
// way.
func newService(t *testing.T, dir string, busy *bool, versions ...string) (s *Service, stop func()) {
	t.Helper()
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	st, err := state.Open(context.Background(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	if len(versions) > 0 {
		cfg.NFSVersions = versions
	}
	s, err = New(Config{
		Settings: func() *config.Config { return cfg }, State: st, Files: posixfs.NewFiles(64), Log: log,
		Callers: func() map[rpc.Peer]rpc.Caller { return nil },
		MayAct: func() (func(), error) {
			if *busy {
				return nil, errUpgrade
			}
			return func() {}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, func() {
		s.Close()
		if err := errors.Join(s.ExportSet.Close(), st.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestPrograms: the lock manager and MOUNT belong to version 3.
func TestPrograms(t *testing.T) {
	for _, tc := range []struct {
		versions []string
		want     []uint32
	}{
		{[]string{"3"}, []uint32{nfs3.Program, nfs3.MountProgram, nlm.Program}},
		{[]string{"4.2"}, []uint32{nfs4.Program}},
		{[]string{"3", "4.1"}, []uint32{nfs3.Program, nfs3.MountProgram, nlm.Program, nfs4.Program}},
	} {
		s, stop := newService(t, t.TempDir(), new(bool), tc.versions...)
		for _, prog := range []uint32{nfs3.MountProgram, nlm.Program} {
			if got := slices.ContainsFunc(s.Programs, func(p rpc.Program) bool { return p.Prog == prog }); got !=
				slices.Contains(tc.want, prog) {
				t.Errorf("%q: program %d is served: %v", tc.versions, prog, got)
			}
		}
		for _, prog := range tc.want {
			if !slices.ContainsFunc(s.Programs, func(p rpc.Program) bool { return p.Prog == prog }) {
				t.Errorf("%q: program %d is not served", tc.versions, prog)
			}
		}
		stop()
	}
}

// TestNoChangeDuringAnUpgrade: clients' state is not changed while an upgrade is under way, and a
// client that does not exist is reported as such afterwards.
func TestNoChangeDuringAnUpgrade(t *testing.T) {
	busy := true
	s, stop := newService(t, t.TempDir(), &busy)
	defer stop()
	for _, err := range []error{s.EvictClient("0x1"), s.EndGrace()} {
		if !errors.Is(err, errUpgrade) {
			t.Errorf("during the upgrade: %v", err)
		}
	}
	busy = false
	if err := s.EvictClient("0x1"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("a client that there is not: %v", err)
	}
	if err := s.EvictClient("1 of them"); err == nil || !strings.Contains(err.Error(), "not a client ID") {
		t.Errorf("not an ID: %v", err)
	}
}

// TestGraceAfterARestart: who had state at the end of the last run may reclaim it, until an
// administrator ends the grace period. Without such clients there is none.
func TestGraceAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s, stop := newService(t, dir, new(bool))
	if g := s.Grace(); g.On {
		t.Errorf("at the first start: %+v", g)
	}
	if err := s.State.Journal().Add("Linux NFSv4.2 node1"); err != nil {
		t.Fatal(err)
	}
	if err := s.State.SetLockClients([]nlm.Client{{Name: "node2"}}); err != nil {
		t.Fatal(err)
	}
	stop()
	s, stop = newService(t, dir, new(bool))
	defer stop()
	g := s.Grace()
	if !g.On || g.NFS4Until == nil || g.NLMUntil == nil || !slices.Contains(g.Waiting, "Linux NFSv4.2 node1") {
		t.Errorf("after the restart: %+v", g)
	}
	if err := s.EndGrace(); err != nil {
		t.Fatal(err)
	}
	if g := s.Grace(); g.On {
		t.Errorf("after its end: %+v", g)
	}
}

// TestOldReplies: a journal of replies whose format is of an earlier version is put aside, not
// read.
func TestOldReplies(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, oldRepliesName), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stop := newService(t, dir, new(bool))
	stop()
	if b, err := os.ReadFile(filepath.Join(dir, oldRepliesName+".old")); err != nil || string(b) != "old" {
		t.Errorf("%q, %v", b, err)
	}
}

// failing is a journal of clients that can be made to fail.
type failing struct{ err error }

func (f *failing) Add(string) error       { return f.err }
func (f *failing) Remove(...string) error { return f.err }

// TestLoggedJournal: a failure that lasts is logged once, and so is its end. The caller gets each.
func TestLoggedJournal(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	f := new(failing)
	j := &loggedJournal{Journal: f, log: zap.New(core)}
	full := errors.New("no space left on device")
	for i, tc := range []struct {
		err  error
		logs int
	}{{nil, 0}, {full, 1}, {full, 1}, {nil, 2}, {nil, 2}, {full, 3}} {
		f.err = tc.err
		if err := j.Add("a"); !errors.Is(err, tc.err) {
			t.Errorf("step %d: %v", i, err)
		}
		if err := j.Remove("a"); !errors.Is(err, tc.err) || logs.Len() != tc.logs {
			t.Errorf("step %d: %v, %d lines", i, err, logs.Len())
		}
	}
}
