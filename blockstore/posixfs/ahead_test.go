package posixfs

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// TestStreams feeds orders of reads to the detector and looks at what it wants ahead of them.
func TestStreams(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	r := rand.New(rand.NewPCG(1, 2))
	// order is the numbers below n, each at most so far from its place.
	order := func(n, jitter int) []uint64 {
		key := make([]int, n)
		list := make([]uint64, n)
		for i := range n {
			key[i], list[i] = i+r.IntN(jitter+1), uint64(i)
		}
		slices.SortStableFunc(list, func(a, b uint64) int { return key[a] - key[b] })
		return list
	}
	each := func(list []uint64, by func(uint64) uint64) (offs []uint64) {
		for _, i := range list {
			offs = append(offs, by(i))
		}
		return offs
	}
	for name, x := range map[string]struct {
		offs []uint64
		n    uint64
		size uint64
		warm bool
		most float64 // share of the file that is asked for
		want float64
	}{
		"in order": {each(order(256, 0), func(i uint64) uint64 { return i * mib }), mib, 256 * mib, false, 1, 0.98},
		"in short reads": {
			each(order(2048, 0), func(i uint64) uint64 { return i * 64 * kib }), 64 * kib, 128 * mib, false,
			1, 0.98,
		},
		"16 under way": {each(order(256, 15), func(i uint64) uint64 { return i * mib }), mib, 256 * mib, false, 1, 0.8},
		"two streams": {
			each(order(256, 3), func(i uint64) uint64 { return (i/2 + i%2*512) * mib }), mib, 1024 * mib,
			false, 0.3, 0.2,
		},
		"from the middle": {
			each(order(64, 3), func(i uint64) uint64 { return (i + 100) * mib }), mib, 200 * mib, false, 0.4,
			0.3,
		},
		"all in memory":    {each(order(256, 0), func(i uint64) uint64 { return i * mib }), mib, 256 * mib, true, 0, 0},
		"each other block": {each(order(256, 3), func(i uint64) uint64 { return i * 2 * mib }), mib, 512 * mib, false, 0, 0},
		"random": {
			each(order(4096, 1<<20), func(i uint64) uint64 { return i * mib }), 64 * kib, 4096 * mib, false,
			0, 0,
		},
		"one":            {[]uint64{5 * mib}, mib, 256 * mib, false, 0, 0},
		"the same twice": {[]uint64{5 * mib, 5 * mib, 5 * mib}, mib, 256 * mib, false, 0, 0},
		"the end":        {[]uint64{0, mib, 2 * mib}, mib, 3 * mib, false, 0.34, 0.33},
	} {
		t.Run(name, func(t *testing.T) {
			var a ahead
			var sum, last uint64
			for _, off := range x.offs {
				from, to := a.note(off, x.n, x.size, !x.warm, true)
				if from == to {
					continue
				}
				if from > to || to > x.size || to-from > aheadDepth || from > off+aheadFlight*x.n+aheadDepth {
					t.Fatalf("at %d: %d to %d", off, from, to)
				}
				sum, last = sum+to-from, to
				if f, g := a.note(off, x.n, x.size, true, true); f != g {
					t.Errorf("at %d: asked for %d to %d while %d to %d is being read", off, f, g, from, to)
				}
				a.done()
			}
			if share := float64(sum) / float64(x.size); share > x.most || share < x.want {
				t.Errorf("%.2f of the file asked for, up to %d, want %.2f to %.2f", share, last, x.want, x.most)
			}
		})
	}
}

// coldFile makes a file whose data is on the disk and not in memory, and returns a mapping of it.
// It skips the test on a file system that has no disk, such as tmpfs.
func coldFile(t *testing.T, f *FS, s *site, size int) (blockstore.Handle, []byte) {
	t.Helper()
	h := dataFile(t, f, size)
	_, err := f.Commit(nil, h, 0, 0)
	must(t, err)
	file, err := os.Open(filepath.Join(s.dir, "data"))
	must(t, err)
	defer file.Close()
	must(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
	mem, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	if resident(mem, mem[:1]) {
		t.Skip("the file system keeps it in memory")
	}
	return h, mem
}

// TestReadAhead reads a file that is not in memory.
func TestReadAhead(t *testing.T) {
	f, s := openTemp(t, Options{})
	const size = 16 << 20
	h, _ := coldFile(t, f, s, size)
	p := make([]byte, 1<<20)
	read := func(off uint64) {
		t.Helper()
		if n, eof, err := f.ReadAt(nil, h, p, off, false); n != len(p) || err != nil || eof != (off+uint64(n) == size) {
			t.Fatal(n, eof, err)
		}
	}
	read(0)
	if o := f.objects.get(&h); o.ahead.Load() == nil {
		t.Skip("the disk is there at once, or nobody tells that it is waited for")
	} else {
		f.release(o)
	}
	if f.Counters().ReadAhead != 0 {
		t.Error("one read is no stream")
	}
	read(1 << 20)
	for f.aheads.Load() != 0 {
		runtime.Gosched()
	}
	if got := f.Counters().ReadAhead; got != 4<<20 {
		t.Errorf("%d bytes asked for, want twice what was read", got)
	}
	// What was asked for is there, or on its way: reads that do not wait count as well.
	for off := uint64(2 << 20); off < size; off += 1 << 20 {
		if n, _, err := f.ReadAt(nil, h, p, off, true); err != nil || n < len(p) {
			read(off)
		}
	}
	for f.aheads.Load() != 0 {
		runtime.Gosched()
	}
	if got := f.Counters().ReadAhead; got < 4<<20 || got > size-2<<20 {
		t.Errorf("%d bytes asked for of a file of %d", got, size)
	}
	if _, _, err := f.ReadAt(nil, h, p[:0], 0, false); err != nil {
		t.Error(err)
	}
	if _, eof, err := f.ReadAt(nil, h, p, size, false); !eof || err != nil {
		t.Error(eof, err)
	}
}
