package posixfs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
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

// TestMapChanges is what happens to a file while it is mapped.
func TestMapChanges(t *testing.T) {
	const n = 1 << 18
	old := pattern(1, 0, n)
	for _, c := range []struct {
		name   string
		change func(path string) error
		// want is what copies hold then; again what the next Map finds, nil for nothing.
		want, again []byte
	}{
		{"nothing", func(string) error { return nil }, old, old},
		{
			"cut off", func(p string) error { return os.Truncate(p, 100001) },
			append(bytes.Clone(old[:100001]), make([]byte, n-100001)...), old[:100001],
		},
		{"emptied", func(p string) error { return os.Truncate(p, 0) }, make([]byte, n), nil},
		{
			"longer", func(p string) error { return os.WriteFile(p, pattern(2, 0, 2*n), 0o600) }, pattern(2, 0, n),
			pattern(2, 0, 2*n),
		},
		{"removed", os.Remove, old, nil},
		{"replaced", func(p string) error {
			if err := os.WriteFile(p+"2", pattern(3, 0, n), 0o600); err != nil {
				return err
			}
			return os.Rename(p+"2", p)
		}, old, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newMapRig(t, Options{})
			h := r.make("file", old)
			w := r.mapped(h, 0, n)
			if err := c.change(filepath.Join(r.dir, "file")); err != nil {
				t.Fatal(err)
			}
			b := bytes.Repeat([]byte{0xee}, n)
			if err := w.Copy(b, w.Bytes()); err != nil || !bytes.Equal(b, c.want) {
				t.Errorf("a copy of other bytes, %v", err)
			}
			v, _ := r.f.Map(nil, h, 0, 2*n)
			switch {
			case (v != nil) != (c.again != nil):
				t.Errorf("mapped again: %v", v)
			case v != nil && !bytes.Equal(v.Bytes(), c.again):
				t.Errorf("%d other bytes are mapped again", len(v.Bytes()))
			}
			users := 1
			if v != nil {
				users++
			}
			r.count(1, users)
			if v != nil {
				v.Release()
			}
			// Whoever finds a file without names drops it from the cache.
			_, _, _ = r.f.ReadAt(nil, h, b, 0, false)
			r.count(1, 1)
			w.Release()
			if kept := len(r.f.windows.byAt); (kept == 1) != (c.name != "removed" && c.name != "replaced") {
				t.Errorf("%d windows are left", kept)
			}
		})
	}
}

// TestMapEviction holds the bound on windows, with and without users.
func TestMapEviction(t *testing.T) {
	r := newMapRig(t, Options{})
	r.f.windows.max = 2
	var h [3]blockstore.Handle
	for i := range h {
		h[i] = r.make(fmt.Sprint(i), pattern(byte(i), 0, mapMin))
	}
	a, b := r.mapped(h[0], 0, mapMin), r.mapped(h[1], 0, mapMin)
	if w, _ := r.f.Map(nil, h[2], 0, mapMin); w != nil {
		t.Fatal("a window in use was given up")
	}
	b2 := r.mapped(h[1], 0, mapMin) // shares
	r.count(2, 3)
	b.Release()
	if w, _ := r.f.Map(nil, h[2], 0, mapMin); w != nil {
		t.Fatal("a window that one still uses was given up")
	}
	b2.Release()
	a.Release() // b was idle first
	c := r.mapped(h[2], 0, mapMin)
	r.count(2, 1)
	if !bytes.Equal(c.Bytes(), pattern(2, 0, mapMin)) {
		t.Error("other bytes")
	}
	if r.f.windows.byAt[windowKey{r.f.objects.byH[h[0]], 0}] == nil {
		t.Error("not the oldest window was given up")
	}
	r.f.windows.rest = windowRest * 1000
	if w, _ := r.f.Map(nil, h[1], 0, mapMin); w != nil {
		t.Error("a window that was just used was given up")
	}
	c.Release()
	r.count(2, 0)
	r.f.windows.max = 3
	files := r.f.windows.files
	files.windows.Add(windowsTotal)
	w, _ := r.f.Map(nil, h[1], 0, mapMin)
	files.windows.Add(-windowsTotal)
	if w != nil {
		t.Error("mapped, though other stores have so many")
	}
	r.count(2, 0)
	r.close()
	if n := files.Mapped(); n != 0 {
		t.Errorf("%d bytes are counted as mapped after the end", n)
	}
}

