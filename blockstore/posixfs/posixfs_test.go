package posixfs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/storetest"
	"golang.org/x/sys/unix"
)

// nobody is the user of the tests that run without privileges.
const nobody = 65534

// site is an export with its state beside it.
type site struct {
	dir, state string
	opts       Options
}

func newSite(t testing.TB, opts Options) *site {
	base := t.TempDir()
	s := &site{dir: filepath.Join(base, "export"), state: filepath.Join(base, "state"), opts: opts}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// TempDir's own parents may be closed to others; the export is not.
	if err := os.Chmod(s.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	s.opts.StateDir = s.state
	t.Cleanup(func() {
		// So that the removal can enter what a test has closed.
		filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				return os.Chmod(path, 0o700)
			}
			return nil
		})
	})
	return s
}

func (s *site) open(t testing.TB) *FS {
	f, err := Open(s.dir, s.opts)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func openTemp(t testing.TB, opts Options) (*FS, *site) {
	s := newSite(t, opts)
	f := s.open(t)
	t.Cleanup(func() { f.Close() })
	return f, s
}

func conform(t *testing.T, opts Options, so storetest.Options) {
	var s *site
	so.Reopen = func(t *testing.T, fs blockstore.FS) blockstore.FS {
		if err := fs.Close(); err != nil {
			t.Fatal(err)
		}
		return s.open(t)
	}
	// The suite checks what is stored, not that it survives power loss; syncing
	// ten thousand creations would take its time from everything else.
	opts.Async = true
	storetest.Run(t, func(t *testing.T) blockstore.FS {
		s = newSite(t, opts)
		return s.open(t)
	}, so)
}

var user = &blockstore.Cred{UID: 1000, GID: 1000, Groups: []uint32{2000}}

func needRoot(t *testing.T) {
	if !canSwitch() {
		t.Skip("needs root")
	}
}

func TestConformance(t *testing.T) {
	so := storetest.Options{User: user, AnyUser: true, Root: true}
	if !canSwitch() {
		so = storetest.Options{User: &blockstore.Cred{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}}
	}
	t.Run("auto", func(t *testing.T) { conform(t, Options{}, so) })
	t.Run("table", func(t *testing.T) { conform(t, Options{Handles: Server}, so) })
	t.Run("birth", func(t *testing.T) {
		conform(t, Options{Handles: Server, forceBirth: true}, so)
	})
	t.Run("few files", func(t *testing.T) {
		so := so
		so.BigDir = 1000
		conform(t, Options{OpenFiles: 1}, so)
	})
	t.Run("no openat2", func(t *testing.T) {
		so := so
		so.BigDir = 1000
		conform(t, Options{noOpenat2: true}, so)
	})
}

// asNobody runs tests again in a child that is not root and has no capabilities but these.
func asNobody(t *testing.T, tests string, caps ...uintptr) {
	needRoot(t)
	if os.Getenv("POSIXFS_CHILD") != "" {
		t.Skip("already the child")
	}
	tmp, err := os.MkdirTemp("/tmp", "posixfs-nobody")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chown(tmp, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(tmp, "test")
	b, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(exe, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run="+tests, "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "POSIXFS_CHILD=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{}},
		AmbientCaps: caps,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as uid %d: %v\n%s", nobody, err, out)
	}
	n := strings.Count(string(out), "--- PASS")
	if n == 0 {
		t.Fatalf("no test ran as uid %d\n%s", nobody, out)
	}
	t.Logf("%d tests passed as uid %d", n, nobody)
}

func TestUnprivileged(t *testing.T) {
	asNobody(t, "TestConformance/(auto|birth)|TestRandom|TestOutside|TestHostRenames|TestUnprivilegedLimits|"+
		"TestOthersHandles")
}

// TestCapabilities: with the capabilities of the unit file the daemon need not be root to act as
// its clients.
func TestCapabilities(t *testing.T) {
	const tests = "TestConformance/auto|TestOutside|TestHostRenames|TestOthersHandles|TestACL|TestSwitches|TestQuotaThread"
	asNobody(t, tests, unitCaps...)
}

// unitCaps are the capabilities over files that the unit file gives a daemon that is not root.
var unitCaps = []uintptr{
	unix.CAP_DAC_READ_SEARCH, unix.CAP_DAC_OVERRIDE, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN,
	unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_LEASE, unix.CAP_MKNOD,
}

// TestOwnUser: a client that names the daemon's own user and groups gets what that user may do, and
// none of the daemon's capabilities. It runs as the unit does: not root, with capabilities.
func TestOwnUser(t *testing.T) {
	if os.Getenv("POSIXFS_CHILD") == "" {
		asNobody(t, "^TestOwnUser$", unitCaps...)
		return
	}
	if !canSwitch() {
		t.Fatal("the child has no capabilities")
	}
	for _, opts := range []Options{{}, {OwnThreads: true}} {
		t.Run(fmt.Sprintf("own threads %v", opts.OwnThreads), func(t *testing.T) { testOwnUser(t, opts) })
	}
}

func testOwnUser(t *testing.T, opts Options) {
	f, s := openTemp(t, opts)
	self := &blockstore.Cred{UID: f.who.uid, GID: f.who.gid, Groups: f.who.groups}
	if self.UID == 0 {
		t.Fatal("the child is root")
	}
	secret, closed := filepath.Join(s.dir, "secret"), filepath.Join(s.dir, "closed")
	must(t, os.WriteFile(secret, []byte("root's"), 0o600))
	must(t, os.Mkdir(closed, 0o755))
	must(t, os.WriteFile(filepath.Join(closed, "file"), nil, 0o644))
	for _, p := range []string{secret, closed} {
		must(t, os.Chown(p, 0, 0))
	}
	root, err := f.Root()
	must(t, err)
	h, _, err := f.Lookup(self, root, "secret")
	must(t, err)
	d, _, err := f.Lookup(self, root, "closed")
	must(t, err)
	_, _, err = f.ReadAt(self, h, make([]byte, 8), 0, false)
	wantErr(t, err, blockstore.ErrAccess)
	_, _, _, err = f.WriteAt(self, h, []byte("mine"), 0, blockstore.FileSync)
	wantErr(t, err, blockstore.ErrAccess)
	mode := uint32(0o666)
	_, err = f.SetAttr(self, h, &blockstore.SetAttr{Mode: &mode}, nil)
	wantErr(t, err, blockstore.ErrPerm)
	_, _, _, err = f.Create(self, d, "new", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	wantErr(t, err, blockstore.ErrAccess)
	_, err = f.Remove(self, d, "file")
	wantErr(t, err, blockstore.ErrAccess)
	_, _, err = f.Rename(self, d, "file", root, "file")
	wantErr(t, err, blockstore.ErrAccess)
	for c, want := range map[*blockstore.Cred]uint32{self: 0, {}: blockstore.AccessRead | blockstore.AccessModify} {
		got, _, err := f.Access(c, h, blockstore.AccessRead|blockstore.AccessModify)
		must(t, err)
		if got != want {
			t.Errorf("%d has access %#x to root's file, want %#x", c.UID, got, want)
		}
	}
	// What is the user's stays the user's.
	_, _, _, err = f.Create(self, root, "own", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	must(t, err)
}

// TestQuotaThread: who is asked about changes nothing of the thread that asks, whoever it is.
func TestQuotaThread(t *testing.T) {
	needRoot(t)
	for _, apart := range []bool{false, true} {
		k := newCaller(true, apart)
		k.onThread(func() (clean bool) { // the next one has it
			before, err := capabilities()
			must(t, err)
			here := k
			here.ownThreads = false // on this thread
			for _, uid := range []uint32{4711, 0, noID, k.uid} {
				_, _ = here.quotaOf(-1, uid)
				after, err := capabilities()
				must(t, err)
				if after != before || uint32(unix.Geteuid()) != k.uid {
					t.Errorf("after the quota of %d: user %d, capabilities %#x, want %#x", uid, unix.Geteuid(), after, before)
				}
			}
			return true
		})
	}
}

// TestSwitches: while a thread is somebody else it has none of the daemon's capabilities, and
// afterwards all of them. Root keeps them.
func TestSwitches(t *testing.T) {
	needRoot(t)
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprintf("apart %v", apart), func(t *testing.T) { testSwitches(t, apart) })
	}
}
