package state

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs/nlm"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(context.Background(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestReopen: everything is found again, and numbers are never reused.
func TestReopen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := open(t, dir)
	if _, err := Open(context.Background(), dir, nil); !errors.Is(err, ErrBusy) {
		t.Errorf("second Open: %v, want ErrBusy", err)
	}
	key, err := s.Secret()
	if err != nil || len(key) != secretLen {
		t.Fatalf("secret: %d bytes, %v", len(key), err)
	}
	a, _ := s.ExportID(&config.Export{Path: "/a", Pseudo: "/a"})
	b, _ := s.ExportID(&config.Export{Path: "/b", Pseudo: "/b"})
	if a == b || a == 0 || b == 0 {
		t.Errorf("export numbers %d and %d", a, b)
	}
	must(t, s.PutExport(config.Export{Path: "/a", Pseudo: "/a"}))
	must(t, s.PutExport(config.Export{Path: "/b", Pseudo: "/b"}))
	must(t, s.PutExport(config.Export{Path: "/a", Pseudo: "/a", ReadOnly: true}))
	must(t, s.RemoveExport("/b", false))
	must(t, s.RemoveExport("/conf", true))
	must(t, s.PutPort(Port{"tcp", "127.0.0.1:1"}, false))
	must(t, s.PutPort(Port{"tcp", "127.0.0.1:2"}, false))
	must(t, s.RemovePort(Port{"tcp", "127.0.0.1:2"}, false))
	must(t, s.RemovePort(Port{"rdma", "127.0.0.1:3"}, true))
	must(t, s.Close())

	s = open(t, dir)
	defer s.Close()
	if again, err := s.Secret(); err != nil || !bytes.Equal(again, key) {
		t.Errorf("secret changed: %v", err)
	}
	if again, _ := s.ExportID(&config.Export{Path: "/b", Pseudo: "/b"}); again != b {
		t.Errorf("number of /b was %d, is %d", b, again)
	}
	added, removed := s.Exports()
	if len(added) != 1 || !added[0].ReadOnly || len(removed) != 1 || removed[0] != "/conf" {
		t.Errorf("exports %+v, removed %v", added, removed)
	}
	ports, gone := s.Ports()
	if len(ports) != 1 || ports[0].Listen != "127.0.0.1:1" || len(gone) != 1 || gone[0].Transport != "rdma" {
		t.Errorf("ports %+v, removed %+v", ports, gone)
	}
	must(t, s.PutExport(config.Export{Path: "/c", Pseudo: "/conf"}))
	if _, removed = s.Exports(); len(removed) != 0 {
		t.Errorf("still removed after it was added again: %v", removed)
	}
}

// TestDamage: a damaged or foreign state is refused, never guessed at.
func TestDamage(t *testing.T) {
	for name, text := range map[string]string{
		"truncated": `{"version": 1, "exp`,
		"newer":     `{"version": 2}`,
		"bad path":  `{"version": 1, "exports": [{"path": "relative"}]}`,
	} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, fileName), []byte(text), 0o600))
		if s, err := Open(context.Background(), dir, nil); err == nil {
			t.Errorf("%s: accepted", name)
			_ = s.Close()
		}
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, secretName), []byte("short"), 0o600))
	s := open(t, dir)
	defer s.Close()
	if _, err := s.Secret(); err == nil {
		t.Error("a short secret was accepted")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMemoryOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	m, err := s.Memory("memory", 10000)
	must(t, err)
	if len(m) != 10000 || !bytes.Equal(m, make([]byte, len(m))) {
		t.Fatalf("%d bytes, not all zero", len(m))
	}
	copy(m[9000:], "kept")
	must(t, s.Close())

	s = open(t, dir)
	defer s.Close()
	m, err = s.Memory("memory", 10000)
	must(t, err)
	if string(m[9000:9004]) != "kept" {
		t.Error("what was stored is gone")
	}
	if m, err = s.Memory("memory", 20000); err != nil || !bytes.Equal(m, make([]byte, 20000)) {
		t.Errorf("memory of another size is not zero, %v", err)
	}
	// Another boot.
	b, err := os.ReadFile(filepath.Join(dir, "memory"))
	must(t, err)
	b[0] ^= 1
	b[memoryHeader+5] = 1
	must(t, os.WriteFile(filepath.Join(dir, "memory"), b, 0o600))
	if m, err = s.Memory("memory", 20000); err != nil || m[5] != 0 {
		t.Errorf("memory of another boot was kept, %v", err)
	}
}

