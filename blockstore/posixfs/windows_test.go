package posixfs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
)

// mapRig is a store that maps whatever file system it is on, and at once.
type mapRig struct {
	*testing.T
	f   *FS
	dir string
}

func newMapRig(t *testing.T, opts Options) *mapRig {
	s := newSite(t, opts)
	f := s.open(t)
	f.mappable, f.noatime, f.windows.rest, f.writeRest = true, true, 0, 0
	r := &mapRig{t, f, s.dir}
	t.Cleanup(r.close)
	return r
}

// close closes the store, once: no window is left.
func (r *mapRig) close() {
	if r.f != nil {
		if err := r.f.Close(); err != nil {
			r.Error(err)
		}
		r.count(0, 0)
		r.f = nil
	}
}

// pattern is n bytes of a file from off on; every page differs from all others of seed.
func pattern(seed byte, off, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed ^ byte((off+i)*167>>4) ^ byte((off+i)>>12)
	}
	return b
}

// make makes a file that is in memory, and opens it.
func (r *mapRig) make(name string, data []byte) blockstore.Handle {
	r.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), data, 0o644); err != nil {
		r.Fatal(err)
	}
	h, _, err := r.f.Lookup(nil, r.f.root.h, name)
	if err != nil {
		r.Fatal(err)
	}
	return h
}

// mapped has to succeed.
func (r *mapRig) mapped(h blockstore.Handle, off uint64, n int) blockstore.Window {
	r.Helper()
	w, _ := r.f.Map(nil, h, off, n)
	if w == nil {
		r.Fatalf("%d bytes at %d are not mapped", n, off)
	}
	return w
}

// count has n windows, and users of them.
func (r *mapRig) count(n, users int) {
	r.Helper()
	w := &r.f.windows
	w.mu.Lock()
	defer w.mu.Unlock()
	sum, idle := 0, 0
	for _, x := range w.byAt {
		sum += x.users
		if x.users == 0 {
			idle++
		}
	}
	for x := w.ends.newer; x != &w.ends; x = x.newer {
		idle--
	}
	if w.n != n || len(w.byAt) != n || sum != users || idle != 0 {
		r.Errorf("%d windows, %d of them known, %d users, %d not in order; want %d with %d users", w.n, len(w.byAt), sum,
			idle, n, users)
	}
}

func TestMap(t *testing.T) {
	r := newMapRig(t, Options{})
	const size = windowSize + 300000
	data := pattern(1, 0, size)
	h := r.make("file", data)
	small := r.make("small", data[:mapMin-1])
	if err := os.WriteFile(filepath.Join(r.dir, "closed"), data[:mapMin], 0o600); err != nil {
		t.Fatal(err)
	}
	closed, _, err := r.f.Lookup(nil, r.f.root.h, "closed")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "unknown"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	unopened, _, err := r.f.Lookup(nil, r.f.root.h, "unknown")
	if err != nil {
		t.Fatal(err)
	}
	r.f.objects.drop(&unopened)
	hole := r.make("hole", nil)
	if err := os.Truncate(filepath.Join(r.dir, "hole"), mapMin); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		h    blockstore.Handle
		cred *blockstore.Cred
		off  uint64
		n    int
		want int // bytes that are mapped
		eof  bool
	}{
		{"from the start", h, nil, 0, 1 << 20, 1 << 20, false},
		{"from inside a page", h, nil, 4099, 100001, 100001, false},
		{"a whole window", h, nil, 0, windowSize, windowSize, false},
		{"in two windows", h, nil, windowSize - 70000, 140000, 0, false},
		{"to the end", h, nil, windowSize, 300000, 300000, true},
		{"over the end", h, nil, windowSize, 1 << 20, 300000, true},
		{"little before the end", h, nil, size - mapMin + 1, mapMin, 0, false},
		{"behind the end", h, nil, size, mapMin, 0, false},
		{"far behind the end", h, nil, 1<<63 + 5, mapMin, 0, false},
		{"little", h, nil, 0, mapMin - 1, 0, false},
		{"a small file", small, nil, 0, mapMin, 0, false},
		{"a hole", hole, nil, 0, mapMin, 0, false},
		{"may not", closed, &blockstore.Cred{UID: 4711, GID: 4711}, 0, mapMin, 0, false},
		{"a directory", r.f.root.h, nil, 0, mapMin, 0, false},
		{"not open", unopened, nil, 0, mapMin, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, eof := r.f.Map(c.cred, c.h, c.off, c.n)
			if (w != nil) != (c.want > 0) || eof != c.eof {
				t.Fatalf("%v, eof %v", w, eof)
			}
			if w == nil {
				return
			}
			if b := w.Bytes(); !bytes.Equal(b, data[c.off:][:c.want]) {
				t.Errorf("%d bytes, not those of the file", len(b))
			}
			b := make([]byte, 100)
			if err := w.Copy(b, w.Bytes()[31:131]); err != nil || !bytes.Equal(b, data[c.off+31:][:100]) {
				t.Errorf("a copy of other bytes, %v", err)
			}
			w.Release()
			r.count(len(r.f.windows.byAt), 0)
		})
	}
	r.f.writeRest = windowRest * 1000
	if w, _ := r.f.Map(nil, h, 0, mapMin); w != nil {
		t.Error("a file is mapped that has just been written")
	}
	r.f.writeRest, r.f.noatime = 0, false
	for _, c := range []struct {
		name   string
		since  time.Duration // the last access, before now
		mapped bool
	}{
		{"after the last change", -time.Minute, true},
		{"before the last change", time.Minute, false},
		{"the day before", 25 * time.Hour, false},
	} {
		now := time.Now()
		if err := os.Chtimes(filepath.Join(r.dir, "file"), now.Add(-c.since), now.Add(-48*time.Hour)); err != nil {
			t.Fatal(err)
		}
		w, _ := r.f.Map(nil, h, 0, mapMin)
		if (w != nil) != c.mapped {
			t.Errorf("last read %s: mapped %v", c.name, w != nil)
		}
		if w != nil {
			w.Release()
		}
	}
}
