package e2e

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// badDisk is a block device that fails: a loop device whose file is served from here. It has a
// write cache, which a power cut loses a part of, and fails requests. A filesystem of the host's
// kernel is on it.
type badDisk struct {
	t    *testing.T
	kind string // of the filesystem
	dir  string // where it is mounted
	loop string
	file string // of the loop device
	size int64

	mu      sync.Mutex
	r       *rand.Rand
	durable map[int64][]byte // by page; none is zeros
	cache   map[int64][]byte // written since the last flush
	dead    bool             // without power
	lossy   int              // of 100 requests that write data, how many fail
	blind   int              // of 100 requests that read data, how many fail
	deaf    int              // of 100 flushes, how many fail
	// What has happened.
	failedWrites, failedReads, failedFlushes, lostPages int
}

const diskPage = 4096

// dataMagic begins every page that clients write. Only requests with such pages fail, as
// filesystems take failures of their own blocks for the end.
var dataMagic = []byte("rstored data page ")

type badDiskNode struct {
	fs.Inode
	d *badDisk
}

func (n *badDiskNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size, out.Blksize = 0o600, uint64(n.d.size), diskPage
	return 0
}

func (n *badDiskNode) Setattr(ctx context.Context, f fs.FileHandle, _ *fuse.SetAttrIn,
	out *fuse.AttrOut,
) syscall.Errno {
	return n.Getattr(ctx, f, out)
}

func (n *badDiskNode) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (n *badDiskNode) Read(_ context.Context, _ fs.FileHandle, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	d := n.d
	d.mu.Lock()
	defer d.mu.Unlock()
	p = p[:min(int64(len(p)), max(d.size-off, 0))]
	d.copy(p, off, func(page, p []byte) { copy(p, page) })
	if d.dead || d.blind > 0 && bytes.Contains(p, dataMagic) && d.r.IntN(100) < d.blind {
		d.failedReads++
		return nil, syscall.EIO
	}
	return fuse.ReadResultData(p), 0
}

func (n *badDiskNode) Write(_ context.Context, _ fs.FileHandle, p []byte, off int64) (uint32, syscall.Errno) {
	d := n.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return 0, syscall.EIO
	}
	if off+int64(len(p)) > d.size {
		return 0, syscall.ENOSPC
	}
	done, fails := p, d.lossy > 0 && bytes.Contains(p, dataMagic) && d.r.IntN(100) < d.lossy
	if fails { // perhaps in the middle
		d.failedWrites++
		done = p[:d.r.IntN(len(p)/diskPage+1)*diskPage]
	}
	d.copy(done, off, func(page, p []byte) { copy(page, p) })
	if fails {
		return 0, syscall.EIO
	}
	return uint32(len(p)), 0
}

// copy has do move each part of p from or to a page of the cache.
func (d *badDisk) copy(p []byte, off int64, do func(page, p []byte)) {
	for len(p) > 0 {
		i, at := off/diskPage, off%diskPage
		page := d.cache[i]
		if page == nil {
			page = make([]byte, diskPage)
			copy(page, d.durable[i])
		}
		n := min(int64(len(p)), diskPage-at)
		was := [diskPage]byte(page)
		do(page[at:], p[:n])
		if was != [diskPage]byte(page) {
			d.cache[i] = page
		}
		p, off = p[n:], off+n
	}
}

func (n *badDiskNode) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	d := n.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return syscall.EIO
	}
	if d.deaf > 0 && d.r.IntN(100) < d.deaf {
		d.failedFlushes++
		return syscall.EIO
	}
	maps.Copy(d.durable, d.cache)
	clear(d.cache)
	return 0
}

// fail sets how many of 100 requests fail.
func (d *badDisk) fail(writes, reads, flushes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lossy, d.blind, d.deaf = writes, reads, flushes
}

// die takes the power away.
func (d *badDisk) die() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
}

// revive gives it back: of what was in the cache some pages had been written.
func (d *badDisk) revive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = false
	for i := range d.size / diskPage { // in order, so that the seed decides
		page := d.cache[i]
		if page == nil {
			continue
		}
		if d.r.IntN(2) == 0 {
			d.durable[i] = page
		} else {
			d.lostPages++
		}
	}
	clear(d.cache)
}

// newBadDisk makes a filesystem on such a disk and mounts it.
func newBadDisk(t *testing.T, kind string, size int64, seed uint64, options ...string) *badDisk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	for _, program := range []string{"mkfs." + kind, "losetup"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s", program)
		}
	}
	d := &badDisk{
		t: t, kind: kind, dir: t.TempDir(), size: size, r: rand.New(rand.NewPCG(seed, 0)),
		durable: make(map[int64][]byte), cache: make(map[int64][]byte),
	}
	where, root := t.TempDir(), &fs.Inode{}
	d.file = filepath.Join(where, "disk")
	server, err := fs.Mount(where, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "rstored-test", MaxWrite: 1 << 20},
		OnAdd: func(ctx context.Context) {
			root.AddChild("disk", root.NewPersistentInode(ctx, &badDiskNode{d: d}, fs.StableAttr{Mode: syscall.S_IFREG}), false)
		},
	})
	if err != nil {
		t.Skipf("a disk in user space: %v", err)
	}
	t.Cleanup(func() {
		unmount(t, where)
		server.Wait()
	})
	d.attach()
	t.Cleanup(d.detach)
	d.run(append(append([]string{"mkfs." + kind}, options...), d.loop)...)
	d.mount()
	t.Cleanup(d.unmount)
	return d
}

func (d *badDisk) run(command ...string) string {
	d.t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%v: %v\n%s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (d *badDisk) attach() {
	d.t.Helper()
	d.loop = d.run("losetup", "--find", "--show", d.file)
	// Requests that are not split on their way: of one that fails in part the loop driver says that it
	// was done.
	if err := os.WriteFile(filepath.Join("/sys/block", filepath.Base(d.loop), "queue/max_sectors_kb"), []byte("64"),
		0); err != nil {
		d.t.Fatal(err)
	}
}

func (d *badDisk) detach() {
	_ = exec.Command("losetup", "--detach", d.loop).Run()
}

func (d *badDisk) mount() {
	d.t.Helper()
	if err := unix.Mount(d.loop, d.dir, d.kind, 0, ""); err != nil {
		d.t.Fatalf("mounting the %s: %v", d.kind, err)
	}
}

func (d *badDisk) unmount() { unmount(d.t, d.dir) }

// cut loses the power, has whoever uses the filesystem end by stop, and comes back.
func (d *badDisk) cut(stop func()) {
	d.t.Helper()
	d.die()
	stop()
	d.unmount()
	// The loop device is gone when its last user is.
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		d.detach()
		if b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(d.loop), "loop/backing_file")); err != nil ||
			len(b) == 0 {
			break
		}
		if time.Now().After(end) {
			d.t.Fatalf("%s is in use", d.loop)
		}
	}
	d.revive()
	d.attach()
	d.mount()
}
