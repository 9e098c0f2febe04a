package posixfs

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
)

// TestOverlay exports an overlay, whose handles are longer than those of other filesystems.
// They fit, name files over an eviction and a restart, and do not change when a file
// is copied up.
func TestOverlay(t *testing.T) {
	needRoot(t)
	t.Run("one filesystem below", func(t *testing.T) { testOverlay(t, false) })
	t.Run("two filesystems below", func(t *testing.T) { testOverlay(t, true) })
}

// TestOverlayWithoutHandles: the log says that files of an overlay that makes no handles change
// theirs.
func TestOverlayWithoutHandles(t *testing.T) {
	needRoot(t)
	for _, options := range []string{"", ",index=on,nfs_export=on"} {
		base := t.TempDir()
		layers, dir := filepath.Join(base, "layers"), filepath.Join(base, "over")
		must(t, os.MkdirAll(layers, 0o755))
		if err := unix.Mount("tmpfs", layers, "tmpfs", 0, "size=4m,mode=755"); err != nil {
			t.Skipf("mounting a tmpfs: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(layers, unix.MNT_DETACH) })
		must(t, os.Mkdir(dir, 0o755))
		for _, d := range []string{"lower", "upper", "work"} {
			must(t, os.Mkdir(filepath.Join(layers, d), 0o755))
		}
		data := "lowerdir=" + layers + "/lower,upperdir=" + layers + "/upper,workdir=" + layers + "/work" + options
		if err := unix.Mount("overlay", dir, "overlay", 0, data); err != nil {
			t.Skipf("mounting an overlay: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		var said bytes.Buffer
		f, err := Open(dir, Options{StateDir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&said, nil))})
		must(t, err)
		must(t, f.Close())
		if warned := strings.Contains(said.String(), "nfs_export=on"); warned != (options == "") {
			t.Errorf("options %q: warned %v: %s", options, warned, said.String())
		}
	}
}

func testOverlay(t *testing.T, two bool) {
	base := t.TempDir()
	mount := func(source, at, kind, opts string) {
		t.Helper()
		must(t, os.MkdirAll(at, 0o755))
		if err := unix.Mount(source, at, kind, 0, opts); err != nil {
			t.Skipf("mounting a %s: %v", kind, err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	layers, lower, dir := filepath.Join(base, "layers"), filepath.Join(base, "layers/lower"), filepath.Join(base, "over")
	mount("tmpfs", layers, "tmpfs", "size=4m,mode=755")
	if two {
		lower = filepath.Join(base, "lower")
		mount("tmpfs", lower, "tmpfs", "size=4m,mode=755")
	}
	for _, d := range []string{
		filepath.Join(lower, "dir"), filepath.Join(layers, "upper"),
		filepath.Join(layers, "work"),
	} {
		must(t, os.MkdirAll(d, 0o755))
	}
	must(t, os.WriteFile(filepath.Join(lower, "dir/file"), []byte("below"), 0o644))
	mount("overlay", dir, "overlay",
		"lowerdir="+lower+",upperdir="+layers+"/upper,workdir="+layers+"/work,index=on,nfs_export=on")

	open := func() *FS {
		t.Helper()
		f, err := Open(dir, Options{StateDir: filepath.Join(base, "state")})
		must(t, err)
		if f.kind != kindKernel {
			t.Error("the handles of the filesystem are not used")
		}
		return f
	}
	f := open()
	look := func(at blockstore.Handle, name string) blockstore.Handle {
		t.Helper()
		h, _, err := f.Lookup(nil, at, name)
		must(t, err)
		return h
	}
	root, err := f.Root()
	must(t, err)
	sub := look(root, "dir")
	h := look(sub, "file")
	made, _, _, err := f.Create(nil, sub, "made", blockstore.Guarded, &blockstore.SetAttr{}, [8]byte{})
	must(t, err)
	is := func(when, want string) {
		t.Helper()
		if again := look(sub, "file"); again != h {
			t.Errorf("%s: handle %x, before %x", when, again.Bytes(), h.Bytes())
		}
		buf := make([]byte, 16)
		n, _, err := f.ReadAt(nil, h, buf, 0, false)
		if err != nil || string(buf[:n]) != want {
			t.Errorf("%s: %q, %v", when, buf[:n], err)
		}
		listed := false
		_, _, err = f.ReadDir(nil, sub, 0, [8]byte{}, true, func(e *blockstore.DirEntry) bool {
			if e.Name == "file" {
				listed = e.Handle != nil && *e.Handle == h
			}
			return true
		})
		if err != nil || !listed {
			t.Errorf("%s: listed with that handle: %v, %v", when, listed, err)
		}
	}
	is("below", "below")
	if _, _, _, err := f.WriteAt(nil, h, []byte("above"), 0, blockstore.FileSync); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(layers, "upper/dir/file")); err != nil || string(b) != "above" {
		t.Fatalf("not copied up: %q, %v", b, err)
	}
	is("copied up", "above")
	f.objects.drop(&h)
	is("opened again", "above")
	must(t, f.Close())
	f = open()
	defer func() { must(t, f.Close()) }()
	is("after a restart", "above")
	if _, err := f.GetAttr(nil, made); err != nil {
		t.Error(err)
	}
	must(t, os.Remove(filepath.Join(dir, "dir/file")))
	_, err = f.GetAttr(nil, h)
	wantErr(t, err, blockstore.ErrStale)
}
