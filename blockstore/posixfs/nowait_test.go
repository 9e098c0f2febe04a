package posixfs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// openMemory opens a store in a file system in memory, or skips the test.
func openMemory(t *testing.T) (*FS, string) {
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skip("/dev/shm is no tmpfs")
	}
	dir, err := os.MkdirTemp("/dev/shm", "rstored-test-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f, err := Open(dir, Options{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, dir
}

// create makes a file through the store.
func create(t *testing.T, f *FS, name string, mode uint32) blockstore.Handle {
	root, err := f.Root()
	if err != nil {
		t.Fatal(err)
	}
	h, _, _, err := f.Create(nil, root, name, blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestWriteNowait: in memory a write waits for nothing once the file is open, unless
// somebody else is writing it or it has bits that a write takes away.
func TestWriteNowait(t *testing.T) {
	f, dir := openMemory(t)
	h := create(t, f, "f", 0o644)
	nowait := func() error {
		_, _, _, err := f.WriteNowait(nil, h, []byte("now"), 5, blockstore.FileSync)
		return err
	}
	data := bytes.Repeat([]byte("waits"), 2)
	if n, _, _, err := f.WriteAt(nil, h, data, 0, blockstore.Unstable); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
	if err := nowait(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "f")); string(b) != "waitsnowts" {
		t.Errorf("%q, %v", b, err)
	}
	o, err := f.acquire(h)
	if err != nil {
		t.Fatal(err)
	}
	defer f.release(o)
	o.mu.Lock()
	err = nowait()
	o.mu.Unlock()
	if !errors.Is(err, blockstore.ErrWouldBlock) {
		t.Errorf("while somebody else writes: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "f"), 0o4755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if err := nowait(); !errors.Is(err, blockstore.ErrWouldBlock) {
		t.Errorf("of a file with the set-user-ID bit: %v", err)
	}
	if n := f.Counters().WritesBlock; n != 2 {
		t.Errorf("%d writes are counted, want 2", n)
	}
}

// TestWriteNowaitDisk: where there is a disk nothing is synced without waiting, and a file
// system that cannot be asked not to wait is asked once.
func TestWriteNowaitDisk(t *testing.T) {
	f, s := openTemp(t, Options{})
	if f.inMemory {
		t.Skip("the temporary directory is in memory")
	}
	h := create(t, f, "f", 0o644)
	if _, _, _, err := f.WriteAt(nil, h, []byte("0123456789"), 0, blockstore.Unstable); err != nil {
		t.Fatal(err)
	}
	for _, how := range []blockstore.Stability{blockstore.DataSync, blockstore.FileSync} {
		if _, _, _, err := f.WriteNowait(nil, h, []byte("x"), 0, how); !errors.Is(err, blockstore.ErrWouldBlock) {
			t.Errorf("stable as %d: %v", how, err)
		}
	}
	want := "0123456789"
	for range 2 {
		switch n, how, _, err := f.WriteNowait(nil, h, []byte("now"), 3, blockstore.Unstable); {
		case err == nil && n == 3 && how == blockstore.Unstable:
			want = "012now6789"
		case !errors.Is(err, blockstore.ErrWouldBlock):
			t.Errorf("%d bytes as stable as %d, %v", n, how, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(s.dir, "f")); string(b) != want {
		t.Errorf("%q, %v", b, err)
	}
	if want == "012now6789" && f.noNowaitWrite.Load() {
		t.Error("it is taken to refuse what it did")
	}
}

// TestLookupNowait: a name of an open object in an open directory is found without waiting, in memory
// and on a disk. A caller whose permission the kernel has not decided yet has to wait.
func TestLookupNowait(t *testing.T) {
	memory, _ := openMemory(t)
	disk, _ := openTemp(t, Options{})
	for what, f := range map[string]*FS{"memory": memory, "disk": disk} {
		if f.kind != kindKernel || f.mountID == 0 {
			t.Skip("the filesystem makes no handles")
		}
		h := create(t, f, "f", 0o644)
		root, _ := f.Root()
		got, a, d, err := f.LookupNowait(nil, root, "f")
		if err != nil || got != h || a.Mode != 0o644 || d.FileID == a.FileID {
			t.Errorf("%s: %v %+v %+v %v", what, got, a, d, err)
		}
		user := &blockstore.Cred{UID: 4711, GID: 4711}
		if _, _, _, err := f.LookupNowait(user, root, "f"); !errors.Is(err, blockstore.ErrWouldBlock) {
			t.Errorf("%s, another user: %v", what, err)
		}
		o, err := f.acquire(h)
		if err != nil {
			t.Fatal(err)
		}
		f.forget(o)
		f.release(o)
		if _, _, _, err := f.LookupNowait(nil, root, "f"); !errors.Is(err, blockstore.ErrWouldBlock) {
			t.Errorf("%s, of an object that is not open: %v", what, err)
		}
	}
}
