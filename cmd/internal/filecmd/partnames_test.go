package filecmd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// TestPartsOfOthers: --resume goes on with no file that somebody else may have put there, or may
// have written to, nor with a part of what the source was before.
func TestPartsOfOthers(t *testing.T) {
	const chunk = 1 << 20
	data := random(copied, 3)
	for _, c := range []struct {
		name string
		make func(r *rig, part string) error
		ours bool
	}{
		{"ours", func(_ *rig, part string) error { return os.WriteFile(part, data[:2<<20+1], 0o600) }, true},
		{"another mode", func(_ *rig, part string) error {
			return errors.Join(os.WriteFile(part, make([]byte, 2<<20), 0o600), os.Chmod(part, 0o666))
		}, false},
		{"a further name", func(r *rig, part string) error {
			other := filepath.Join(r.dir, "other")
			return errors.Join(os.WriteFile(other, make([]byte, 2<<20), 0o600), os.Link(other, part))
		}, false},
		{"a symbolic link", func(r *rig, part string) error {
			other := filepath.Join(r.dir, "other")
			return errors.Join(os.WriteFile(other, make([]byte, 2<<20), 0o600), os.Symlink(other, part))
		}, false},
		{"a fifo", func(_ *rig, part string) error { return unix.Mkfifo(part, 0o600) }, false},
		{"another owner", func(_ *rig, part string) error {
			return errors.Join(os.WriteFile(part, make([]byte, 2<<20), 0o600), os.Chown(part, 12345, 12345))
		}, false},
		{"longer than the source", func(_ *rig,
			part string,
		) error {
			return os.WriteFile(part, make([]byte, copied+1), 0o600)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			if err := r.copy(t.Context(), copyFlags{}, chunk, r.write("src", data, 0o644), r.url+"/src"); err != nil {
				t.Fatal(err)
			}
			_, a := r.remoteFile("src")
			d := &dial.Dialer{Version: client.Version3}
			defer func() { _ = d.Close() }()
			u := &run{tool: &tool{g: &cli.Globals{}}, ctx: t.Context(), dialer: d}
			from, err := u.find(r.url+"/src", true, false)
			if err != nil || from.o.attr.FileID != a.FileID {
				t.Fatal(err)
			}
			part := filepath.Join(r.dir, partName("back", version(&from.o.attr)))
			if err := c.make(r, part); errors.Is(err, fs.ErrPermission) {
				t.Skip("this takes root:", err)
			} else if err != nil {
				t.Fatal(err)
			}
			r.store.read.Store(0)
			back := filepath.Join(r.dir, "back")
			if err := r.copy(t.Context(), copyFlags{resume: true}, chunk, r.url+"/src", back); err != nil {
				t.Fatal(err, r.said.String())
			}
			if b, err := os.ReadFile(back); !bytes.Equal(b, data) || err != nil {
				t.Errorf("the copy has %d bytes, %v", len(b), err)
			}
			if again := r.store.read.Load() >= copied; again == c.ours {
				t.Errorf("%d bytes were read", r.store.read.Load())
			}
			if _, err := os.Lstat(part); errors.Is(err, fs.ErrNotExist) != c.ours {
				t.Errorf("the file that was there: %v", err)
			}
		})
	}
}

// TestSourceChanges: a copy that could be resumed is not finished when its source has changed
// meanwhile.
func TestSourceChanges(t *testing.T) {
	r := newRig(t)
	src := r.write("src", random(copied, 4), 0o644)
	r.store.from.Store(2 << 20)
	o := copyFlags{resume: true}
	if err := r.copy(t.Context(), o, 1<<20, src, r.url+"/file"); err == nil {
		t.Fatal("no error")
	}
	r.write("src", random(copied, 5), 0o644)
	r.store.from.Store(0)
	if err := r.copy(t.Context(), o, 1<<20, src, r.url+"/file"); err != nil {
		t.Fatal(err)
	}
	if b, _ := r.remoteFile("file"); !bytes.Equal(b, random(copied, 5)) {
		t.Error("the copy has data of the source as it was before")
	}
	// And while it is copied.
	late := func() {
		if err := os.Chtimes(src, time.Unix(5, 0), time.Unix(5, 0)); err != nil {
			t.Error(err)
		}
	}
	k := &copier{r: &run{tool: &tool{g: &cli.Globals{Err: io.Discard}}, ctx: t.Context()}, src: local{}, chunk: 1 << 20}
	from, err := localObject(src, false)
	if err != nil {
		t.Fatal(err)
	}
	late()
	p := &part{stays: true, done: copied}
	if err := k.data(t.Context(), from, p); err == nil || p.stays {
		t.Errorf("%v, the part stays: %t", err, p.stays)
	}
}

