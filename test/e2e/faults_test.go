package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
)

// The table of docs/faults.md: each row is a test here, or a case of test/guest.

// TestFaultTable: no row without a test, and no test without a row.
func TestFaultTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (TestFault\w+)\(t `).FindAllSubmatch(b, -1) {
			if name := string(m[1]); name != "TestFaultTable" {
				have = append(have, name)
			}
		}
	}
	var rows []string
	for _, m := range regexp.MustCompile("`(TestFault\\w+)`").FindAllSubmatch(page, -1) {
		rows = append(rows, string(m[1]))
	}
	slices.Sort(have)
	slices.Sort(rows)
	if !slices.Equal(have, slices.Compact(rows)) {
		t.Errorf("tests %q, rows %q", have, rows)
	}
	guest, err := os.ReadFile("../guest/table.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("guest case `(\\w+)`").FindAllSubmatch(page, -1) {
		if !bytes.Contains(guest, fmt.Appendf(nil, "%q", m[1])) {
			t.Errorf("there is no guest case %s", m[1])
		}
	}
}

// each runs a test over both transports.
func each(t *testing.T, test func(t *testing.T, transport string)) {
	for _, transport := range []string{"rdma", "tcp"} {
		t.Run(transport, func(t *testing.T) { test(t, transport) })
	}
}

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// file makes a file of a mount's first export.
func file(t *testing.T, c *client.Client, name string) client.Handle {
	t.Helper()
	root, err := c.Resolve(patient(t), "/data")
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Create(patient(t), root.Handle, name, blockstore.Unchecked, &blockstore.SetAttr{}, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	return f.Handle
}

// logged waits until the daemon has said it.
func (d *daemon) logged(want string) {
	d.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(d.log.String(),
		want); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("not logged: %q", want)
		}
	}
}

// TestFaultKill: what was acknowledged as stable is there after kill -9, nobody gets an
// error, and what was not committed is noticed by its verifier.
func TestFaultKill(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		d := newDaemon(t)
		c := d.client(transport)
		h, other := file(t, c, "f"), file(t, c, "other")
		const block = 64 << 10
		var acked atomic.Int64
		stop, done := make(chan struct{}), make(chan error, 1)
		go func() {
			for i := int64(0); ; i++ {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				w, err := c.Write(patient(t), h, bytes.Repeat([]byte{byte(i)}, block), uint64(i)*block, blockstore.FileSync)
				if err == nil && w.Committed != blockstore.FileSync {
					err = fmt.Errorf("committed %v", w.Committed)
				}
				if err != nil {
					done <- err
					return
				}
				acked.Store(i + 1)
			}
		}()
		var verifier [8]byte
		for range 3 {
			for from := acked.Load(); acked.Load() < from+8; {
				time.Sleep(time.Millisecond)
			}
			w, err := c.Write(patient(t), other, []byte("x"), 0, blockstore.Unstable)
			if err != nil {
				t.Fatal(err)
			}
			if w.Verifier == verifier {
				t.Error("the write verifier has outlived a kill")
			}
			verifier = w.Verifier
			safe := acked.Load()
			d.stop(syscall.SIGKILL)
			check(t, filepath.Join(d.export, "f"), int(safe), block)
			d.start()
		}
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
		check(t, filepath.Join(d.export, "f"), int(acked.Load()), block)
	})
}

func check(t *testing.T, path string, blocks, size int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, size)
	for i := range blocks {
		if _, err := f.ReadAt(b, int64(i*size)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, bytes.Repeat([]byte{byte(i)}, size)) {
			t.Errorf("block %d of %d is lost or torn", i, blocks)
		}
	}
}

// onTmpfs is a small file system of its own, which the daemon exports.
func onTmpfs(t *testing.T, size string) func(*daemon) {
	return func(d *daemon) {
		if err := unix.Mount("rstored-test", d.export, "tmpfs", 0, "size="+size+",mode=755"); err != nil {
			t.Skipf("a tmpfs of its own: %v", err)
		}
		t.Cleanup(func() { unmount(t, d.export) })
	}
}

func unmount(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := unix.Unmount(dir, 0)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("unmounting %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
			return
		}
	}
}

// TestFaultDiskFull: ENOSPC is told to who writes, nobody else notices, and it is over
// when there is room again.
func TestFaultDiskFull(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		d := newDaemonOn(t, onTmpfs(t, "8m"))
		c := d.client(transport)
		h, small := file(t, c, "f"), file(t, c, "small")
		if _, err := c.Write(patient(t), small, []byte("kept"), 0, blockstore.FileSync); err != nil {
			t.Fatal(err)
		}
		block := make([]byte, 1<<20)
		n := uint64(0)
		for ; ; n++ {
			if n > 8 {
				t.Fatal("more was stored than fits")
			}
			w, err := c.Write(patient(t), h, block, n<<20, blockstore.Unstable)
			if errors.Is(err, blockstore.ErrNoSpace) {
				break
			}
			if err != nil || w.N == 0 {
				t.Fatal(w.N, err)
			}
			if w.N < len(block) { // what fitted; the rest is refused
				if _, err := c.Write(patient(t), h, block[w.N:], n<<20+uint64(w.N), blockstore.Unstable); !errors.Is(err,
					blockstore.ErrNoSpace) {
					t.Errorf("the rest of a short WRITE: %v", err)
				}
				break
			}
		}
		root, err := c.Resolve(patient(t), "/data")
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, _, err := c.Read(patient(t), small, got, 0); err != nil || string(got) != "kept" {
			t.Errorf("another file meanwhile: %q, %v", got, err)
		}
		if err := c.Remove(patient(t), root.Handle, "f"); err != nil {
			t.Fatal(err)
		}
		d.logged("the file system of an export is full")
		h = file(t, c, "again")
		if _, err := c.Write(patient(t), h, block, 0, blockstore.FileSync); err != nil {
			t.Errorf("with room again: %v", err)
		}
	})
}

// sick is a file system in user space that passes everything to a directory, except for
// what fails.
type sick struct {
	cached            bool // as files are, so that they can be mapped
	read, write, sync atomic.Bool
	change            atomic.Int32 // what every change fails with
}

func (s *sick) refuses() syscall.Errno { return syscall.Errno(s.change.Load()) }

func (s *sick) flags() uint32 {
	if s.cached {
		return 0
	}
	return fuse.FOPEN_DIRECT_IO
}

type sickNode struct {
	fs.LoopbackNode
	s *sick
}

type sickFile struct {
	*fs.LoopbackFile
	s *sick
}

// WrapChild implements fs.NodeWrapChilder.
func (n *sickNode) WrapChild(context.Context, fs.InodeEmbedder) fs.InodeEmbedder {
	return &sickNode{fs.LoopbackNode{RootData: n.RootData}, n.s}
}

func (n *sickNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		if e := n.s.refuses(); e != 0 {
			return nil, 0, e
		}
	}
	fh, _, e := n.LoopbackNode.Open(ctx, flags)
	return n.wrap(fh), n.s.flags(), e
}

func (n *sickNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode,
	fs.FileHandle, uint32, syscall.Errno,
) {
	if e := n.s.refuses(); e != 0 {
		return nil, nil, 0, e
	}
	i, fh, _, e := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return i, n.wrap(fh), n.s.flags(), e
}

func (n *sickNode) Rename(ctx context.Context, name string, to fs.InodeEmbedder, newName string,
	flags uint32,
) syscall.Errno {
	if e := n.s.refuses(); e != 0 {
		return e
	}
	return n.LoopbackNode.Rename(ctx, name, to, newName, flags)
}

func (n *sickNode) wrap(fh fs.FileHandle) fs.FileHandle {
	if f, ok := fh.(*fs.LoopbackFile); ok {
		return &sickFile{f, n.s}
	}
	return fh
}

func (f *sickFile) PassthroughFd() (int, bool) { return 0, false }

func (f *sickFile) Read(ctx context.Context, b []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if f.s.read.Load() {
		return nil, syscall.EIO
	}
	return f.LoopbackFile.Read(ctx, b, off)
}

func (f *sickFile) Write(ctx context.Context, b []byte, off int64) (uint32, syscall.Errno) {
	if f.s.write.Load() {
		return 0, syscall.EIO
	}
	if e := f.s.refuses(); e != 0 {
		return 0, e
	}
	return f.LoopbackFile.Write(ctx, b, off)
}

func (f *sickFile) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	if f.s.sync.Load() {
		return syscall.EIO
	}
	return f.LoopbackFile.Fsync(ctx, flags)
}
