package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/live"
	"github.com/rstored/rstored/cmd/internal/state"
)

// fake is a Backend with one export.
type fake struct{ exports []Export }

func (f *fake) Status() Status          { return Status{State: StateRunning, PID: 7} }
func (f *fake) Config() ([]byte, error) { return []byte("log_level: info\n"), nil }
func (f *fake) Exports() []Export       { return f.exports }
func (f *fake) QPs() []QP               { return []QP{} }
func (f *fake) Ports() []Port           { return []Port{} }
func (f *fake) Clients() []Client       { return nil }
func (f *fake) Stats() Stats            { return Stats{RDMAWriteBytes: 1 << 60} }
func (f *fake) Sample() live.Sample     { return live.Sample{RDMAWritten: 1 << 60} }
func (f *fake) Rescan() error           { return nil }
func (f *fake) Reload() error           { return errors.New("log_level: \"loud\" is unknown") }
func (f *fake) HA() (HA, error) {
	return HA{
		Node: "a", Role: RoleServing, Epoch: 4, Standbys: []StandbyNode{{Node: "b", Address: "10.0.0.2:20050"}},
	}, nil
}
func (f *fake) Demote() error { return nil }

func (f *fake) Cluster() (Cluster, error) { return Cluster{}, nil }

func (f *fake) DrainNode(string) error { return nil }
func (f *fake) Failover(to string) (FailedOver, error) {
	if to != "b" {
		return FailedOver{}, errors.New("no standby waits")
	}
	return FailedOver{From: "a", To: to, Version: "1.3", PauseMillis: 80.5, Dropped: 2}, nil
}

func (f *fake) Upgrade(path string) (Upgraded, error) {
	if path == "" {
		return Upgraded{}, errors.New("the new process cannot take over; 1.2 goes on")
	}
	return Upgraded{Executable: path, OldVersion: "1.2", NewVersion: "1.3", PID: 7, PauseMillis: 12.5, RDMA: 3}, nil
}
func (f *fake) Devices() []Device         { return nil }
func (f *fake) PostMortems() []PostMortem { return nil }
func (f *fake) Ops() Ops                  { return Ops{} }
func (f *fake) SetPprof(bool)             {}
func (f *fake) Slow() []SlowCall          { return nil }
func (f *fake) Denials() []Denial         { return nil }
func (f *fake) Trace(context.Context, netip.Addr, io.Writer, func() error) error {
	return nil
}
func (f *fake) SetLogLevel(string) error         { return nil }
func (f *fake) RemovePort(PortSpec) error        { return nil }
func (f *fake) AddPort(p PortSpec) (Port, error) { return Port{PortSpec: p}, nil }

func (f *fake) NFS4Clients() []NFS4Client { return []NFS4Client{{ID: "0x1", Owner: "a b"}} }
func (f *fake) EvictClient(id string) error {
	if id == "0x1" {
		return nil
	}
	return fmt.Errorf("client %q: %w", id, ErrNotFound)
}
func (f *fake) NFS4Sessions() []NFS4Session { return []NFS4Session{} }
func (f *fake) Locks() []FileLock           { return []FileLock{} }
func (f *fake) Delegations() []Delegation   { return []Delegation{} }
func (f *fake) Grace() Grace                { return Grace{On: true, Waiting: []string{"a b"}} }
func (f *fake) EndGrace() error             { return nil }
func (f *fake) PKeys() []PKey               { return []PKey{{PKey: "0xffff", Membership: "full"}} }
func (f *fake) AddPKey(string) error        { return nil }
func (f *fake) RemovePKey(string) error     { return nil }
func (f *fake) AddExport(e config.Export) (Export, error) {
	if err := e.Normalize(); err != nil {
		return Export{}, err
	}
	x := Export{Export: e}
	f.exports = append(f.exports, x)
	return x, nil
}

func (f *fake) SetExport(name string, p ExportPatch) (Export, error) {
	for i := range f.exports {
		if f.exports[i].Named(name) {
			f.exports[i].ReadOnly = *p.ReadOnly
			return f.exports[i], nil
		}
	}
	return Export{}, fmt.Errorf("export %q: %w", name, ErrNotFound)
}

