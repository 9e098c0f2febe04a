package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// fileSystem is what FS and os.Root have in common: the same program runs on both.
type fileSystem interface {
	Mkdir(name string, perm fs.FileMode) error
	MkdirAll(name string, perm fs.FileMode) error
	Remove(name string) error
	RemoveAll(name string) error
	Rename(oldName, newName string) error
	Link(oldName, newName string) error
	Symlink(target, name string) error
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	ReadFile(name string) ([]byte, error)
	WriteFile(name string, data []byte, perm fs.FileMode) error
	Chmod(name string, mode fs.FileMode) error
	Chtimes(name string, atime, mtime time.Time) error
}

var (
	_ fileSystem    = (*FS)(nil)
	_ fileSystem    = (*os.Root)(nil)
	_ fs.ReadFileFS = (*FS)(nil)
	_ fs.ReadDirFS  = (*FS)(nil)
	_ fs.ReadLinkFS = (*FS)(nil)
	_ fs.StatFS     = (*FS)(nil)
	_ fs.SubFS      = (*FS)(nil)
)

// TestLikeRoot runs a program of changes on an FS and on an os.Root. Both give the same errors, in
// the words of io/fs, and end with the same tree.
func TestLikeRoot(t *testing.T) { eachVersion(t, testLikeRoot) }

