package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/posixfs"
)

// TestDirectSetting: the option of an export reaches its store.
func TestDirectSetting(t *testing.T) {
	fd, err := unix.Open(filepath.Join(t.TempDir(), "probe"), unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT, 0o600)
	if err != nil {
		t.Skip("no O_DIRECT here:", err)
	}
	unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &st); err != nil || st.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary directory is in memory")
	}
	cfg := testConfig(t, t.TempDir()+"=/on(direct)", t.TempDir()+"=/off", "memory:mem")
	cfg.RDMAListen = nil
	d, _ := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	p, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(p)
	for name, want := range map[string]uint64{"/on": 1, "/off": 0} {
		x, _ := d.Table.ByPath(name)
		root, err := x.FS.Root()
		if err != nil {
			t.Fatal(err)
		}
		h, _, _, err := x.FS.Create(nil, root, "f", blockstore.Guarded, &blockstore.SetAttr{}, [8]byte{})
		if err != nil {
			t.Fatal(err)
		}
		if n, _, _, err := x.FS.WriteAt(nil, h, p, 0, blockstore.Unstable); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
		e, err := d.ExportSet.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := e.Store().(*posixfs.FS).Counters().DirectWrites; n != want {
			t.Errorf("%s: %d writes past the page cache, want %d", name, n, want)
		}
	}
}