func (f *fake) RevertExports(removedOnly bool) error {
	return fmt.Errorf("removed only: %v", removedOnly)
}

func (f *fake) RemoveExport(name string) error {
	return fmt.Errorf("export %q: %w", name, ErrNotFound)
}

func (f *fake) Metrics(io.Writer) error                  { return nil }
func (f *fake) RecentLog() []byte                        { return nil }
func (f *fake) Goroutines(io.Writer) error               { return nil }
func (f *fake) Profile(context.Context, io.Writer) error { return nil }
func (f *fake) Plan(File) (Plan, error)                  { return Plan{}, nil }
func (f *fake) Apply(Apply, Peer) (Applied, error)       { return Applied{}, nil }
func (f *fake) History() ([]state.Entry, error)          { return []state.Entry{}, nil }
func (f *fake) HistoryEntry(int) (state.Entry, error)    { return state.Entry{}, ErrNotFound }
func (f *fake) Drift() Drift                             { return Drift{} }
func (f *fake) ClusterHealth() (h ClusterHealth)         { return h }

func (f *fake) Capture(_ context.Context, c CaptureSpec, w io.Writer) error {
	if c.Device == "none" {
		return errors.New("no such device")
	}
	_, err := fmt.Fprintf(w, "pcap of %+v", c)
	return err
}

func serve(t *testing.T, access Access) (*Dialer, string) {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "sub", "c.sock")
	l, err := Listen(sock, access)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(&fake{}, access, zap.NewNop(), nil)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
	return Dial(sock), sock
}

func TestConversation(t *testing.T) {
	access, err := NewAccess("")
	if err != nil {
		t.Fatal(err)
	}
	d, sock := serve(t, access)
	ctx := t.Context()
	if s, err := d.Status(ctx); err != nil || s.PID != 7 {
		t.Errorf("status %+v, %v", s, err)
	}
	if s, err := d.Stats(ctx); err != nil || s.RDMAWriteBytes != 1<<60 {
		t.Errorf("stats %+v, %v", s, err)
	}
	if y, err := d.Config(ctx); err != nil || string(y) != "log_level: info\n" {
		t.Errorf("config %q, %v", y, err)
	}
	e, err := d.AddExport(ctx, config.Export{Path: "/srv/a b&c=d", Clients: []config.Client{{CIDR: "10.0.0.1"}}})
	if err != nil || e.Pseudo != "/a b&c=d" || e.Clients[0].CIDR != "10.0.0.1/32" {
		t.Errorf("add: %+v, %v", e, err)
	}
	ro := true
	for _, removed := range []bool{true, false} {
		want := fmt.Sprintf("removed only: %v", removed)
		if err := d.RevertExports(ctx, removed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("revert: %v, want %s", err, want)
		}
	}
	if e, err = d.SetExport(ctx, "/a b&c=d", ExportPatch{ReadOnly: &ro}); err != nil || !e.ReadOnly {
		t.Errorf("set: %+v, %v", e, err)
	}
	if e, err = d.Export(ctx, "/srv/a b&c=d"); err != nil || !e.ReadOnly {
		t.Errorf("show: %+v, %v", e, err)
	}
	if _, err = d.Export(ctx, "/a b"); err == nil {
		t.Error("an export that does not exist was found")
	}
	if _, err = d.AddExport(ctx, config.Export{Path: "rel"}); err == nil ||
		!strings.Contains(err.Error(), "not absolute") {
		t.Errorf("relative path: %v", err)
	}
	if _, err = d.Upgrade(ctx, ""); err == nil || !strings.Contains(err.Error(), "1.2 goes on") {
		t.Errorf("a failed upgrade: %v", err)
	}
	if u, err := d.Upgrade(ctx, "/opt/rstored"); err != nil || u.Executable != "/opt/rstored" || u.NewVersion != "1.3" ||
		u.PauseMillis != 12.5 || u.RDMA != 3 {
		t.Errorf("an upgrade: %+v, %v", u, err)
	}
	if err = d.Reload(ctx); err == nil || !strings.Contains(err.Error(), "loud") {
		t.Errorf("reload: %v", err)
	}
	var b strings.Builder
	if err = d.Capture(ctx, CaptureSpec{}, &b); err != nil || b.String() != fmt.Sprintf("pcap of %+v", CaptureSpec{}) {
		t.Errorf("capture %q, %v", b.String(), err)
	}
	want := CaptureSpec{Device: "x", Peer: netip.MustParseAddr("10.0.0.9"), QPN: 0x1234, Packets: 7, Snap: 64}
	b.Reset()
	if err = d.Capture(ctx, want, &b); err != nil || b.String() != fmt.Sprintf("pcap of %+v", want) {
		t.Errorf("capture %q, %v", b.String(), err)
	}
	if err = d.Capture(ctx, CaptureSpec{Device: "none"}, &b); err == nil || err.Error() != "no such device" {
		t.Errorf("capture: %v", err)
	}
	if _, err := Listen(sock, access); err == nil {
		t.Error("two servers on one socket")
	}
}

