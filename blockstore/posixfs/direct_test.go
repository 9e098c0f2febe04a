package posixfs

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// pages is memory that begins where a page does.
func pages(t *testing.T, n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func TestSpan(t *testing.T) {
	const page, long = 4096, 1 << 20
	if unix.Getpagesize() != page {
		t.Skip("other pages")
	}
	mem := pages(t, 2*long)
	for _, c := range []struct {
		at, n           int
		off             uint64
		align, memAlign uint32
		from, to        int
	}{
		{0, long, 0, 512, 4, 0, long},
		{0, long, 3 * page, 4096, 4096, 0, long},
		{0, long, 100, 512, 512, 0, 0},               // the memory is not where the file is
		{100, long, 100, 512, 512, 3996, long - 100}, // it is
		{4, long, 0, 512, 4, 0, long},
		{0, long, 4, 512, 4, 4092, long - 4},
		{0, long + 5, 0, 512, 512, 0, long},
		{0, directMin, 0, 512, 512, 0, directMin},
		{0, directMin - 1, 0, 512, 512, 0, 0},
		{0, directMin, 1, 1, 1, 0, 0},
		{0, long, 0, 64 << 10, 512, 0, long},
		{0, long, page, 64 << 10, 512, 60 << 10, long - page},
		{0, long, 0, 0, 0, 0, 0},
		{0, 0, 0, 512, 512, 0, 0},
		{0, long, 1<<63 - 1, 512, 1, 1, long - page + 1},
	} {
		if from, to := span(mem[c.at:c.at+c.n], c.off, c.align, c.memAlign); from != c.from || to != c.to {
			t.Errorf("%+v: from %d to %d", c, from, to)
		}
	}
}

// TestDirect holds files whose long transfers go past the page cache, in all alignments and
// mixed with others that do not, against what they must hold.
func TestDirect(t *testing.T) {
	for _, where := range []string{"disk", "memory"} {
		t.Run(where, func(t *testing.T) {
			var f *FS
			var dir string
			if where == "disk" {
				var s *site
				f, s = openTemp(t, Options{Async: true})
				dir = s.dir
			} else {
				f, dir = openMemory(t)
			}
			f.SetDirect(true)
			const size = 4 << 20
			r := rand.New(rand.NewPCG(1, 2))
			h := create(t, f, "f", 0o644)
			name := filepath.Join(dir, "f")
			var want []byte
			mem := pages(t, 2<<20)
			for i := range 200 {
				off, n, at := r.IntN(size), 1+r.IntN(1<<20), 0
				switch r.IntN(4) {
				case 0: // aligned as a client has it
					off, n = off&^0xffff, max(n&^0xffff, directMin)
				case 1: // in the file as in memory
					at = off & 0xfff
				case 2:
					at = r.IntN(5000)
				}
				p := mem[at : at+n]
				if r.IntN(2) == 0 {
					for j := range p {
						p[j] = byte(r.Uint32())
					}
					k, _, w, err := f.WriteAt(nil, h, p, uint64(off), blockstore.Unstable)
					if err != nil || k != n || !w.Post.Known {
						t.Fatalf("write %d: %d of %d, %v", i, k, n, err)
					}
					if len(want) < off+n {
						want = append(want, make([]byte, off+n-len(want))...)
					}
					copy(want[off:], p)
					if w.Post.Size != uint64(len(want)) {
						t.Fatalf("write %d: %d bytes long, want %d", i, w.Post.Size, len(want))
					}
				} else {
					clear(p)
					k, eof, err := f.ReadAt(nil, h, p, uint64(off), false)
					left := max(len(want)-off, 0)
					if err != nil || k != min(n, left) || eof != (n >= left) || k > 0 && !bytes.Equal(p[:k], want[off:off+k]) {
						t.Fatalf("read %d at %d: %d of %d, end %v, %v", i, off, k, n, eof, err)
					}
				}
				if i%20 == 0 { // by the page cache
					if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, want) {
						t.Fatalf("after %d the host sees something else, %v", i, err)
					}
				}
			}
			if _, err := f.Commit(nil, h, 0, 0); err != nil {
				t.Error(err)
			}
			c := f.Counters()
			t.Logf("%d reads, %d writes", c.DirectReads, c.DirectWrites)
			if where == "memory" && c.DirectReads+c.DirectWrites != 0 {
				t.Errorf("there is nothing that could be gone past: %+v", c)
			}
		})
	}
}

// TestDirectOnDisk: aligned transfers do go past the page cache, where the file system can.
func TestDirectOnDisk(t *testing.T) {
	f, s := openTemp(t, Options{Async: true})
	probe := filepath.Join(s.dir, "probe")
	if fd, err := unix.Open(probe, unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT, 0o600); err != nil {
		t.Skip("no O_DIRECT here:", err)
	} else {
		unix.Close(fd)
	}
	h := create(t, f, "f", 0o644)
	p := pages(t, 1<<20)
	transfer := func() {
		t.Helper()
		if n, _, _, err := f.WriteAt(nil, h, p, 0, blockstore.Unstable); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
		if n, eof, err := f.ReadAt(nil, h, p, 0, false); n != len(p) || !eof || err != nil {
			t.Fatal(n, eof, err)
		}
	}
	transfer()
	if c := f.Counters(); c.DirectReads+c.DirectWrites != 0 {
		t.Errorf("without the option: %+v", c)
	}
	f.SetDirect(true)
	transfer()
	if c := f.Counters(); c.DirectReads != 1 || c.DirectWrites != 1 {
		t.Errorf("%d reads and %d writes, want one each", c.DirectReads, c.DirectWrites)
	}
	if _, _, err := f.ReadAt(nil, h, p, 0, true); err != blockstore.ErrWouldBlock {
		t.Errorf("a read that must not wait: %v", err)
	}
	if _, _, _, err := f.WriteNowait(nil, h, p, 0, blockstore.Unstable); err != blockstore.ErrWouldBlock {
		t.Errorf("a write that must not wait: %v", err)
	}
	f.SetDirect(false)
	transfer()
	if c := f.Counters(); c.DirectReads != 1 || c.DirectWrites != 1 {
		t.Errorf("switched off again: %+v", c)
	}
}
