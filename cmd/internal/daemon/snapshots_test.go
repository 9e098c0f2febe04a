package daemon

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/snapshot"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

// subvolume makes a subvolume of a new btrfs, and skips the test where that cannot be done.
func subvolume(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	img, top := filepath.Join(base, "img"), filepath.Join(base, "top")
	for _, err := range []error{os.Mkdir(top, 0o755), os.WriteFile(img, nil, 0o600), os.Truncate(img, 256<<20)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"mkfs.btrfs", "-q", img},
		{"mount", "-o", "loop", img, top},
		{"btrfs", "-q", "subvolume", "create", filepath.Join(top, "data")},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%s: %v: %s", args[0], err, out)
		}
		if args[0] == "mount" {
			t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
		}
	}
	return filepath.Join(top, "data")
}

// TestSnapshots: clients of both versions find a snapshot read-only, as it was, in a file system of
// its own, and cannot move it away. A removed one is forgotten.
func TestSnapshots(t *testing.T) {
	dir := subvolume(t)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("before")
	cfg := testConfig(t, dir+"=/data(no_root_squash)")
	d, _ := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	v, err := snapshot.Open(dir, desired.HostMounts())
	if err != nil {
		t.Fatal(err)
	}
	rescan := func() {
		t.Helper()
		if !d.SnapshotsChanged() {
			t.Error("the change of snapshots is not seen")
		}
		if err := d.Rescan(); err != nil {
			t.Fatal(err)
		}
		if d.SnapshotsChanged() {
			t.Error("a change of snapshots is seen again")
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "large"), largeFile(32<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := v.Create("one"); err != nil {
		t.Fatal(err)
	}
	rescan()
	write("after")
	if err := os.Remove(filepath.Join(dir, "large")); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	var kept client.Handle
	var clients []*client.Client
	for _, version := range []client.Version{client.Version3, client.Version42} {
		c := speak(t, cfg, version)
		clients = append(clients, c)
		seen := make(map[uint64]bool)
		var nodes []*client.Node
		n, err := c.Resolve(ctx, "/data")
		for _, name := range []string{"", desired.SnapshotDir, "one"} {
			if name != "" && err == nil {
				n, err = c.Lookup(ctx, n.Handle, name)
			}
			if err != nil {
				t.Fatalf("%v: %q: %v", version, name, err)
			}
			n.Handle = bytes.Clone(n.Handle)
			a, err := c.GetAttr(ctx, n.Handle)
			if err != nil || seen[a.FSID] {
				t.Errorf("%v: %q: file system %d, %v", version, name, a.FSID, err)
			}
			seen[a.FSID] = true
			nodes = append(nodes, n)
		}
		f, err := c.Lookup(ctx, nodes[2].Handle, "file")
		if err != nil {
			t.Fatal(err)
		}
		kept = bytes.Clone(f.Handle)
		var got bytes.Buffer
		if _, err := c.Stream(ctx, kept, &got, 0); err != nil || got.String() != "before" {
			t.Errorf("%v: the file in the snapshot is %q, %v", version, got.String(), err)
		}
		for what, err := range map[string]error{
			"a file beside it": func() error { _, err := c.Mkdir(ctx, nodes[1].Handle, "new", nil); return err }(),
			"a file in it":     c.Remove(ctx, nodes[2].Handle, "file"),
		} {
			if !client.IsStatus(err, nfs.ErrROFS) {
				t.Errorf("%v: changing %s: %v", version, what, err)
			}
		}
		for what, err := range map[string]error{
			"renaming":      c.Rename(ctx, nodes[0].Handle, desired.SnapshotDir, nodes[0].Handle, "moved"),
			"renaming over": c.Rename(ctx, nodes[0].Handle, "file", nodes[0].Handle, desired.SnapshotDir),
			"removing":      c.Rmdir(ctx, nodes[0].Handle, desired.SnapshotDir),
		} {
			if !client.IsStatus(err, nfs.ErrAcces) {
				t.Errorf("%v: %s the directory of snapshots: %v", version, what, err)
			}
		}
		if _, err := c.Resolve(ctx, "/data/.snapshots/one/file"); err != nil {
			t.Errorf("%v: by its path: %v", version, err)
		}
	}
	restored(t, dir, clients[1])
	snapshots := func() (names []string) {
		for _, e := range d.Exports() {
			if e.Origin == control.OriginSnapshot {
				if e.Error != "" || !e.ReadOnly {
					t.Errorf("%s: %q, read-only %v", e.Pseudo, e.Error, e.ReadOnly)
				}
				names = append(names, e.Pseudo)
			}
		}
		return names
	}
	if got := snapshots(); !slices.Equal(got, []string{"/data/.snapshots", "/data/.snapshots/one"}) {
		t.Errorf("exports %q", got)
	}
	export, err := d.ExportSet.Find("/data/.snapshots/one")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Remove("one"); err != nil {
		t.Fatal(err)
	}
	rescan()
	if got := snapshots(); len(got) > 0 {
		t.Errorf("exports %q are left", got)
	}
	if _, err := clients[0].GetAttr(ctx, kept); !client.IsStatus(err, nfs.ErrStale) {
		t.Errorf("a handle of a removed snapshot: %v", err)
	}
	// Another one at that path gets another number, so no old handle leads there.
	if id, err := d.state.ExportID(&export.Export.Export); err != nil || id == export.ID {
		t.Errorf("the number of the removed snapshot: %d, %d, %v", export.ID, id, err)
	}
}

// restored copies a large file out of the snapshot "one", in which it is new, within the server:
// the copy shares the blocks of the snapshot.
func restored(t *testing.T, dir string, c *client.Client) {
	t.Helper()
	const size = 32 << 20
	ctx := t.Context()
	used := func() uint64 {
		t.Helper()
		var s unix.Statfs_t
		if err := errors.Join(exec.Command("sync", "-f", dir).Run(), unix.Statfs(dir, &s)); err != nil {
			t.Fatal(err)
		}
		return (s.Blocks - s.Bfree) * uint64(s.Bsize)
	}
	from, err := c.Resolve(ctx, "/data/.snapshots/one/large")
	if err != nil {
		t.Fatal(err)
	}
	before := used()
	f, err := c.CreateFile(ctx, "/data/large", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	to, err := c.Resolve(ctx, "/data/large")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Copy(ctx, from.Handle, to.Handle, 0, size, func(int) {}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "large"))
	if err != nil || !bytes.Equal(got, largeFile(size)) {
		t.Errorf("the restored file has %d bytes, or other ones; %v", len(got), err)
	}
	if more := used() - before; more > size/4 {
		t.Errorf("a restored file of %d bytes takes %d", size, more)
	}
}

// largeFile is data that does not compress.
func largeFile(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
}
