//go:build cephfs && linux && cgo

package cephfs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
)

// native runs a command of test/ceph/native/native.c, which is a client of libcephfs itself.
func native(t *testing.T, args ...string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "native")
	build := []string{
		"-o", program, "../../test/ceph/native/native.c", os.Getenv("CGO_CFLAGS"),
		"-Wl,--allow-shlib-undefined",
	}
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		build = append(build, "-L"+dir)
	}
	for _, c := range []*exec.Cmd{
		exec.Command("gcc", append(build, "-l:libcephfs.so.2")...), exec.Command(program, args...),
	} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, out)
		}
	}
}

// TestSnapshots: a snapshot is found by names and by handles, also by another gateway that has
// never seen it, and nothing in it can be changed.
func TestSnapshots(t *testing.T) {
	a := gateway(t, Options{})
	defer a.Close()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at := func(f *FS, h blockstore.Handle, path string) blockstore.Handle {
		t.Helper()
		for name := range strings.SplitSeq(path, "/") {
			var err error
			if h, _, err = f.Lookup(nil, h, name); err != nil {
				t.Fatalf("%s of %s: %v", name, path, err)
			}
		}
		return h
	}
	mode := uint32(0o755)
	set := &blockstore.SetAttr{Mode: &mode}
	d, _, _, err := a.Mkdir(nil, a.top, t.Name(), set)
	ok(err)
	sub, _, _, err := a.Mkdir(nil, d, "sub", set)
	ok(err)
	file, _, _, err := a.Create(nil, sub, "file", blockstore.Guarded, set, [8]byte{})
	ok(err)
	_, _, _, err = a.WriteAt(nil, file, []byte("before"), 0, blockstore.FileSync)
	ok(err)
	native(t, "mksnap", t.Name(), "one")
	_, _, _, err = a.WriteAt(nil, file, []byte("after!"), 0, blockstore.FileSync)
	ok(err)
	native(t, "mksnap", t.Name(), "two")

	b := gateway(t, Options{})
	defer b.Close()
	snaps := at(a, d, ".snap")
	one, two := at(a, snaps, "one"), at(a, snaps, "two")
	for _, f := range []*FS{b, a} { // b has seen no name
		for h, want := range map[blockstore.Handle]string{
			at(a, one, "sub/file"): "before", at(a, two, "sub/file"): "after!", file: "after!",
		} {
			var buf [9]byte
			if n, eof, err := f.ReadAt(nil, h, buf[:], 0, false); err != nil || !eof || string(buf[:n]) != want {
				t.Errorf("%q, %v, %v; want %q", buf[:n], eof, err, want)
			}
		}
		ids := make(map[uint64]bool)
		for _, h := range []blockstore.Handle{d, snaps, one, two, sub, at(f, one, "sub"), at(f, two, "sub")} {
			got, err := f.GetAttr(nil, h)
			ok(err)
			if ids[got.FileID] || got.Type != blockstore.TypeDir {
				t.Errorf("file ID %d of two objects, or type %v", got.FileID, got.Type)
			}
			ids[got.FileID] = true
		}

		list := func(d blockstore.Handle, plus bool) (names []string) {
			t.Helper()
			_, eof, err := f.ReadDir(nil, d, 0, [8]byte{}, plus, func(e *blockstore.DirEntry) bool {
				if e.Name[0] != '.' {
					names = append(names, e.Name)
					h, got, err := f.Lookup(nil, d, e.Name)
					if err != nil || got.FileID != e.FileID || plus && *e.Handle != h {
						t.Errorf("%s: file ID %d, by lookup %d, %v", e.Name, e.FileID, got.FileID, err)
					}
				}
				return true
			})
			if err != nil || !eof {
				t.Errorf("listing: %v, %v", eof, err)
			}
			return names
		}
		for _, plus := range []bool{false, true} {
			if got := strings.Join(list(snaps, plus), " "); got != "one two" && got != "two one" {
				t.Errorf(".snap has %q", got)
			}
			if got := list(one, plus); len(got) != 1 || got[0] != "sub" {
				t.Errorf("the snapshot has %q", got)
			}
			if got := list(d, plus); len(got) != 1 || got[0] != "sub" {
				t.Errorf("the directory has %q", got)
			}
		}
		for h, want := range map[blockstore.Handle]blockstore.Handle{
			snaps: d, at(f, one, "sub"): one, sub: d, one: snaps,
		} {
			if got := at(f, h, ".."); got != want {
				t.Errorf("the parent of %v is %v, want %v", h.B[8:24], got.B[8:24], want.B[8:24])
			}
		}
	}

	frozen, deep := at(a, one, "sub/file"), at(a, one, "sub")
	never := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, blockstore.ErrROFS) {
			t.Errorf("%s in a snapshot: %v", what, err)
		}
	}
	for _, dir := range []blockstore.Handle{snaps, one, deep} {
		_, _, _, err := a.Mkdir(nil, dir, "new", set)
		never("mkdir", err)
		_, _, _, err = a.Create(nil, dir, "new", blockstore.Unchecked, set, [8]byte{})
		never("create", err)
		_, err = a.SetAttr(nil, dir, set, nil)
		never("setattr", err)
		_, _, err = a.Link(nil, file, dir, "link")
		never("link", err)
		_, _, err = a.Rename(nil, sub, "file", dir, "file")
		never("rename", err)
		got, _, err := a.Access(nil, dir, 63)
		ok(err)
		if got != blockstore.AccessRead|blockstore.AccessLookup {
			t.Errorf("access %x", got)
		}
	}
	_, err = a.Rmdir(nil, snaps, "one")
	never("removing one", err)
	_, err = a.Rmdir(nil, d, ".snap")
	never("removing .snap", err)
	_, _, err = a.Rename(nil, d, ".snap", d, "x")
	never("renaming .snap", err)
	_, err = a.Remove(nil, deep, "file")
	never("remove", err)
	_, _, _, err = a.WriteAt(nil, frozen, []byte("x"), 0, blockstore.FileSync)
	never("write", err)
	_, err = a.SetXattr(nil, frozen, "x", nil, blockstore.XattrEither)
	never("xattr", err)
	_, err = a.SetACL(nil, frozen, blockstore.ACLAccess, blockstore.ACLOfMode(0o777))
	never("ACL", err)
	if err := a.Pin(frozen); err != nil {
		t.Error(err)
	}
	a.Unpin(frozen)
	if in, err := a.LockHost(frozen, 0, 9, false); in != nil || err != nil {
		t.Errorf("lock: %v, %v", in, err)
	}
}

