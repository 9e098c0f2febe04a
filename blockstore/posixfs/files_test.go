package posixfs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/blockstore"
)

// TestFilesAreShared opens more files in several stores than the process may have descriptors
// for: every one of them opens, the stores keep their part together, and one that is there
// alone has all of it.
func TestFilesAreShared(t *testing.T) {
	const budget, stores, each = 240, 3, 100 // 40 objects and 40 files with locks
	files := NewFiles(budget)
	cred := &blockstore.Cred{}
	var all []*FS
	var names [][]blockstore.Handle
	for i := range stores {
		dir := t.TempDir()
		for k := range each {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(k)), []byte{byte(k)}, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		f, err := Open(dir, Options{StateDir: t.TempDir(), Files: files, Identity: Server})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
		root, _ := f.Root()
		var hs []blockstore.Handle
		for k := range each {
			h, _, err := f.Lookup(cred, root, fmt.Sprint(k))
			if err != nil {
				t.Fatalf("store %d, file %d: %v", i, k, err)
			}
			hs = append(hs, h)
		}
		names = append(names, hs)
		if n := f.objects.size.Load(); i == 0 && n != budget/6 {
			t.Errorf("a store that is there alone keeps %d objects", n)
		}
	}
	read := func(i, k int) {
		t.Helper()
		var b [2]byte
		if n, _, err := all[i].ReadAt(cred, names[i][k], b[:], 0, false); err != nil || n != 1 || b[0] != byte(k) {
			t.Fatalf("store %d, file %d: %d bytes, %v", i, k, n, err)
		}
		if n := files.Open(); n > budget/6 {
			t.Fatalf("%d objects are open, of %d", n, budget/6)
		}
	}
	for k := range each {
		for i := range all {
			read(i, k)
		}
	}
	for i, f := range all {
		if n := f.objects.size.Load(); n < budget/6/stores-2 {
			t.Errorf("store %d keeps %d objects", i, n)
		}
	}
	locked := 0
	for i := range all {
		for _, h := range names[i] {
			if l, err := all[i].LockHost(h, 0, 9, true); err == nil && l == nil {
				locked++
			}
		}
	}
	if locked > budget/6 || locked == 0 {
		t.Errorf("%d files have locks on the host, of %d", locked, budget/6)
	}
	for _, f := range all {
		f.Close()
	}
	if files.Open() != 0 || files.locked.Load() != 0 || len(files.caches) != 0 {
		t.Errorf("at the end %d objects, %d locks, %d stores", files.Open(), files.locked.Load(), len(files.caches))
	}
}
