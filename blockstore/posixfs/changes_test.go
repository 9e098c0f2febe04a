package posixfs

import (
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// TestChangesModel: with a clock that moves by ticks, what is reported of an inode moves with
// every change, stays where it is without one, and never goes back, over restarts of the store
// and when much is forgotten.
func TestChangesModel(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		const tick = time.Millisecond
		now := time.Unix(1_700_000_000, 0)
		open := func() *changes {
			c := new(changes)
			c.init(true)
			c.max = 3
			c.seal(now.Add(time.Duration(r.Int64N(int64(tick)))).UnixNano()) // the clock of stamps is behind
			now = now.Add(tick)
			return c
		}
		c := open()
		var inodes [20]unix.Stat_t
		var last [20]time.Time
		for i := range inodes {
			inodes[i].Ino, inodes[i].Ctim = uint64(i), unix.NsecToTimespec(now.UnixNano())
			last[i] = c.attrOf(&inodes[i]).Ctime
		}
		for range 3000 {
			i := r.IntN(len(inodes))
			st := &inodes[i]
			switch r.IntN(20) {
			case 0:
				now = now.Add(tick)
			case 1:
				c = open()
			case 2, 3, 4, 5, 6, 7, 8:
				was := c.attrOf(st).Ctime
				st.Ctim = unix.NsecToTimespec(now.UnixNano())
				got := c.changed(st, was).Ctime
				if !got.After(last[i]) || !got.Equal(c.attrOf(st).Ctime) {
					t.Fatalf("seed %d: inode %d changed from %v to %v, then %v", seed, i, last[i], got, c.attrOf(st).Ctime)
				}
				last[i] = got
			default:
				got := c.attrOf(st).Ctime
				if got.Before(last[i]) {
					t.Fatalf("seed %d: inode %d went back from %v to %v", seed, i, last[i], got)
				}
				last[i] = got
			}
		}
	}
}

// TestChangesWithinTick: on a filesystem whose times move by ticks every change of an object
// moves its reported ctime, by whatever name it was made, and a listing says the same as
// GETATTR.
func TestChangesWithinTick(t *testing.T) {
	dir := loopDisk(t, "ext2", filepath.Join(t.TempDir(), "image"), 16<<20, "")
	f, err := Open(dir, Options{Async: true})
	must(t, err)
	defer f.Close()
	root, err := f.Root()
	must(t, err)
	mode := uint32(0o644)
	h, _, _, err := f.Create(nil, root, "file", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	must(t, err)
	sub, _, _, err := f.Mkdir(nil, root, "sub", &blockstore.SetAttr{Mode: &mode})
	must(t, err)
	ctime := func(h blockstore.Handle) time.Time {
		t.Helper()
		a, err := f.GetAttr(nil, h)
		must(t, err)
		return a.Ctime
	}
	steps := []struct {
		name    string
		do      func(i int) error
		changes []blockstore.Handle
	}{
		{"write", func(i int) error {
			_, _, _, err := f.WriteAt(nil, h, []byte("data"), 0, blockstore.Unstable)
			return err
		}, []blockstore.Handle{h}},
		{"mode", func(i int) error {
			mode := uint32(0o600 + i&7)
			_, err := f.SetAttr(nil, h, &blockstore.SetAttr{Mode: &mode}, nil)
			return err
		}, []blockstore.Handle{h}},
		{"link", func(int) error { _, _, err := f.Link(nil, h, sub, "other"); return err }, []blockstore.Handle{h, sub}},
		{
			"rename", func(int) error { _, _, err := f.Rename(nil, sub, "other", root, "third"); return err },
			[]blockstore.Handle{h, sub, root},
		},
		{"remove", func(int) error { _, err := f.Remove(nil, root, "third"); return err }, []blockstore.Handle{h, root}},
		{"create", func(int) error {
			_, _, _, err := f.Create(nil, sub, "new", blockstore.Guarded, nil, [8]byte{})
			return err
		}, []blockstore.Handle{sub}},
		{
			"remove the last name", func(int) error { _, err := f.Remove(nil, sub, "new"); return err },
			[]blockstore.Handle{sub},
		},
		{"allocate", func(int) error {
			err := f.Allocate(nil, h, 0, 4096)
			if err == blockstore.ErrNotSupp {
				_, _, _, err = f.WriteAt(nil, h, []byte("data"), 0, blockstore.Unstable)
			}
			return err
		}, []blockstore.Handle{h}},
	}
	within := 0
	for i := range 50 {
		for _, s := range steps {
			var was []time.Time
			for _, h := range s.changes {
				was = append(was, ctime(h))
			}
			must(t, s.do(i))
			for j, h := range s.changes {
				now := ctime(h)
				if !now.After(was[j]) {
					t.Errorf("%s: object %d has ctime %v, before it was %v", s.name, j, now, was[j])
				}
				if now.Sub(was[j]) == 1 {
					within++
				}
			}
			if _, err := f.Commit(nil, h, 0, 0); err != nil {
				t.Error(err)
			}
		}
		before := ctime(h)
		_, err := f.SetAttr(nil, h, &blockstore.SetAttr{}, nil)
		must(t, err)
		_, err = f.Commit(nil, h, 0, 0)
		must(t, err)
		if now := ctime(h); !now.Equal(before) {
			t.Errorf("what changes nothing changed %v to %v", before, now)
		}
		_, _, err = f.ReadDir(nil, root, 0, [8]byte{}, true, func(e *blockstore.DirEntry) bool {
			if e.Name == "file" && !e.Attr.Ctime.Equal(before) {
				t.Errorf("listed with %v, GETATTR says %v", e.Attr.Ctime, before)
			}
			return true
		})
		must(t, err)
	}
	t.Logf("%d changes within a tick", within)
	if within == 0 {
		t.Skip("this kernel's times move with every change here")
	}
}

// TestChangesOverRestart: on a filesystem whose times move by ticks ctime does not go back when
// the store is opened again in the tick of many changes.
func TestChangesOverRestart(t *testing.T) {
	dir, state := loopDisk(t, "ext2", filepath.Join(t.TempDir(), "image"), 16<<20, ""), t.TempDir()
	var h blockstore.Handle
	var last time.Time
	mode := uint32(0o644)
	for i := range 20 {
		f, err := Open(dir, Options{Async: true, StateDir: state})
		must(t, err)
		root, err := f.Root()
		must(t, err)
		if i == 0 {
			h, _, _, err = f.Create(nil, root, "file", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
			must(t, err)
		}
		a, err := f.GetAttr(nil, h)
		must(t, err)
		if a.Ctime.Before(last) {
			t.Errorf("restart %d: ctime went from %v back to %v", i, last, a.Ctime)
		}
		for range 20 {
			_, _, w, err := f.WriteAt(nil, h, []byte("data"), 0, blockstore.Unstable)
			must(t, err)
			if !w.Post.Ctime.After(last) {
				t.Errorf("restart %d: a change has ctime %v after %v", i, w.Post.Ctime, last)
			}
			last = w.Post.Ctime
		}
		must(t, f.Close())
	}
}