// TestJournal: owner strings are any bytes; the list is there after the next start, and
// after one that did not close it.
func TestJournal(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, o := range []string{"Linux NFSv4.2 host", "\x00\xff\xfe", "", "twice", "twice"} {
		must(t, s.Journal().Add(o))
	}
	must(t, s.Journal().Remove("twice", "never there"))
	want := []string{"", "\x00\xff\xfe", "Linux NFSv4.2 host"}
	for range 2 {
		if got, err := s.Journal().Owners(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q, %v", got, err)
		}
		must(t, s.Close())
		s = open(t, dir)
	}
	must(t, s.Journal().Remove(want...))
	if got, err := s.Journal().Owners(); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
	must(t, s.Close())
	must(t, os.WriteFile(filepath.Join(dir, journalFile), []byte("something else"), 0o600))
	s = open(t, dir)
	defer s.Close()
	if err := s.Journal().Damage(); err == nil || !strings.Contains(err.Error(), journalFile) {
		t.Errorf("a file that is something else: %v", err)
	}
	must(t, s.Journal().Add("after it"))
}

func TestLockClients(t *testing.T) {
	dir := t.TempDir()
	want := []nlm.Client{{Name: "a", Addr: netip.MustParseAddr("10.0.0.1"), Server: netip.MustParseAddr("10.0.0.9")}}
	for _, number := range []int32{1, 3, 5} {
		s := open(t, dir)
		if n, err := s.NextLockState(); n != number || err != nil {
			t.Errorf("state %d, %v; want %d", n, err, number)
		}
		if number > 1 && !slices.Equal(s.LockClients(), want) {
			t.Errorf("%+v", s.LockClients())
		}
		must(t, s.SetLockClients(want))
		must(t, s.Close())
	}
}

// TestOthersDirectory: a directory that others can change is no state directory, as they could put
// exports there, and the key that handles are made with.
func TestOthersDirectory(t *testing.T) {
	dir := t.TempDir()
	try := func(about, dir string, good bool) {
		t.Helper()
		s, err := Open(context.Background(), dir, nil)
		if err == nil {
			err = s.Close()
		}
		if (err == nil) != good {
			t.Errorf("%s: %v", about, err)
		}
		if files, _ := os.ReadDir(dir); !good && len(files) > 0 {
			t.Errorf("%s: %v is made", about, files)
		}
	}
	writable := filepath.Join(dir, "writable")
	if err := errors.Join(os.Mkdir(writable, 0o700), os.Chmod(writable, 0o777)); err != nil {
		t.Fatal(err)
	}
	try("a directory that all may write", writable, false)
	link := filepath.Join(dir, "link")
	if err := os.Symlink(writable, link); err != nil {
		t.Fatal(err)
	}
	try("a link to it", link, false)
	below := filepath.Join(writable, "below")
	try("a directory in it", below, false)
	if err := os.Chmod(writable, 0o755); err != nil {
		t.Fatal(err)
	}
	try("one that all may read", writable, true)
	if os.Geteuid() != 0 {
		return
	}
	foreign := filepath.Join(dir, "foreign")
	if err := errors.Join(os.Mkdir(foreign, 0o700), os.Chown(foreign, 1234, 1234)); err != nil {
		t.Fatal(err)
	}
	try("another user's", foreign, false)
}
