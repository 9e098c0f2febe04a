package fusefs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
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

// BenchmarkConnections reads eight files at once in pieces of 1 MiB, through a mount with one
// connection and with several.
func BenchmarkConnections(b *testing.B) {
	const files, size = 8, 32 << 20
	for _, transport := range []string{"rdma", "tcp"} {
		for _, links := range []int{1, 4} {
			s := newHost(b)
			s.links = links
			m := s.mount(transport, client.Version42)
			for i := range files {
				must(b, os.WriteFile(fmt.Sprintf("%s/%d", s.dir, i), noise(byte(i), size), 0o644))
			}
			one := func(i int) error {
				f, err := os.Open(m.path(fmt.Sprint(i)))
				if err != nil {
					return err
				}
				buf := make([]byte, maxTransfer)
				err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
				for off := int64(0); off < size && err == nil; off += maxTransfer {
					_, err = f.ReadAt(buf, off)
				}
				return errors.Join(err, f.Close())
			}
			b.Run(fmt.Sprintf("READ/%s/nconnect=%d", transport, links), func(b *testing.B) {
				b.SetBytes(files * size)
				for b.Loop() {
					var wg sync.WaitGroup
					for i := range files {
						wg.Go(func() {
							if err := one(i); err != nil {
								b.Error(err)
							}
						})
					}
					wg.Wait()
				}
			})
			if n := m.c.Stats().Links; n != links {
				b.Errorf("%d connections", n)
			}
		}
	}
}

// BenchmarkSmall measures what does not depend on bandwidth: random reads of 4 KiB past the
// kernel's cache, one at a time and 16 at once, and the attributes of files that the kernel does
// not know.
func BenchmarkSmall(b *testing.B) {
	const size = 64 << 20
	for _, transport := range []string{"rdma", "tcp"} {
		s := newHost(b)
		m := s.mount(transport, client.Version42, func(c *Config) { c.Times = CacheTimes{} })
		must(b, os.WriteFile(s.dir+"/f", noise(1, size), 0o644))
		f, err := os.OpenFile(m.path("f"), os.O_RDONLY|unix.O_DIRECT, 0)
		must(b, err)
		read := func(b *testing.B, at int64) {
			buf := make([]byte, 4096)
			if _, err := f.ReadAt(buf, at*7919%(size/4096)*4096); err != nil {
				b.Error(err)
			}
		}
		b.Run("random-read/"+transport+"/1", func(b *testing.B) {
			for i := int64(0); b.Loop(); i++ {
				read(b, i)
			}
		})
		b.Run("random-read/"+transport+"/16", func(b *testing.B) {
			var at atomic.Int64
			b.SetParallelism(16)
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					read(b, at.Add(1))
				}
			})
		})
		b.Run("stat/"+transport, func(b *testing.B) {
			for b.Loop() {
				_, err := os.Stat(m.path("f"))
				must(b, err)
			}
		})
		must(b, f.Close())
	}
}

// zeros is a file without an end.
type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) { return len(p), nil }
