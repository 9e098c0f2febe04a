package fusefs

import (
	"context"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

// benchFile is the size in bytes of the file that benchmarks read and write.
const benchFile = 256 << 20

// BenchmarkSequential compares a mount with the Go client without FUSE, for transfers of 1 MiB.
func BenchmarkSequential(b *testing.B) {
	for _, transport := range []string{"rdma", "tcp"} {
		s := newHost(b)
		m := s.mount(transport, client.Version42)
		must(b, os.WriteFile(s.dir+"/f", noise(1, benchFile), 0o644))
		ctx := context.Background()
		n, err := m.c.Lookup(ctx, m.nodes.root.handle, "f")
		must(b, err)
		b.Run("READ/"+transport+"/client", func(b *testing.B) {
			b.SetBytes(benchFile)
			for b.Loop() {
				_, err := m.c.Stream(ctx, n.Handle, io.Discard, 0)
				must(b, err)
			}
		})
		buf := make([]byte, maxTransfer)
		b.Run("READ/"+transport+"/mount", func(b *testing.B) {
			b.SetBytes(benchFile)
			for b.Loop() {
				f, err := os.Open(m.path("f"))
				must(b, err)
				must(b, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
				for off := int64(0); off < benchFile; off += maxTransfer {
					_, err := f.ReadAt(buf, off)
					must(b, err)
				}
				must(b, f.Close())
			}
		})
		b.Run("WRITE/"+transport+"/client", func(b *testing.B) {
			b.SetBytes(benchFile)
			for b.Loop() {
				err := m.c.Upload(ctx, n.Handle, zeros{}, 0, benchFile, nil)
				must(b, err)
			}
		})
		b.Run("WRITE/"+transport+"/mount", func(b *testing.B) {
			b.SetBytes(benchFile)
			for b.Loop() {
				f, err := os.OpenFile(m.path("f"), os.O_WRONLY, 0)
				must(b, err)
				for off := int64(0); off < benchFile; off += maxTransfer {
					_, err := f.WriteAt(buf, off)
					must(b, err)
				}
				must(b, f.Close())
			}
		})
	}
}

// zeros is a file without an end.
type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) { return len(p), nil }
