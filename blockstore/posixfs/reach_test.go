package posixfs

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// TestOutside tries every way out of the export.
func TestOutside(t *testing.T) {
	f, s := openTemp(t, Options{})
	r, _ := f.Root()
	base := filepath.Dir(s.dir)
	secret := filepath.Join(base, "secret")
	must(t, os.WriteFile(secret, []byte("secret"), 0o644))
	must(t, os.Mkdir(filepath.Join(base, "outside"), 0o755))
	must(t, os.Symlink("..", filepath.Join(s.dir, "up")))
	must(t, os.Symlink(secret, filepath.Join(s.dir, "link")))
	must(t, os.MkdirAll(filepath.Join(s.dir, "a/b/c"), 0o755))
	look := func(d blockstore.Handle, name string) blockstore.Handle {
		t.Helper()
		h, _, err := f.Lookup(nil, d, name)
		must(t, err)
		return h
	}
	for _, name := range []string{"../secret", "up/secret", "/etc", "a/b", "./a"} {
		_, _, err := f.Lookup(nil, r, name)
		wantErr(t, err, blockstore.ErrInval)
	}
	for _, name := range []string{"up", "link"} {
		h := look(r, name)
		_, _, err := f.Lookup(nil, h, "secret")
		wantErr(t, err, blockstore.ErrNotDir)
		_, _, err = f.ReadAt(nil, h, make([]byte, 10), 0, false)
		wantErr(t, err, blockstore.ErrInval)
	}
	if look(r, "..") != r {
		t.Fatal(".. of the root leads out")
	}
	// The host moves a directory out while a client is in it.
	a := look(r, "a")
	b := look(a, "b")
	c := look(b, "c")
	must(t, os.Rename(filepath.Join(s.dir, "a/b"), filepath.Join(base, "outside/b")))
	_, _, err := f.Lookup(nil, b, "..")
	if err == nil {
		t.Fatal(".. of a directory moved out leads out")
	}
	f.objects.close() // as after a restart or eviction
	for _, h := range []blockstore.Handle{b, c} {
		if _, err := f.GetAttr(nil, h); !errors.Is(err, blockstore.ErrStale) && !errors.Is(err, blockstore.ErrJukebox) {
			t.Fatalf("a directory moved out: %v", err)
		}
	}
	// And swaps a directory for a symlink.
	must(t, os.Remove(filepath.Join(s.dir, "a")))
	must(t, os.Symlink(base, filepath.Join(s.dir, "a")))
	_, _, err = f.Lookup(nil, a, "secret")
	if err == nil {
		t.Fatal("a symlink was followed in place of a directory")
	}
}

// TestOthersHandles uses handles that other exports of the filesystem, or an earlier
// version, gave out.
func TestOthersHandles(t *testing.T) {
	f, s := openTemp(t, Options{})
	inner := filepath.Join(s.dir, "inner")
	must(t, os.Mkdir(inner, 0o755))
	must(t, os.WriteFile(filepath.Join(s.dir, "file"), []byte("x"), 0o644))
	g, err := Open(inner, Options{StateDir: s.state})
	must(t, err)
	defer g.Close()
	r, _ := f.Root()
	h, _, err := f.Lookup(nil, r, "file")
	must(t, err)
	_, err = g.GetAttr(nil, h)
	wantErr(t, err, blockstore.ErrStale)
	_, err = g.GetAttr(nil, r)
	wantErr(t, err, blockstore.ErrStale)
	if g.Counters().ForeignHandles != 2 {
		t.Errorf("counted %d handles of others", g.Counters().ForeignHandles)
	}
	// Every single bit of what is not the identity.
	for i := range handleHead * 8 {
		bad := h
		bad.B[i/8] ^= 1 << (i % 8)
		if _, err := f.GetAttr(nil, bad); err == nil {
			t.Fatalf("bit %d flipped and accepted", i)
		}
	}
	// Version, kind and length began a handle of earlier versions, a code ended it.
	old := blockstore.Handle{Len: 3 + 9 + 8, B: [blockstore.HandleMax]byte{1, 1, 9, 1}}
	_, err = f.GetAttr(nil, old)
	wantErr(t, err, blockstore.ErrStale)
}

func TestStateDirInside(t *testing.T) {
	dir := t.TempDir()
	for _, state := range []string{dir, filepath.Join(dir, "state"), filepath.Join(dir, "x/y/z")} {
		if _, err := Open(dir, Options{StateDir: state}); err == nil || !strings.Contains(err.Error(), "inside the export") {
			t.Errorf("state directory %s: %v", state, err)
		}
	}
}

