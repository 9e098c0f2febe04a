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

	"github.com/rstored/rstored/blockstore"
)

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