// unsynced is this host's side of a copy with the directories whose names may not be on disk.
type unsynced struct {
	local
	mu   sync.Mutex
	dirs map[string]bool
	fail error
	late atomic.Int64 // files that syncFS has to sync
}

func (u *unsynced) changed(dir *object) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.dirs[dir.path] = true
}

func (u *unsynced) mkdir(ctx context.Context, dir *object, name string) (*object, error) {
	u.changed(dir)
	return u.local.mkdir(ctx, dir, name)
}

func (u *unsynced) rename(ctx context.Context, dir *object, from, to string) error {
	u.changed(dir)
	return u.local.rename(ctx, dir, from, to)
}

func (u *unsynced) symlink(ctx context.Context, dir *object, name, target string) error {
	u.changed(dir)
	return u.local.symlink(ctx, dir, name, target)
}

func (u *unsynced) link(ctx context.Context, o, dir *object, name string) error {
	u.changed(dir)
	return u.local.link(ctx, o, dir, name)
}

func (u *unsynced) renameNew(ctx context.Context, dir *object, from, to string) error {
	u.changed(dir)
	u.late.Add(1)
	return u.local.renameNew(ctx, dir, from, to)
}

func (u *unsynced) syncFS(f *os.File) error {
	if u.fail != nil {
		return u.fail
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.dirs) // all on one file system
	return u.local.syncFS(f)
}

func (u *unsynced) syncDir(o *object) error {
	if u.fail != nil {
		return u.fail
	}
	if err := u.local.syncDir(o); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.dirs, o.path)
	return nil
}

// TestNamesAreDurable: when a copy is done, every directory that it gave a name in was synced after
// that. A sync that fails is a copy that fails.
func TestNamesAreDurable(t *testing.T) {
	r := newRig(t)
	tree := filepath.Join(r.dir, "tree")
	// The files are empty, as data is copied from or to a server only.
	if err := errors.Join(os.MkdirAll(filepath.Join(tree, "in", "ner"), 0o755),
		os.Mkdir(filepath.Join(tree, "closed"), 0o755),
		os.WriteFile(filepath.Join(tree, "a"), nil, 0o644), os.Link(filepath.Join(tree, "a"), filepath.Join(tree, "in", "b")),
		os.Symlink("a", filepath.Join(tree, "in", "c")), os.WriteFile(filepath.Join(tree, "closed", "d"), nil, 0o644),
		os.Chmod(filepath.Join(tree, "closed"), 0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(tree, "closed"), 0o700) })
	for i, fail := range []error{nil, unix.EIO, nil, unix.EIO} {
		together := i > 1
		into, err := localObject(t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		from, err := localObject(tree, false)
		if err != nil {
			t.Fatal(err)
		}
		u := &run{tool: &tool{g: &cli.Globals{Err: &r.said, Quiet: true}}, ctx: t.Context()}
		dst := &unsynced{dirs: map[string]bool{}, fail: fail}
		k := newCopier(u, local{}, dst, 4)
		k.recursive = true
		if together {
			k.later.side = dst
		}
		k.run(from, into, "copy")
		if fail != nil {
			if u.failed == 0 {
				t.Error("a directory could not be synced, and the copy has not failed")
			}
			continue
		}
		if together != (dst.late.Load() > 0) {
			t.Errorf("%d files were left to the sync at the end", dst.late.Load())
		}
		if u.failed > 0 || len(dst.dirs) > 0 {
			t.Errorf("%d failed, %v are not synced: %s", u.failed, dst.dirs, r.said.String())
		}
		if b, err := os.Readlink(filepath.Join(into.path, "copy", "in", "c")); b != "a" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
	}
}

