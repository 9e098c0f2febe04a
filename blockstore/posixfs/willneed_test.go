package posixfs

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
)

// TestWillNeed: the kernel is asked for the range, up to the end of the file, and for no more than
// the limits.
func TestWillNeed(t *testing.T) {
	f, s := openTemp(t, Options{})
	const size = 4 << 20
	h := dataFile(t, f, size)
	_, err := f.Commit(nil, h, 0, 0)
	must(t, err)
	for _, c := range []struct {
		off, n, want uint64
		takes        bool
	}{
		{0, 1 << 20, 1 << 20, true},
		{1 << 20, 0, size - 1<<20, true},
		{size - 5, 1<<64 - 1, 5, true},
		{size, 1, 0, false},
		{1<<64 - 1, 0, 0, false},
	} {
		before := f.Counters().ReadAhead
		takes, err := f.WillNeed(nil, h, c.off, c.n)
		for f.aheads.Load() != 0 {
			runtime.Gosched()
		}
		if got := f.Counters().ReadAhead - before; err != nil || !f.inMemory && (takes != c.takes || got != c.want) {
			t.Errorf("%d bytes at %d: %v %v, %d bytes asked for", c.n, c.off, takes, err, got)
		}
	}
	f.aheads.Add(aheadMax)
	if takes, err := f.WillNeed(nil, h, 0, 0); !f.inMemory && takes || err != nil {
		t.Errorf("beyond the limit: %v %v", takes, err)
	}
	f.aheads.Add(-aheadMax)
	if takes, err := f.WillNeed(nil, blockstore.Handle{Len: 1}, 0, 0); takes || err == nil {
		t.Error("a bad handle")
	}
	root, err := f.Root()
	must(t, err)
	if takes, err := f.WillNeed(nil, root, 0, 0); takes || err != blockstore.ErrIsDir {
		t.Error(takes, err)
	}
	must(t, os.Chmod(filepath.Join(s.dir, "data"), 0o600))
	if takes, err := f.WillNeed(&blockstore.Cred{UID: 12345, GID: 12345}, h, 0, 0); takes || err != blockstore.ErrAccess {
		t.Errorf("a stranger: %v %v", takes, err)
	}
}

// TestWillNeedReads: the range is in memory afterwards.
func TestWillNeedReads(t *testing.T) {
	f, s := openTemp(t, Options{})
	const size = 1 << 20
	h, mem := coldFile(t, f, s, size)
	takes, err := f.WillNeed(nil, h, 0, size/2)
	if err != nil || !takes {
		t.Fatal(takes, err)
	}
	// The kernel may still be reading when it has taken the whole request.
	for end := time.Now().Add(10 * time.Second); f.aheads.Load() != 0 || !resident(mem, mem[:1]); {
		if time.Now().After(end) {
			t.Fatal("nothing was read")
		}
		runtime.Gosched()
	}
}

// TestDontNeed: the range is not in memory afterwards, and the rest is.
func TestDontNeed(t *testing.T) {
	f, s := openTemp(t, Options{})
	if f.inMemory {
		t.Skip("the filesystem is memory")
	}
	const size = 1 << 20
	h, mem := coldFile(t, f, s, size)
	if _, _, err := f.ReadAt(nil, h, make([]byte, size), 0, false); err != nil || !resident(mem, mem[:1]) {
		t.Fatal(err, "not read into memory")
	}
	if takes, err := f.DontNeed(nil, h, 0, size/2); err != nil || !takes {
		t.Fatal(takes, err)
	}
	if resident(mem, mem[:1]) || !resident(mem, mem[size/2:size/2+1]) {
		t.Error("another range was dropped")
	}
	if takes, err := f.DontNeed(nil, h, size/2, 0); err != nil || !takes || resident(mem, mem[size-1:]) {
		t.Errorf("to the end: %v %v", takes, err)
	}
	if takes, err := f.DontNeed(nil, h, size, 1); err != nil || takes {
		t.Errorf("behind the end: %v %v", takes, err)
	}
	must(t, os.Chmod(filepath.Join(s.dir, "data"), 0o600))
	if takes, err := f.DontNeed(&blockstore.Cred{UID: 12345, GID: 12345}, h, 0, 0); takes || err != blockstore.ErrAccess {
		t.Errorf("a stranger: %v %v", takes, err)
	}
}
