package posixfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// failingDisk is a filesystem on a disk that has less room than it says: a sparse file on a
// tmpfs. Writing back fails where the tmpfs has no page left.
type failingDisk struct {
	t                 *testing.T
	small, image, dir string
}

func newFailingDisk(t *testing.T) *failingDisk {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=128m"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
	d := &failingDisk{t: t, small: small, image: filepath.Join(small, "image")}
	// Without a journal, which would end all writing at the first failure. A page for each request:
	// of a longer one of which the tmpfs has room for a part, the loop driver says that all of it
	// was written.
	d.dir = loopDisk(t, "ext4", d.image, 64<<20, "4", "-O", "^has_journal", "-E", "lazy_itable_init=0")
	return d
}

// loopDisk makes an ext4, or an older kind of it, in a file and mounts it. The disk takes
// requests of so many KiB, if that is said.
func loopDisk(t *testing.T, kind, image string, size int64, request string, options ...string) (dir string) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	for _, program := range []string{"mkfs.ext4", "losetup"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s", program)
		}
	}
	run := func(command ...string) string {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if err != nil {
			t.Skipf("%v: %v\n%s", command, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, size))
	run(append(append([]string{"mkfs.ext4", "-q", "-F", "-b", "4096", "-t", kind}, options...), image)...)
	loop := run("losetup", "--find", "--show", image)
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", loop).Run() })
	if request != "" {
		limit := filepath.Join("/sys/block", filepath.Base(loop), "queue/max_sectors_kb")
		if err := os.WriteFile(limit, []byte(request), 0); err != nil {
			t.Skipf("cannot limit the requests of %s: %v", loop, err)
		}
	}
	dir = t.TempDir()
	if err := unix.Mount(loop, dir, kind, 0, ""); err != nil {
		t.Skipf("cannot mount %s: %v", loop, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// room gives the disk room for so many bytes more than it holds.
func (d *failingDisk) room(bytes int64) {
	d.t.Helper()
	var s unix.Statfs_t
	must(d.t, unix.Statfs(d.small, &s))
	used := int64(s.Blocks-s.Bfree) * s.Bsize
	must(d.t, unix.Mount("", d.small, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", used+bytes)))
}

// fileExtents is struct fiemap with extents.
type fileExtents struct {
	start, length       uint64
	flags, mapped, room uint32
	_                   uint32
	extents             [64]struct {
		logical, physical, length uint64
		_                         [2]uint64
		flags                     uint32
		_                         [3]uint32
	}
}

// extents are where the disk has the data of a file.
func (d *failingDisk) extents(name string) *fileExtents {
	d.t.Helper()
	f, err := os.Open(filepath.Join(d.dir, name))
	must(d.t, err)
	defer f.Close()
	m := fileExtents{length: ^uint64(0)}
	m.room = uint32(len(m.extents))
	const fiemap = 0xc020660b // FS_IOC_FIEMAP
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fiemap, uintptr(unsafe.Pointer(&m))); e != 0 {
		d.t.Fatalf("FIEMAP: %v", e)
	}
	if m.mapped == 0 || m.mapped == m.room {
		d.t.Fatalf("the file has %d extents", m.mapped)
	}
	return &m
}

// thin has the disk forget the data of a file, so that writing it again takes room. The
// filesystem's own blocks stay: were they lost, data would be lost that was on the disk before.
func (d *failingDisk) thin(name string) {
	d.t.Helper()
	m := d.extents(name)
	image, err := os.OpenFile(d.image, os.O_RDWR, 0)
	must(d.t, err)
	defer image.Close()
	for _, x := range m.extents[:m.mapped] {
		must(d.t, unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(x.physical),
			int64(x.length)))
	}
}

// TestFailingDisk: on a disk that really fails, whatever the server has said to be stable is on it.
func TestFailingDisk(t *testing.T) {
	d := newFailingDisk(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f, err := Open(d.dir, Options{StateDir: t.TempDir()})
	must(t, err)
	defer f.Close()
	root, err := f.Root()
	must(t, err)
	const (
		block   = 16 << 10
		files   = 2
		writers = 3 // of each file
		each    = 60
		rounds  = 3
	)
	content := func(file, n int) []byte {
		p := make([]byte, block)
		for i := 0; i < block; i += 8 {
			binary.LittleEndian.PutUint64(p[i:], uint64(file)<<48|uint64(n)<<32|uint64(i)|1)
		}
		return p
	}
	var mu sync.Mutex
	stable := make(map[[2]int]bool) // blocks of files
	failed := 0
	hs := make([]blockstore.Handle, files)
	mode := uint32(0o600)
	for i := range hs {
		hs[i], _, _, err = f.Create(nil, root, fmt.Sprint(i), blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
		must(t, err)
		for n := range rounds * writers * each {
			_, _, _, err = f.WriteAt(nil, hs[i], make([]byte, block), uint64(n)*block, blockstore.Unstable)
			must(t, err)
		}
		_, err = f.Commit(nil, hs[i], 0, 0)
		must(t, err)
		d.thin(fmt.Sprint(i))
	}
	// write is a client that writes blocks of a file from one on, and commits now and then.
	write := func(file, from int, r *rand.Rand) {
		var owed []int
		var verf [8]byte
		for n := from; n < from+each; n++ {
			how := blockstore.Stability(r.IntN(3))
			v := f.Verifier()
			_, _, _, err := f.WriteAt(nil, hs[file], content(file, n), uint64(n)*block, how)
			mu.Lock()
			switch {
			case err != nil:
				failed++
			case how != blockstore.Unstable:
				stable[[2]int{file, n}] = true
			}
			mu.Unlock()
			if err == nil && how == blockstore.Unstable {
				if v != verf {
					owed, verf = owed[:0], v // the client would write the others again
				}
				owed = append(owed, n)
			}
			if r.IntN(4) > 0 {
				continue
			}
			_, err = f.Commit(nil, hs[file], 0, 0)
			if v := f.Verifier(); err == nil && v == verf {
				mu.Lock()
				for _, n := range owed {
					stable[[2]int{file, n}] = true
				}
				mu.Unlock()
				owed = owed[:0]
			}
		}
	}
	// The last round has to fail: all rounds together write more than there is room for.
	for round, more := range [rounds]int64{2 << 20, 4 << 20, 1 << 20} {
		d.room(more)
		var wg sync.WaitGroup
		for file := range files {
			for w := range writers {
				r := rand.New(rand.NewPCG(seed, uint64(round*100+file*10+w)))
				wg.Go(func() { write(file, (round*writers+w)*each, r) })
			}
		}
		wg.Wait()
	}
	if failed == 0 || f.Counters().SyncFailures == 0 {
		t.Errorf("%d writes and %d syncs failed on a disk without room", failed, f.Counters().SyncFailures)
	}
	if len(stable) == 0 {
		t.Error("nothing became stable")
	}
	d.room(64 << 20)
	buf, err := unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	defer unix.Munmap(buf)
	for at := range stable {
		// Past the page cache, which may have what the disk has not.
		fd, err := unix.Open(filepath.Join(d.dir, fmt.Sprint(at[0])), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		must(t, err)
		n, err := unix.Pread(fd, buf, int64(at[1])*block)
		unix.Close(fd)
		if err != nil || n != block || !bytes.Equal(buf, content(at[0], at[1])) {
			t.Errorf("block %d of file %d was said to be stable, and is not on the disk: %d bytes, %x, %v", at[1], at[0], n,
				buf[:8], err)
		}
	}
	t.Logf("%d blocks stable, %d writes failed, %d syncs", len(stable), failed, f.Counters().SyncFailures)
}

// TestWrittenAfterFailure: the kernel fails to write some data back, and a client writes it
// again. When the server says that the data is on the disk, it is there, also in parts of the
// file that had no data before.
func TestWrittenAfterFailure(t *testing.T) {
	d := newFailingDisk(t)
	f, err := Open(d.dir, Options{StateDir: t.TempDir()})
	must(t, err)
	defer f.Close()
	root, err := f.Root()
	must(t, err)
	const size = 1 << 20
	buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	defer unix.Munmap(buf)
	for _, how := range []blockstore.Stability{blockstore.Unstable, blockstore.DataSync, blockstore.FileSync} {
		name := fmt.Sprint(how)
		mode, length := uint32(0o600), uint64(size)
		h, _, _, err := f.Create(nil, root, name, blockstore.Guarded,
			&blockstore.SetAttr{Mode: &mode, Size: &length}, [8]byte{})
		must(t, err)
		must(t, f.Allocate(nil, h, 0, size)) // so that it is about data alone
		write := func(fill byte) error {
			_, _, _, err := f.WriteAt(nil, h, bytes.Repeat([]byte{fill}, size), 0, how)
			if err == nil && how == blockstore.Unstable {
				_, err = f.Commit(nil, h, 0, 0)
			}
			return err
		}
		d.room(0)
		if write('x') == nil {
			t.Fatal("a disk without room took data")
		}
		d.room(32 << 20)
		must(t, write('y'))
		fd, err := unix.Open(filepath.Join(d.dir, name), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		must(t, err)
		n, err := unix.Pread(fd, buf, 0)
		unix.Close(fd)
		if want := bytes.Repeat([]byte{'y'}, size); err != nil || !bytes.Equal(buf[:n], want) {
			at := 0
			for at < n && buf[at] == 'y' {
				at++
			}
			t.Errorf("%v: byte %d of the disk is not what was said to be stable (%d, %v)", how, at, n, err)
		}
	}
}

// TestUnreadablePart: what the disk cannot read is no end of the file: a READ that goes beyond
// what can be read returns what is before, without an end, and one that begins there fails.
func TestUnreadablePart(t *testing.T) {
	d := newFailingDisk(t)
	f, err := Open(d.dir, Options{StateDir: t.TempDir()})
	must(t, err)
	defer f.Close()
	root, err := f.Root()
	must(t, err)
	const size = 1 << 20
	mode := uint32(0o600)
	h, _, _, err := f.Create(nil, root, "file", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	must(t, err)
	_, _, _, err = f.WriteAt(nil, h, bytes.Repeat([]byte("x"), size), 0, blockstore.FileSync)
	must(t, err)
	file, err := os.Open(filepath.Join(d.dir, "file"))
	must(t, err)
	defer file.Close()
	must(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
	x := d.extents("file").extents[0]
	must(t, os.Truncate(d.image, int64(x.physical+x.length/2)))
	for _, direct := range []bool{false, true} {
		f.SetDirect(direct)
		p := make([]byte, size)
		n, eof, err := f.ReadAt(nil, h, p, 0, false)
		if err != nil || eof || n == 0 || n > int(x.logical+x.length/2) || !bytes.Equal(p[:n], bytes.Repeat([]byte("x"), n)) {
			t.Errorf("direct %v: %d bytes, end %v, %v", direct, n, eof, err)
		}
		n, eof, err = f.ReadAt(nil, h, p, x.logical+x.length/2, false)
		if !errors.Is(err, blockstore.ErrIO) {
			t.Errorf("direct %v: what cannot be read: %d bytes, end %v, %v", direct, n, eof, err)
		}
	}
}