// TestMountPoint needs root, to mount.
func TestMountPoint(t *testing.T) {
	needRoot(t)
	f, s := openTemp(t, Options{})
	for name, mount := range map[string]func(string) error{
		"tmpfs": func(p string) error { return unix.Mount("tmpfs", p, "tmpfs", 0, "") },
		"bind":  func(p string) error { return unix.Mount(filepath.Dir(s.dir), p, "", unix.MS_BIND, "") },
	} {
		p := filepath.Join(s.dir, name)
		must(t, os.Mkdir(p, 0o755))
		if err := mount(p); err != nil {
			t.Skipf("cannot mount: %v", err)
		}
		defer unix.Unmount(p, unix.MNT_DETACH)
		r, _ := f.Root()
		_, _, err := f.Lookup(nil, r, name)
		wantErr(t, err, blockstore.ErrAccess)
		_, _, err = f.ReadDir(nil, r, 0, [8]byte{}, true, func(e *blockstore.DirEntry) bool {
			if e.Name == name && (e.Attr != nil || e.Handle != nil) {
				t.Errorf("%s: a mount point with attributes", name)
			}
			return true
		})
		must(t, err)
		_, err = f.Rmdir(nil, r, name)
		wantErr(t, err, blockstore.ErrAccess)
	}
}

// TestHostRenames moves things behind the server's back.
func TestHostRenames(t *testing.T) {
	for name, opts := range map[string]Options{
		"auto": {}, "table": {Handles: Server},
		"birth": {Handles: Server, forceBirth: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, opts)
			f := s.open(t)
			must(t, os.MkdirAll(filepath.Join(s.dir, "d/e"), 0o755))
			must(t, os.WriteFile(filepath.Join(s.dir, "d/e/f"), []byte("data"), 0o644))
			must(t, os.WriteFile(filepath.Join(s.dir, "d/e/g"), []byte("other"), 0o644))
			r, _ := f.Root()
			h := r
			for _, n := range []string{"d", "e", "f"} {
				var err error
				h, _, err = f.Lookup(nil, h, n)
				must(t, err)
			}
			must(t, f.Close())
			// Renamed, moved, and its name given to another file, while down.
			must(t, os.Mkdir(filepath.Join(s.dir, "z"), 0o755))
			must(t, os.Rename(filepath.Join(s.dir, "d/e/f"), filepath.Join(s.dir, "z/new")))
			must(t, os.Rename(filepath.Join(s.dir, "d/e/g"), filepath.Join(s.dir, "d/e/f")))
			must(t, os.Rename(filepath.Join(s.dir, "d"), filepath.Join(s.dir, "z/d")))
			f = s.open(t)
			defer func() { f.Close() }()
			if got := readAll(t, f, h); got != "data" {
				t.Fatalf("read %q", got)
			}
			must(t, os.Remove(filepath.Join(s.dir, "z/new")))
			_, err := f.GetAttr(nil, h)
			wantErr(t, err, blockstore.ErrStale)
		})
	}
}

// readAll reads a file as a client would that is told to come again.
func readAll(t testing.TB, f *FS, h blockstore.Handle) string {
	t.Helper()
	buf := make([]byte, 1<<16)
	for range 200 {
		n, _, err := f.ReadAt(nil, h, buf, 0, false)
		if errors.Is(err, blockstore.ErrJukebox) {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		must(t, err)
		return string(buf[:n])
	}
	t.Fatal("told to come again too often")
	return ""
}

func FuzzHandle(f *testing.F) {
	dir := f.TempDir()
	fs, err := Open(dir, Options{})
	if err != nil {
		f.Fatal(err)
	}
	defer fs.Close()
	r, _ := fs.Root()
	f.Add(r.Bytes())
	f.Add([]byte{kindBirth<<lenBits | birthLen})
	f.Add(make([]byte, blockstore.HandleMax))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := blockstore.MakeHandle(b)
		if !ok {
			return
		}
		_, err := fs.GetAttr(nil, h)
		if err == nil && [handleHead]byte(h.B[:]) != [handleHead]byte(r.B[:]) {
			t.Fatalf("handle %x of another export accepted", b)
		}
		if err != nil && !errors.Is(err, blockstore.ErrStale) && !errors.Is(err, blockstore.ErrBadHandle) &&
			!errors.Is(err, blockstore.ErrJukebox) {
			t.Fatalf("handle %x: %v", b, err)
		}
	})
}

