package posixfs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
)

// pinned is a store with a pinned file that the host has removed, and one that has its name.
type pinned struct {
	*FS
	s       *site
	gone, h blockstore.Handle
}

func newPinned(t *testing.T, opts Options) *pinned {
	f, s := openTemp(t, opts)
	p := &pinned{FS: f, s: s}
	r, err := f.Root()
	must(t, err)
	for name, h := range map[string]*blockstore.Handle{"gone": &p.gone, "there": &p.h} {
		must(t, os.WriteFile(filepath.Join(s.dir, name), []byte(name), 0o666))
		*h, _, err = f.Lookup(nil, r, name)
		must(t, err)
		must(t, f.Pin(*h))
	}
	must(t, os.Remove(filepath.Join(s.dir, "gone")))
	return p
}

func reads(t *testing.T, f *FS, h blockstore.Handle, want string) {
	t.Helper()
	buf := make([]byte, 16)
	n, _, err := f.ReadAt(nil, h, buf, 0, false)
	if err != nil || string(buf[:n]) != want {
		t.Errorf("read %q, %v; want %q", buf[:n], err, want)
	}
}

func descriptorsOpen(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}

// TestPinned: a pinned file that the host removes stays, in the cache or not, and
// leaves no descriptor behind.
func TestPinned(t *testing.T) {
	for name, opts := range map[string]Options{
		"handle": {}, "table": {Handles: Server},
		"birth": {Handles: Server, forceBirth: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newPinned(t, opts)
			before := descriptorsOpen(t) - len(f.objects.byH) - 2
			for range 3 {
				reads(t, f.FS, f.gone, "gone")
				if _, _, _, err := f.WriteAt(nil, f.gone, []byte("GONE"), 0, blockstore.Unstable); err != nil {
					t.Error(err)
				}
				if _, err := f.Commit(nil, f.gone, 0, 0); err != nil {
					t.Error(err)
				}
				reads(t, f.FS, f.gone, "GONE")
				if _, _, _, err := f.WriteAt(nil, f.gone, []byte("gone"), 0, blockstore.FileSync); err != nil {
					t.Error(err)
				}
				for f.objects.evictOldest() {
				}
			}
			reads(t, f.FS, f.h, "there")
			f.Unpin(f.gone)
			f.Unpin(f.h)
			f.pins.wg.Wait()
			for f.objects.evictOldest() {
			}
			for end := time.Now().Add(20 * time.Second); descriptorsOpen(t) > before; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d descriptors are open, %d before", descriptorsOpen(t), before)
				}
			}
			if n := f.pins.files.pinned.Load(); n != 0 {
				t.Errorf("%d files are counted", n)
			}
			_, err := f.GetAttr(nil, f.gone)
			wantErr(t, err, blockstore.ErrStale)
			reads(t, f.FS, f.h, "there")
		})
	}
}

// TestPinsBounded: there is a bound, and Close ends all pins.
func TestPinsBounded(t *testing.T) {
	files := NewFiles(0)
	f, s := openTemp(t, Options{Files: files})
	r, err := f.Root()
	must(t, err)
	var last blockstore.Handle
	n := 0
	for ; ; n++ {
		name := string(rune('a' + n))
		must(t, os.WriteFile(filepath.Join(s.dir, name), nil, 0o666))
		h, _, err := f.Lookup(nil, r, name)
		must(t, err)
		if err := f.Pin(h); err != nil {
			wantErr(t, err, blockstore.ErrJukebox)
			break
		}
		last = h
	}
	if n != files.pins {
		t.Errorf("%d files are pinned of %d", n, files.pins)
	}
	must(t, f.Pin(last)) // no more descriptors
	g, err := Open(s.dir, Options{StateDir: t.TempDir(), Files: files})
	must(t, err)
	rg, err := g.Root()
	must(t, err)
	h, _, err := g.Lookup(nil, rg, "a")
	must(t, err)
	wantErr(t, g.Pin(h), blockstore.ErrJukebox)
	f.pins.close()
	must(t, g.Pin(h))
	must(t, g.Close())
	if n := files.pinned.Load(); n != 0 {
		t.Errorf("%d files are counted", n)
	}
}

// TestHandoverPins: a file without a name goes to the next process, until that unpins it.
func TestHandoverPins(t *testing.T) {
	for name, opts := range map[string]Options{"handle": {}, "table": {Handles: Server}} {
		t.Run(name, func(t *testing.T) {
			old := newPinned(t, opts)
			must(t, old.Pin(old.gone))
			data, files, err := old.Handover()
			must(t, err)
			must(t, old.Release())
			next, err := Open(old.s.dir, old.s.opts)
			must(t, err)
			must(t, next.Restore(data, files))
			for _, x := range files {
				must(t, x.Close())
			}
			reads(t, next, old.gone, "gone")
			must(t, os.Remove(filepath.Join(old.s.dir, "there")))
			reads(t, next, old.h, "there")
			next.Unpin(old.gone)
			reads(t, next, old.gone, "gone")
			for _, h := range []blockstore.Handle{old.gone, old.h} {
				next.Unpin(h)
				next.pins.wg.Wait()
				_, err := next.GetAttr(nil, h)
				wantErr(t, err, blockstore.ErrStale)
			}
			must(t, next.Close())
			must(t, old.Resume())
		})
	}
}

// TestHandoverBadPins refuses what cannot be.
func TestHandoverBadPins(t *testing.T) {
	f := newPinned(t, Options{})
	file, err := os.Open(filepath.Join(f.s.dir, "there"))
	must(t, err)
	defer file.Close()
	other := bytes.Clone(f.gone.Bytes())
	other[1] ^= 1
	must(t, f.Release())
	defer func() { must(t, f.Resume()) }()
	fresh, err := Open(f.s.dir, f.s.opts)
	must(t, err)
	defer fresh.Close()
	for name, x := range map[string]handedPin{
		"no handle":      {Users: 1},
		"no user":        {Handle: f.h.Bytes()},
		"another file":   {Handle: f.gone.Bytes(), File: 1, Users: 1},
		"another export": {Handle: other, File: 1, Users: 1},
		"no such place":  {Handle: f.gone.Bytes(), File: 2, Users: 1},
	} {
		if err := fresh.restorePin(&x, []*os.File{file}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