// TestOldPartsExpire: a copy that can be resumed removes what earlier ones have left of what its
// source is no more, when that is a day old, and nothing else.
func TestOldPartsExpire(t *testing.T) {
	r := newRig(t)
	if err := r.copy(t.Context(), copyFlags{}, 1<<20, r.write("src", random(copied, 6), 0o644), r.url+"/src"); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-25 * time.Hour)
	left := map[string]bool{}
	for _, c := range []struct {
		name  string
		mode  fs.FileMode
		time  time.Time
		stays bool
	}{
		{partName("back", "0123456789abcdef"), 0o600, old, false},
		{partName("back", "1123456789abcdef"), 0o600, time.Now(), true}, // it may be in the making
		{partName("back", "2123456789abcdef"), 0o644, old, true},        // not one of ours
		{partName("back", "short"), 0o600, old, true},
		{partName("backup", "3123456789abcdef"), 0o600, old, true},
	} {
		p := r.write(c.name, []byte("part"), c.mode)
		if err := os.Chtimes(p, c.time, c.time); err != nil {
			t.Fatal(err)
		}
		left[c.name] = c.stays
	}
	if err := r.copy(t.Context(), copyFlags{resume: true}, 1<<20, r.url+"/src", filepath.Join(r.dir, "back")); err != nil {
		t.Fatal(err, r.said.String())
	}
	for name, stays := range left {
		if _, err := os.Lstat(filepath.Join(r.dir, name)); (err == nil) != stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPartName: names fit, and end in a whole character.
func TestPartName(t *testing.T) {
	for _, name := range []string{"a", strings.Repeat("n", 255), strings.Repeat("ü", 127), strings.Repeat("\xff", 255)} {
		p := partName(name, newID())
		if len(p) > nameMax || !strings.HasPrefix(p, "."+name[:1]) || !strings.Contains(p, ".rstored-part-") ||
			strings.HasPrefix(name, "ü") && strings.ToValidUTF8(p, "?") != p {
			t.Errorf("%q", p)
		}
	}
}

// TestLinksAndFifos: what is no file replaces what is there, too, and nothing is left beside it.
func TestLinksAndFifos(t *testing.T) {
	for _, version := range []string{"3", "4.2"} {
		t.Run(version, func(t *testing.T) { linksAndFifos(t, version) })
	}
}

func linksAndFifos(t *testing.T, version string) {
	r := newRig(t)
	tree := filepath.Join(r.dir, "tree")
	if err := errors.Join(os.Mkdir(tree, 0o755), os.WriteFile(filepath.Join(tree, "a"), []byte("x"), 0o644),
		os.Link(filepath.Join(tree, "a"), filepath.Join(tree, "b")),
		os.Symlink("a", filepath.Join(tree, "c")), unix.Mkfifo(filepath.Join(tree, "d"), 0o640),
		os.Chmod(filepath.Join(tree, "d"), 0o640)); err != nil {
		t.Fatal(err)
	}
	root := &cobra.Command{Use: "rstorectl"}
	g := &cli.Globals{Out: io.Discard, Err: &r.said, Quiet: true}
	root.AddCommand(Commands(g)...)
	for range 2 {
		for _, args := range [][]string{
			{"put", "-r", tree, r.url},
			{"get", "-r", r.url + "/tree", filepath.Join(r.dir, "back")},
		} {
			root.SetArgs(append(args, "--nfs-version", version))
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err, r.said.String())
			}
		}
		// The second time there are others in their places, or the same.
		if err := errors.Join(os.RemoveAll(filepath.Join(r.dir, "back")),
			os.MkdirAll(filepath.Join(r.dir, "back", "tree"), 0o755),
			os.Symlink("/nowhere", filepath.Join(r.dir, "back", "tree", "d")),
			unix.Mkfifo(filepath.Join(r.dir, "back", "tree", "c"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadDir(filepath.Join(r.dir, "back", "tree"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range got {
		if strings.Contains(e.Name(), "part") {
			t.Errorf("%s is left", e.Name())
		}
	}
}