func FuzzDirent(f *testing.F) {
	f.Add(make([]byte, 24))
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			d, n, ok := parseDirent(b)
			if !ok {
				return
			}
			if n <= 0 || n > len(b) || len(d.name) > n || d.off == 0 {
				t.Fatalf("size %d of %d, name %d", n, len(b), len(d.name))
			}
			b = b[n:]
		}
	})
}

func FuzzPlace(f *testing.F) {
	id := ident{kind: kindBirth, n: birthLen}
	f.Add(encodePlace(&place{id, "name"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := decodePlace(b)
		if ok && blockstore.CheckName(p.name) != nil {
			t.Fatalf("name %q", p.name)
		}
	})
}

// TestACL: the kernel decides, so an ACL counts, and its change at once.
func TestACL(t *testing.T) {
	needRoot(t)
	f, s := openTemp(t, Options{})
	h := dataFile(t, f, 100)
	path := filepath.Join(s.dir, "data")
	must(t, os.Chmod(path, 0o600))
	c := &blockstore.Cred{UID: 4242, GID: 4243}
	p := make([]byte, 10)
	acl := func(perm uint16) []byte {
		b := []byte{2, 0, 0, 0} // POSIX_ACL_XATTR_VERSION
		for _, e := range []struct {
			tag, perm uint16
			id        uint32
		}{{1, 6, ^uint32(0)}, {2, perm, c.UID}, {4, 0, ^uint32(0)}, {16, 7, ^uint32(0)}, {32, 0, ^uint32(0)}} {
			b = binary.LittleEndian.AppendUint16(b, e.tag)
			b = binary.LittleEndian.AppendUint16(b, e.perm)
			b = binary.LittleEndian.AppendUint32(b, e.id)
		}
		return b
	}
	for _, perm := range []uint16{0, 4, 0, 6, 2, 4, 0} {
		if err := unix.Setxattr(path, "system.posix_acl_access", acl(perm), 0); err != nil {
			t.Skipf("no ACLs here: %v", err)
		}
		for range 3 {
			_, _, err := f.ReadAt(c, h, p, 0, false)
			if got := err == nil; got != (perm&4 != 0) {
				t.Fatalf("ACL %d: read: %v", perm, err)
			}
			got, _, err := f.Access(c, h, blockstore.AccessModify)
			must(t, err)
			if (got != 0) != (perm&2 != 0) {
				t.Fatalf("ACL %d: access %#x", perm, got)
			}
		}
	}
}

func TestSyncFailure(t *testing.T) {
	f, _ := openTemp(t, Options{})
	v := f.Verifier()
	wantErr(t, f.syncFailed(unix.EIO), blockstore.ErrIO)
	w := f.Verifier()
	if w == v {
		t.Error("the verifier did not change")
	}
	wantErr(t, f.syncFailed(unix.ENOSPC), blockstore.ErrNoSpace)
	if f.Verifier() == w || f.Counters().SyncFailures != 2 {
		t.Error("the second failure left no trace")
	}
}

// TestRenamedMeanwhile looks for a file that is moved back and forth between two directories:
// it is there or not, and never somebody else's.
func TestRenamedMeanwhile(t *testing.T) {
	f, s := openTemp(t, Options{})
	for _, d := range []string{"a", "b"} {
		must(t, os.Mkdir(filepath.Join(s.dir, d), 0o755))
	}
	from, to := filepath.Join(s.dir, "a", "file"), filepath.Join(s.dir, "b", "file")
	must(t, os.WriteFile(from, nil, 0o644))
	root, err := f.Root()
	must(t, err)
	h, _, err := f.Lookup(nil, root, "a")
	must(t, err)
	d, err := f.acquireDir(h)
	must(t, err)
	defer f.release(d)
	moved := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				moved <- nil
				return
			default:
			}
			if err := errors.Join(os.Rename(from, to), os.Rename(to, from)); err != nil {
				moved <- err
				return
			}
		}
	}()
	found, gone := 0, 0
	for i := 0; i < 50_000 || found == 0 || gone == 0; i++ {
		fd, err := f.openName(d.path, "file")
		switch {
		case err == nil:
			unix.Close(fd)
			found++
		case errors.Is(err, unix.ENOENT):
			gone++
		default:
			t.Errorf("after %d times: %v", i, err)
		}
		if t.Failed() {
			break
		}
	}
	close(stop)
	must(t, <-moved)
}
