package posixfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
)

func dataFile(t testing.TB, f *FS, size int) blockstore.Handle {
	r, _ := f.Root()
	mode := uint32(0o644)
	h, _, _, err := f.Create(nil, r, "data", blockstore.Unchecked, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	must(t, err)
	_, _, _, err = f.WriteAt(nil, h, bytes.Repeat([]byte("x"), size), 0, blockstore.Unstable)
	must(t, err)
	return h
}

func TestReadAllocs(t *testing.T) {
	f, _ := openTemp(t, Options{Async: true})
	h := dataFile(t, f, 1<<20)
	time.Sleep(2 * settled)
	p := make([]byte, 4096)
	for name, c := range map[string]*blockstore.Cred{
		"server": nil, "root": {}, "owner": {UID: uint32(os.Geteuid())},
		"other": {UID: 12, GID: 13, Groups: []uint32{14, 15}},
	} {
		for _, nowait := range []bool{false, true} {
			read := func() {
				n, _, err := f.ReadAt(c, h, p, 8192, nowait)
				if (err != nil && !errors.Is(err, blockstore.ErrWouldBlock)) || (err == nil && n != len(p)) {
					t.Fatalf("%s: %d, %v", name, n, err)
				}
			}
			read()
			if n := testing.AllocsPerRun(200, read); n != 0 {
				t.Errorf("%s, nowait %v: %v allocations per read", name, nowait, n)
			}
		}
	}
}

// TestNowait checks that what was just written is served without waiting,
// where the filesystem knows how.
func TestNowait(t *testing.T) {
	f, _ := openTemp(t, Options{Async: true})
	h := dataFile(t, f, 100000)
	p := make([]byte, 100000)
	n, eof, err := f.ReadAt(nil, h, p, 0, true)
	if errors.Is(err, blockstore.ErrWouldBlock) {
		if !f.noNowait.Load() {
			t.Error("cached data would block")
		}
		return
	}
	if err != nil || n != len(p) || !eof {
		t.Errorf("%d %v %v", n, eof, err)
	}
}

func BenchmarkReadAt(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		for name, c := range map[string]*blockstore.Cred{"server": nil, "other": {UID: 12, GID: 13}} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, name), func(b *testing.B) {
				f, _ := openTemp(b, Options{Async: true})
				h := dataFile(b, f, 4<<20)
				time.Sleep(2 * settled)
				p := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if _, _, err := f.ReadAt(c, h, p, uint64(i*size)%(4<<20), true); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkWriteAt(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			f, _ := openTemp(b, Options{Async: true})
			h := dataFile(b, f, 4<<20)
			p := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, _, _, err := f.WriteAt(nil, h, p, uint64(i*size)%(4<<20), blockstore.Unstable); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	for name, c := range map[string]*blockstore.Cred{"server": nil, "other": {UID: 12, GID: 13}} {
		for kind, opts := range map[string]Options{"handle": {}, "table": {Handles: Server}} {
			b.Run(kind+"/"+name, func(b *testing.B) {
				f, _ := openTemp(b, opts)
				dataFile(b, f, 1)
				r, _ := f.Root()
				b.ReportAllocs()
				for b.Loop() {
					if _, _, err := f.Lookup(c, r, "data"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkReadDirPlus lists a directory of 100,000 files, 1000 a call.
func BenchmarkReadDirPlus(b *testing.B) {
	for _, plus := range []bool{false, true} {
		b.Run(fmt.Sprintf("plus=%v", plus), func(b *testing.B) {
			const files = 100000
			f, s := openTemp(b, Options{Async: true})
			for i := range files {
				must(b, os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("file-%d", i)), nil, 0o644))
			}
			r, _ := f.Root()
			for b.Loop() {
				n := 0
				var cookie uint64
				for eof := false; !eof; {
					var err error
					k := 0
					_, eof, err = f.ReadDir(nil, r, cookie, [8]byte{}, plus, func(e *blockstore.DirEntry) bool {
						if k == 1000 {
							return false
						}
						k++
						n++
						cookie = e.Cookie
						return true
					})
					must(b, err)
				}
				if n != files+2 {
					b.Fatalf("%d entries", n)
				}
			}
		})
	}
}

// BenchmarkIdentity is what it costs to act as a client's user, and to write within that user's
// limits.
func BenchmarkIdentity(b *testing.B) {
	if !canSwitch() {
		b.Skip("needs root")
	}
	f, _ := openTemp(b, Options{Async: true})
	h := dataFile(b, f, 1<<20)
	c := &blockstore.Cred{UID: 1000, GID: 1000, Groups: []uint32{2000}}
	must(b, os.Chmod(filepath.Join(f.dir, "data"), 0o666))
	time.Sleep(2 * settled)
	b.Run("switch", func(b *testing.B) {
		for b.Loop() {
			must(b, f.who.as(c, func() error { return nil }))
		}
	})
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		p := make([]byte, size)
		b.Run(fmt.Sprintf("write %d KiB", size>>10), func(b *testing.B) {
			for b.Loop() {
				_, _, _, err := f.WriteAt(c, h, p, 0, blockstore.Unstable)
				must(b, err)
			}
		})
	}
}