// TestLimitMapped: the bound of several stores holds. A store without room takes an idle window of
// another one, and a smaller bound unmaps what is idle.
func TestLimitMapped(t *testing.T) {
	files := NewFiles(0)
	a, b := newMapRig(t, Options{Files: files}), newMapRig(t, Options{Files: files})
	if files.LimitMapped(3*windowSize + 1); files.windowsMost.Load() != 3 {
		t.Fatalf("%d windows", files.windowsMost.Load())
	}
	var h [2][3]blockstore.Handle
	for i := range 3 {
		h[0][i] = a.make(fmt.Sprint(i), pattern(byte(i), 0, mapMin))
		h[1][i] = b.make(fmt.Sprint(i), pattern(byte(i), 0, mapMin))
	}
	for i := range 3 {
		a.mapped(h[0][i], 0, mapMin).Release()
	}
	a.count(3, 0)
	inUse := b.mapped(h[1][0], 0, mapMin)
	a.count(2, 0)
	b.mapped(h[1][1], 0, mapMin).Release()
	a.count(1, 0)
	b.count(2, 1)
	if n := files.Mapped(); n != 3*windowSize {
		t.Errorf("%d bytes are mapped", n)
	}
	files.LimitMapped(0)
	a.count(0, 0)
	b.count(1, 1)
	if w, _ := a.f.Map(nil, h[0][0], 0, mapMin); w != nil {
		t.Error("mapped, though nothing may be")
	}
	inUse.Release()
	files.LimitMapped(MappedDefault)
	a.mapped(h[0][0], 0, mapMin).Release()
}

// TestMapOutlivesStore: what is lent is good after Close, as long as it is lent.
func TestMapOutlivesStore(t *testing.T) {
	s := newSite(t, Options{})
	f := s.open(t)
	f.mappable, f.noatime, f.writeRest = true, true, 0
	r := &mapRig{t, f, s.dir}
	data := pattern(7, 0, mapMin)
	w := r.mapped(r.make("file", data), 0, mapMin)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, mapMin)
	if err := w.Copy(b, w.Bytes()); err != nil || !bytes.Equal(b, data) || !bytes.Equal(w.Bytes(), data) {
		t.Error("other bytes", err)
	}
	w.Release()
	r.count(0, 0)
}

// TestMapTogether maps, changes and drops files from many goroutines.
func TestMapTogether(t *testing.T) {
	r := newMapRig(t, Options{OpenFiles: 16})
	r.f.windows.max = 6
	const files, n = 40, 3 * mapMin
	var h [files]blockstore.Handle
	for i := range h {
		h[i] = r.make(fmt.Sprint(i), pattern(byte(i), 0, n))
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			b := make([]byte, n)
			var held []blockstore.Window
			for range 2000 {
				i := rnd.IntN(files)
				if rnd.IntN(4) == 0 {
					if _, _, err := r.f.ReadAt(nil, h[i], b[:4], 0, false); err != nil && !errors.Is(err, blockstore.ErrWouldBlock) {
						t.Error(err)
					}
				}
				off := rnd.IntN(2 * mapMin)
				if w, _ := r.f.Map(nil, h[i], uint64(off), mapMin); w != nil {
					held = append(held, w)
					if !bytes.Equal(w.Bytes(), pattern(byte(i), off, mapMin)) {
						t.Errorf("file %d at %d: other bytes", i, off)
						return
					}
				}
				for len(held) > rnd.IntN(4) {
					held[0].Release()
					held = held[1:]
				}
			}
			for _, w := range held {
				w.Release()
			}
		})
	}
	wg.Wait()
	if r.f.count.mapped.Load() == 0 {
		t.Error("nothing was mapped")
	}
	r.count(len(r.f.windows.byAt), 0)
}