// TestStrangers: the kernel's word about the peer decides.
func TestStrangers(t *testing.T) {
	me := Peer{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	plain, _ := NewAccess("")
	byGroup, err := NewAccess("4242")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		access Access
		peer   Peer
		want   bool
	}{
		{"same user", plain, me, true},
		{"root", plain, Peer{UID: 0}, true},
		{"stranger", plain, Peer{UID: 54321, GID: 4242}, false},
		{"group", byGroup, Peer{UID: 54321, GID: 4242}, true},
		{"other group", byGroup, Peer{UID: 54321, GID: 4243}, false},
	} {
		if got := tc.access.Allows(tc.peer); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
	if _, err := NewAccess("no-such-group-here"); err == nil {
		t.Error("an unknown group was accepted")
	}
}

// TestNobodyThere: the errors tell what to do.
func TestNobodyThere(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "c.sock")
	if _, err := Dial(sock).Status(t.Context()); err == nil || !strings.Contains(err.Error(), "is it running") {
		t.Errorf("no socket: %v", err)
	}
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	if _, err := Dial(sock).Status(t.Context()); err == nil || !strings.Contains(err.Error(), "is it running") {
		t.Errorf("stale socket: %v", err)
	}
	a, _ := NewAccess("")
	l, err = Listen(sock, a)
	if err != nil {
		t.Fatalf("a stale socket is not replaced: %v", err)
	}
	_ = l.Close()
}

func (*fake) FlushIDMap() {}

// TestSocketDirectory: the socket is made in no directory that others can change.
func TestSocketDirectory(t *testing.T) {
	access, err := NewAccess("")
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []fs.FileMode{0o777, 0o777 | fs.ModeSticky} {
		dir := filepath.Join(t.TempDir(), "d")
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		if l, err := Listen(filepath.Join(dir, "c.sock"), access); err == nil ||
			!strings.Contains(err.Error(), "can be written by others") {
			if l != nil {
				_ = l.Close()
			}
			t.Errorf("mode %v: %v", mode, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 1234, 1234); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(filepath.Join(dir, "c.sock"), access); err == nil ||
		!strings.Contains(err.Error(), "belongs to user 1234") {
		if l != nil {
			_ = l.Close()
		}
		t.Errorf("another user's directory: %v", err)
	}
}

// TestReplacedProcess: a live upgrade ends the process that has accepted a connection. A question
// is asked again of the next process; a request that may change something is not.
func TestReplacedProcess(t *testing.T) {
	access, err := NewAccess("")
	if err != nil {
		t.Fatal(err)
	}
	_, next := serve(t, access)
	sock := filepath.Join(t.TempDir(), "ctl")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	defer func() { _ = l.Close() }()
	ended := make(chan error, 1)
	go func() {
		var errs error
		for i := range 2 {
			c, err := l.Accept()
			if err != nil {
				ended <- errors.Join(errs, err)
				return
			}
			_, _ = c.Read(make([]byte, 1))
			if i == 1 {
				errs = errors.Join(errs, os.Rename(next, sock))
			}
			errs = errors.Join(errs, c.Close())
		}
		ended <- errs
	}()
	d := Dial(sock)
	if err := d.Reload(t.Context()); err == nil || strings.Contains(err.Error(), "loud") {
		t.Errorf("reload: %v", err)
	}
	if s, err := d.Status(t.Context()); err != nil || s.PID != 7 {
		t.Errorf("status %+v, %v", s, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