func testLikeRoot(t *testing.T, s *server) {
	view, err := s.client().FS(context.Background(), "/data")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	when := time.Unix(1_000_000_000, 123_000_000)
	for _, step := range []struct {
		name string
		do   func(fileSystem) error
	}{
		{"mkdir", func(f fileSystem) error { return f.Mkdir("a", 0o755) }},
		{"mkdir again", func(f fileSystem) error { return f.Mkdir("a", 0o755) }},
		{"mkdir in nothing", func(f fileSystem) error { return f.Mkdir("x/y", 0o755) }},
		{"mkdir outside", func(f fileSystem) error { return f.Mkdir("../x", 0o755) }},
		{"mkdirall", func(f fileSystem) error { return f.MkdirAll("b/c/d", 0o750) }},
		{"mkdirall again", func(f fileSystem) error { return f.MkdirAll("b/c/d", 0o700) }},
		{"write", func(f fileSystem) error { return f.WriteFile("b/c/f", fill(1, 3<<20), 0o640) }},
		{"mkdirall over a file", func(f fileSystem) error { return f.MkdirAll("b/c/f/g", 0o755) }},
		{"mkdirall on a file", func(f fileSystem) error { return f.MkdirAll("b/c/f", 0o755) }},
		{"write again", func(f fileSystem) error { return f.WriteFile("b/c/f", []byte("short"), 0o600) }},
		{"write a directory", func(f fileSystem) error { return f.WriteFile("b/c", nil, 0o600) }},
		{"symlink", func(f fileSystem) error { return f.Symlink("../b/c/f", "a/link") }},
		{"write through it", func(f fileSystem) error { return f.WriteFile("a/link", []byte("linked"), 0o600) }},
		{"symlink to nothing", func(f fileSystem) error { return f.Symlink("none", "a/dangling") }},
		{"symlink again", func(f fileSystem) error { return f.Symlink("none", "a/dangling") }},
		{"read through nothing", func(f fileSystem) error { _, err := f.ReadFile("a/dangling"); return err }},
		{"hard link", func(f fileSystem) error { return f.Link("b/c/f", "a/second") }},
		{"hard link again", func(f fileSystem) error { return f.Link("b/c/f", "a/second") }},
		{"remove what is not empty", func(f fileSystem) error { return f.Remove("b/c") }},
		{"remove nothing", func(f fileSystem) error { return f.Remove("none") }},
		{"remove directory", func(f fileSystem) error { return f.Remove("b/c/d") }},
		{"remove link", func(f fileSystem) error { return f.Remove("a/dangling") }},
		{"rename", func(f fileSystem) error { return f.Rename("b/c", "e") }},
		{"rename nothing", func(f fileSystem) error { return f.Rename("none", "e2") }},
		{"rename over a file", func(f fileSystem) error {
			return errors.Join(f.WriteFile("e/over", []byte("x"), 0o600), f.Rename("a/second", "e/over"))
		}},
		{"chmod", func(f fileSystem) error { return f.Chmod("e/over", 0o4711|fs.ModeSetuid|fs.ModeSticky) }},
		{"chmod nothing", func(f fileSystem) error { return f.Chmod("none", 0o600) }},
		{"chtimes", func(f fileSystem) error { return f.Chtimes("e/f", when, when.Add(time.Hour)) }},
		{"chtimes one", func(f fileSystem) error { return f.Chtimes("e/f", time.Time{}, when) }},
		{"a tree", func(f fileSystem) error {
			return errors.Join(f.MkdirAll("t/u/v", 0o755), f.WriteFile("t/u/v/w", []byte("w"), 0o600),
				f.Symlink("../../e", "t/u/out"))
		}},
		{"removeall", func(f fileSystem) error { return f.RemoveAll("t") }},
		{"removeall nothing", func(f fileSystem) error { return f.RemoveAll("t/u") }},
		{"removeall a file", func(f fileSystem) error { return f.RemoveAll("a/link") }},
	} {
		got, want := step.do(view), step.do(root)
		if (got == nil) != (want == nil) {
			t.Errorf("%s: %v, os.Root: %v", step.name, got, want)
		}
		for _, kind := range []error{fs.ErrExist, fs.ErrNotExist} {
			if errors.Is(got, kind) != errors.Is(want, kind) {
				t.Errorf("%s: %v, os.Root: %v", step.name, got, want)
			}
		}
	}
	if got, want := tree(t, view), tree(t, root.FS()); !slices.Equal(got, want) {
		t.Errorf("the tree is\n%s\non the host\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := fstest.TestFS(view, "e/f", "e/over"); err != nil {
		t.Error(err)
	}
	sub, err := fs.Sub(view, "e")
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(sub, "f", "over"); err != nil {
		t.Error(err)
	}
	if _, err := view.Sub("e/f"); err == nil {
		t.Error("a file is a file system")
	}
}

// tree lists everything below the root with mode, size, content and, of files, the time.
func tree(t *testing.T, f fs.FS) (out []string) {
	t.Helper()
	err := fs.WalkDir(f, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		line := name + " " + i.Mode().String()
		if i.Mode().IsRegular() {
			b, err := fs.ReadFile(f, name)
			if err != nil {
				return err
			}
			line += " " + string(b[:min(len(b), 20)])
			if strings.HasSuffix(name, "e/f") {
				line += i.ModTime().UTC().String()
			}
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOpenFile(t *testing.T) { eachVersion(t, testOpenFile) }

func testOpenFile(t *testing.T, s *server) {
	view, err := s.client().FS(context.Background(), "/data")
	if err != nil {
		t.Fatal(err)
	}
	open := func(flag int) *File {
		t.Helper()
		f, err := view.OpenFile("f", flag, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if _, err := view.OpenFile("f", os.O_RDWR, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	f := open(os.O_WRONLY | os.O_CREATE | os.O_EXCL)
	if _, err := io.WriteString(f, "0123456789"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, errAccess) {
		t.Errorf("read of a file that is open for writing: %v", err)
	}
	if err := errors.Join(f.Truncate(5), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := view.OpenFile("f", os.O_CREATE|os.O_EXCL, 0); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	f = open(os.O_RDONLY)
	if _, err := f.Write([]byte("x")); !errors.Is(err, errAccess) {
		t.Errorf("write to a file that is open for reading: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	f = open(os.O_RDWR | os.O_APPEND | os.O_SYNC)
	if _, err := io.WriteString(f, "abc"); err != nil || len(f.dirty) > 0 {
		t.Errorf("%v, %d writes are not stable", err, len(f.dirty))
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if b, err := view.ReadFile("f"); err != nil || string(b) != "01234abc" {
		t.Errorf("%q, %v", b, err)
	}
	if f, err := view.Create("f"); err != nil {
		t.Error(err)
	} else if i, err := f.Stat(); err != nil || i.Size() != 0 || i.Name() != "f" {
		t.Errorf("%v, %v", i, err)
	}
	if _, err := view.OpenFile(".", os.O_RDWR, 0); err == nil {
		t.Error("a directory is open for writing")
	}
	big := fill(3, 2*TransferMax+17)
	if err := view.WriteFile("big", big, 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := view.ReadFile("big"); err != nil || !bytes.Equal(b, big) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if err := view.Truncate("big", 3); err != nil {
		t.Error(err)
	}
	if b, err := view.ReadFile("big"); err != nil || !bytes.Equal(b, big[:3]) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