// TestSnapshotOfDirectoryAbove: an export below a directory with a snapshot has that snapshot, too.
// Its parents there are no way out of the export.
func TestSnapshotOfDirectoryAbove(t *testing.T) {
	a := gateway(t, Options{})
	defer a.Close()
	mode := uint32(0o755)
	set := &blockstore.SetAttr{Mode: &mode}
	d, path := a.top, ""
	for _, name := range []string{t.Name(), "export", "deep"} {
		var err error
		if d, _, _, err = a.Mkdir(nil, d, name, set); err != nil {
			t.Fatal(err)
		}
		if name != "deep" {
			path += "/" + name
		}
	}
	native(t, "mksnap", t.Name(), "above")
	b := gateway(t, Options{Root: path})
	defer b.Close()
	look := func(d blockstore.Handle, name string) blockstore.Handle {
		t.Helper()
		h, _, err := b.Lookup(nil, d, name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return h
	}
	snaps, name := look(b.top, ".snap"), ""
	if _, _, err := b.ReadDir(nil, snaps, 0, [8]byte{}, false, func(e *blockstore.DirEntry) bool {
		if strings.HasPrefix(e.Name, "_above_") {
			name = e.Name
		}
		return true
	}); err != nil || name == "" {
		t.Fatalf("%q: %v", name, err)
	}
	above := look(snaps, name)
	for h, want := range map[blockstore.Handle]blockstore.Handle{
		look(above, "deep"): above, above: snaps, snaps: b.top, b.top: b.top,
	} {
		if got := look(h, ".."); got != want {
			t.Errorf("the parent of %v is %v, want %v", h.B[8:24], got.B[8:24], want.B[8:24])
		}
	}
}

// TestVirtual: layouts are extended attributes that root can change, and quotas of directories are
// the size that clients see.
func TestVirtual(t *testing.T) {
	f := gateway(t, Options{})
	defer f.Close()
	mode := uint32(0o777)
	d, _, _, err := f.Mkdir(nil, f.top, t.Name(), &blockstore.SetAttr{Mode: &mode})
	if err != nil {
		t.Fatal(err)
	}
	sub, _, _, err := f.Mkdir(nil, d, "sub", &blockstore.SetAttr{Mode: &mode})
	if err != nil {
		t.Fatal(err)
	}
	const layout, limit = "ceph.dir.layout.object_size", "ceph.quota.max_bytes"
	if _, err := f.SetXattr(nil, d, "ceph.dir.layout.stripe_unit", []byte("1048576"), blockstore.XattrEither); err != nil {
		t.Fatal(err)
	}
	if _, err := f.SetXattr(nil, d, layout, []byte("1048576"), blockstore.XattrEither); err != nil {
		t.Fatal(err)
	}
	user := &blockstore.Cred{UID: 1000, GID: 1000}
	if v, err := f.GetXattr(user, d, layout); err != nil || string(v) != "1048576" {
		t.Errorf("%s: %q, %v", layout, v, err)
	}
	for _, name := range []string{layout, limit} {
		_, err := f.SetXattr(user, d, name, []byte("4194304"), blockstore.XattrEither)
		if !errors.Is(err, blockstore.ErrPerm) {
			t.Errorf("a user sets %s: %v", name, err)
		}
	}
	if q, err := f.ProjectQuota(sub); err != nil || q != (blockstore.Quota{}) {
		t.Errorf("quota %+v, %v", q, err)
	}
	const quota = 64 << 20
	if _, err := f.SetXattr(nil, d, limit, []byte("67108864"), blockstore.XattrEither); err != nil {
		t.Fatal(err)
	}
	for _, h := range []blockstore.Handle{d, sub} {
		if q, err := f.ProjectQuota(h); err != nil || q.Hard != quota || q.FilesHard != 0 {
			t.Errorf("quota %+v, %v", q, err)
		}
		if s, err := f.Stat(nil, h); err != nil || s.TotalBytes != quota || s.AvailBytes > quota {
			t.Errorf("size %+v, %v", s, err)
		}
	}
	if s, err := f.Stat(nil, f.top); err != nil || s.TotalBytes == quota {
		t.Errorf("size of the root %+v, %v", s, err)
	}
	h, _, _, err := f.Create(nil, sub, "big", blockstore.Guarded, &blockstore.SetAttr{}, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := f.WriteAt(nil, h, []byte("x"), 2*quota, blockstore.FileSync); !errors.Is(err, blockstore.ErrQuota) {
		t.Errorf("a write beyond the quota: %v", err)
	}
}
