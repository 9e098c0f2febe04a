package posixfs

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkMap compares what a READ costs until its data has been read once, as for a
// checksum: copied, lent, and lent from a window that was not mapped before.
func BenchmarkMap(b *testing.B) {
	const size = 64 << 20
	f, s := openTemp(b, Options{MapAfter: 1})
	f.mappable, f.noatime = true, true
	if err := os.WriteFile(filepath.Join(s.dir, "file"), pattern(1, 0, size), 0o644); err != nil {
		b.Fatal(err)
	}
	h, _, err := f.Lookup(nil, f.root.h, "file")
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{mapMin, 128 << 10, 256 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("copied/%dk", n>>10), func(b *testing.B) {
			p := make([]byte, 16*n) // as with as many calls at once
			b.SetBytes(int64(n))
			for i := 0; b.Loop(); i++ {
				p := p[i%16*n:][:n]
				if _, _, err := f.ReadAt(nil, h, p, uint64(i*n%size), true); err != nil {
					b.Fatal(err)
				}
				crc32.ChecksumIEEE(p)
			}
		})
		for _, first := range []bool{false, true} {
			name := "lent"
			if first {
				name = "first"
			}
			b.Run(fmt.Sprintf("%s/%dk", name, n>>10), func(b *testing.B) {
				b.SetBytes(int64(n))
				o := f.objects.byH[h]
				for i := 0; b.Loop(); i++ {
					off := uint64(i * n % size)
					w, _ := f.Map(nil, h, off, n)
					if w == nil {
						b.Fatal("not mapped")
					}
					crc32.ChecksumIEEE(w.Bytes())
					w.Release()
					if first && (off+uint64(n))%windowSize == 0 {
						f.windows.drop(o)
					}
				}
			})
		}
	}
}
