package fusefs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func errno(t *testing.T, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

// TestFiles: what programs do with files, on the mount and seen on the server's disk.
func TestFiles(t *testing.T) {
	each(t, func(t *testing.T, s *host, m *mounted) {
		for _, size := range []int{0, 1, 4095, 4096, 300_000, 1 << 20, 5<<20 + 17} {
			name := fmt.Sprint("file", size)
			data := noise(byte(size), size)
			must(t, os.WriteFile(m.path(name), data, 0o640))
			there, err := os.ReadFile(filepath.Join(s.dir, name))
			must(t, err)
			if !bytes.Equal(there, data) {
				t.Errorf("%d bytes: the server has others after close", size)
			}
			here, err := os.ReadFile(m.path(name))
			must(t, err)
			if !bytes.Equal(here, data) {
				t.Errorf("%d bytes: read differently", size)
			}
			info, err := os.Stat(m.path(name))
			must(t, err)
			if info.Size() != int64(size) || info.Mode() != 0o640 {
				t.Error(info.Size(), info.Mode())
			}
		}
		must(t, os.Mkdir(m.path("dir"), 0o750))
		must(t, os.Symlink("file1", m.path("link")))
		if to, err := os.Readlink(m.path("link")); err != nil || to != "file1" {
			t.Error(to, err)
		}
		must(t, os.Link(m.path("file1"), m.path("hard")))
		var st syscall.Stat_t
		must(t, syscall.Stat(m.path("hard"), &st))
		if st.Nlink != 2 {
			t.Errorf("%d links", st.Nlink)
		}
		must(t, os.Rename(m.path("hard"), m.path("dir/hard")))
		must(t, os.Rename(m.path("file4096"), m.path("file4095")))
		if b, err := os.ReadFile(m.path("file4095")); err != nil || len(b) != 4096 {
			t.Error(len(b), err)
		}
		errno(t, os.Remove(m.path("dir")), syscall.ENOTEMPTY)
		errno(t, syscall.Rmdir(m.path("file1")), syscall.ENOTDIR)
		errno(t, syscall.Unlink(m.path("dir")), syscall.EISDIR)
		_, err := os.Stat(m.path("absent"))
		errno(t, err, syscall.ENOENT)
		must(t, syscall.Mkfifo(m.path("fifo"), 0o600))
		must(t, os.Chmod(m.path("file1"), 0o600))
		when := time.Unix(1234567890, 987654321)
		must(t, os.Chtimes(m.path("file1"), when, when))
		must(t, os.Truncate(m.path("file1"), 100))
		if info, err := os.Stat(m.path("file1")); err != nil || info.Size() != 100 || info.Mode().Perm() != 0o600 {
			t.Error(info, err)
		}
		var fsinfo syscall.Statfs_t
		must(t, syscall.Statfs(m.dir, &fsinfo))
		if fsinfo.Blocks == 0 || fsinfo.Namelen != 255 {
			t.Errorf("%+v", fsinfo)
		}
		names(t, m.dir, "dir", "fifo", "file0", "file1", "file1048576", "file300000", "file4095", "file5242897", "link")
	})
}

func names(t *testing.T, dir string, want ...string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range list {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestOpenUnlinked: a file that is removed or replaced while it is open stays readable and
// writable, and goes with the last close.
func TestOpenUnlinked(t *testing.T) {
	each(t, func(t *testing.T, s *host, m *mounted) {
		for _, name := range []string{"removed", "replaced"} {
			must(t, os.WriteFile(m.path(name), []byte("before"), 0o644))
		}
		a, err := os.OpenFile(m.path("removed"), os.O_RDWR, 0)
		must(t, err)
		b, err := os.OpenFile(m.path("replaced"), os.O_RDWR, 0)
		must(t, err)
		must(t, os.Remove(m.path("removed")))
		must(t, os.WriteFile(m.path("new"), []byte("new"), 0o644))
		must(t, os.Rename(m.path("new"), m.path("replaced")))
		if got, err := os.ReadFile(m.path("replaced")); err != nil || string(got) != "new" {
			t.Errorf("%q, %v", got, err)
		}
		_, err = os.Stat(m.path("removed"))
		errno(t, err, syscall.ENOENT)
		for _, f := range []*os.File{a, b} {
			if _, err := f.WriteAt([]byte("AFTER"), 6); err != nil {
				t.Error(err)
			}
			must(t, f.Sync())
			got := make([]byte, 11)
			if _, err := f.ReadAt(got, 0); err != nil || string(got) != "beforeAFTER" {
				t.Errorf("%q, %v", got, err)
			}
			must(t, f.Close())
		}
		waitFor(t, "the removed files to go", func() bool {
			list, _ := os.ReadDir(s.dir)
			return len(list) == 1
		})
		names(t, m.dir, "replaced")
	})
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestDirectories: large directories, read in parts and from the middle on.
func TestDirectories(t *testing.T) {
	each(t, func(t *testing.T, s *host, m *mounted) {
		var want []string
		for i := range 3000 {
			name := fmt.Sprintf("%04d%0100d", i, i)
			want = append(want, name)
			must(t, os.WriteFile(filepath.Join(s.dir, name), nil, 0o644))
		}
		names(t, m.dir, want...)
		d, err := os.Open(m.dir)
		must(t, err)
		defer func() { _ = d.Close() }()
		for range 2 {
			seen := 0
			for {
				list, err := d.Readdirnames(70)
				seen += len(list)
				if err == io.EOF {
					break
				}
				must(t, err)
			}
			if seen != len(want) {
				t.Errorf("%d names", seen)
			}
			_, err = d.Seek(0, io.SeekStart)
			must(t, err)
		}
		must(t, filepath.WalkDir(m.dir, func(_ string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			if err == nil && info.Size() != 0 {
				err = errors.New("size")
			}
			return err
		}))
	})
}

// mapped calls do with bytes [off, off+n) of a file, through a shared mapping.
func mapped(t *testing.T, f *os.File, off, n int, do func(b []byte)) {
	t.Helper()
	first := off &^ (os.Getpagesize() - 1)
	b, err := unix.Mmap(int(f.Fd()), int64(first), off+n-first, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	do(b[off-first:])
	must(t, unix.Munmap(b))
}

// childFile has the name of the file that a test in a child process works on.
const childFile = "FUSEFS_CHILD_FILE"

// inChild runs a test again in a process of its own, with the name of a file. A page fault of a
// mapping in the process that serves the mount would stop that process for ever: the Go runtime
// does not know that the thread waits.
func inChild(t *testing.T, test, file string, env ...string) {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
	c.Env = append(append(os.Environ(), childFile+"="+file), env...)
	out, err := c.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+test)) {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestRandomWrites: writes at random places, by write(2) and through mappings, with reads,
// truncations, holes, syncs and closes between, leave what they leave in a slice.
func TestRandomWrites(t *testing.T) {
	if name := os.Getenv(childFile); name != "" {
		randomWrites(t, name)
		return
	}
	each(t, func(t *testing.T, s *host, m *mounted) {
		inChild(t, "TestRandomWrites", m.path("f"), fmt.Sprintf("PUNCH=%t", m.c.Version() == client.Version42))
		got, err := os.ReadFile(m.path("f"))
		must(t, err)
		want, err := os.ReadFile(filepath.Join(s.dir, "f"))
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes in the mount, %d on the server, or others", len(got), len(want))
		}
	})
}

func randomWrites(t *testing.T, name string) {
	const size = 4 << 20
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	must(t, err)
	var model []byte
	for i := range 600 {
		off, n := r.IntN(size), 1+r.IntN(200_000)
		data := noise(byte(i), n)
		switch k := r.IntN(20); {
		case k < 10:
			_, err := f.WriteAt(data, int64(off))
			must(t, err)
			if len(model) < off+n {
				model = append(model, make([]byte, off+n-len(model))...)
			}
			copy(model[off:], data)
		case k < 12 && len(model) > 0:
			off %= len(model)
			n = min(n, len(model)-off)
			mapped(t, f, off, n, func(b []byte) {
				if !bytes.Equal(b, model[off:off+n]) {
					t.Fatalf("step %d: %d mapped bytes at %d are wrong", i, n, off)
				}
				copy(b, data)
			})
			copy(model[off:off+n], data)
		case k < 13 && os.Getenv("PUNCH") == "true":
			must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n)))
			clear(model[min(off, len(model)):min(off+n, len(model))])
		case k < 17:
			b := make([]byte, n)
			got, err := f.ReadAt(b, int64(off))
			if err != nil && err != io.EOF {
				t.Fatal(err)
			}
			if want := model[min(off, len(model)):min(off+n, len(model))]; !bytes.Equal(b[:got], want) {
				t.Fatalf("step %d: %d bytes at %d are wrong (got %d)", i, len(want), off, got)
			}
		case k == 17:
			must(t, f.Truncate(int64(off)))
			model = append(model[:min(off, len(model))], make([]byte, max(off-len(model), 0))...)
		case k == 18:
			must(t, f.Sync())
		default:
			if info, err := f.Stat(); err != nil || info.Size() != int64(len(model)) {
				t.Fatalf("step %d: %v, %v, want %d", i, info.Size(), err, len(model))
			}
			must(t, f.Close())
			f, err = os.OpenFile(name, os.O_RDWR, 0)
			must(t, err)
		}
	}
	must(t, f.Close())
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, model) {
		t.Errorf("another content, %d bytes, want %d, %v", len(got), len(model), err)
	}
}

// TestMapped: shared mappings write through to the server, private ones do not.
func TestMapped(t *testing.T) {
	const size = 3 << 20
	if name := os.Getenv(childFile); name != "" {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		must(t, err)
		shared, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		private, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		must(t, err)
		copy(private[4096:], "private")
		copy(shared[2<<20+5:], "shared")
		must(t, unix.Msync(shared, unix.MS_SYNC))
		return
	}
	each(t, func(t *testing.T, s *host, m *mounted) {
		must(t, os.WriteFile(m.path("f"), noise(1, size), 0o644))
		inChild(t, "TestMapped", m.path("f"))
		want := noise(1, size)
		copy(want[2<<20+5:], "shared")
		got, err := os.ReadFile(filepath.Join(s.dir, "f"))
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Error("the server has something else than the mapping")
		}
	})
}

// TestDirectIO: O_DIRECT goes to the server at once.
func TestDirectIO(t *testing.T) {
	each(t, func(t *testing.T, s *host, m *mounted) {
		f, err := os.OpenFile(m.path("f"), os.O_RDWR|os.O_CREATE|syscall.O_DIRECT, 0o644)
		must(t, err)
		mem, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		must(t, err)
		copy(mem, noise(9, len(mem)))
		_, err = f.WriteAt(mem, 4096)
		must(t, err)
		got, err := os.ReadFile(filepath.Join(s.dir, "f"))
		must(t, err)
		if !bytes.Equal(got[4096:], mem) {
			t.Error("not on the server")
		}
		clear(mem)
		if n, err := f.ReadAt(mem, 4096); err != nil || n != len(mem) || !bytes.Equal(mem, noise(9, len(mem))) {
			t.Error(n, err)
		}
		must(t, f.Close())
		must(t, unix.Munmap(mem))
	})
}

// TestExtents: holes, reservation and copies within the server, as far as the version has them.
func TestExtents(t *testing.T) {
	each(t, func(t *testing.T, s *host, m *mounted) {
		has := m.c.Version() == client.Version42
		f, err := os.OpenFile(m.path("f"), os.O_RDWR|os.O_CREATE, 0o644)
		must(t, err)
		defer func() { _ = f.Close() }()
		_, err = f.WriteAt(noise(3, 1<<20), 0)
		must(t, err)
		_, err = f.WriteAt(noise(4, 1<<20), 3<<20)
		must(t, err)
		err = unix.Fallocate(int(f.Fd()), 0, 0, 8<<20)
		if !has {
			errno(t, err, syscall.EOPNOTSUPP)
		} else {
			must(t, err)
			if info, err := f.Stat(); err != nil || info.Size() != 8<<20 {
				t.Error(info.Size(), err)
			}
			must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 3<<20, 5<<20))
			must(t, f.Truncate(4<<20))
			b := make([]byte, 10)
			if _, err := f.ReadAt(b, 3<<20+100); err != nil || !bytes.Equal(b, make([]byte, 10)) {
				t.Error(b, err)
			}
			at, err := unix.Seek(int(f.Fd()), 2<<20, unix.SEEK_DATA)
			t.Log("data after the first MiB:", at, err)
			hole, err := unix.Seek(int(f.Fd()), 3<<20, unix.SEEK_HOLE)
			if err != nil || hole != 3<<20 {
				t.Error(hole, err)
			}
			_, err = unix.Seek(int(f.Fd()), 3<<20, unix.SEEK_DATA)
			errno(t, err, syscall.ENXIO)
		}
		g, err := os.OpenFile(m.path("g"), os.O_RDWR|os.O_CREATE, 0o644)
		must(t, err)
		defer func() { _ = g.Close() }()
		in, out := int64(4096), int64(100)
		for left := 1<<20 - 4096; left > 0; {
			n, err := unix.CopyFileRange(int(f.Fd()), &in, int(g.Fd()), &out, left, 0)
			must(t, err)
			if n == 0 {
				t.Fatal("the copy ends early")
			}
			left -= n
		}
		got, err := os.ReadFile(m.path("g"))
		must(t, err)
		if want := append(make([]byte, 100), noise(3, 1<<20)[4096:]...); !bytes.Equal(got, want) {
			t.Errorf("the copy differs: %d bytes", len(got))
		}
	})
}

// TestXattrs: extended attributes of users, with version 4.2.
func TestXattrs(t *testing.T) {
	each(t, func(t *testing.T, s *host, m *mounted) {
		must(t, os.WriteFile(m.path("f"), nil, 0o644))
		err := unix.Setxattr(m.path("f"), "user.color", []byte("blue"), unix.XATTR_CREATE)
		if m.c.Version() != client.Version42 {
			errno(t, err, syscall.EOPNOTSUPP)
			return
		}
		must(t, err)
		must(t, unix.Setxattr(m.path("f"), "user.long", noise(1, 3000), 0))
		errno(t, unix.Setxattr(m.path("f"), "user.color", nil, unix.XATTR_CREATE), syscall.EEXIST)
		errno(t, unix.Setxattr(m.path("f"), "user.absent", nil, unix.XATTR_REPLACE), syscall.ENODATA)
		b := make([]byte, 4000)
		if n, err := unix.Getxattr(m.path("f"), "user.color", b); err != nil || string(b[:n]) != "blue" {
			t.Errorf("%q, %v", b[:n], err)
		}
		if n, err := unix.Getxattr(m.path("f"), "user.long", nil); err != nil || n != 3000 {
			t.Error(n, err)
		}
		_, err = unix.Getxattr(m.path("f"), "user.long", b[:10])
		errno(t, err, syscall.ERANGE)
		_, err = unix.Getxattr(m.path("f"), "user.absent", b)
		errno(t, err, syscall.ENODATA)
		n, err := unix.Listxattr(m.path("f"), b)
		must(t, err)
		list := bytes.Split(bytes.TrimSuffix(b[:n], []byte{0}), []byte{0})
		slices.SortFunc(list, bytes.Compare)
		if fmt.Sprintf("%s", list) != "[user.color user.long]" {
			t.Errorf("%s", list)
		}
		must(t, unix.Removexattr(m.path("f"), "user.color"))
		_, err = unix.Getxattr(m.path("f"), "user.color", b)
		errno(t, err, syscall.ENODATA)
	})
}

// TestModes: a file that is created read-only can be written through the open that created it, and
// a file without permission cannot be opened.
func TestModes(t *testing.T) {
	each(t, func(t *testing.T, s *host, m *mounted) {
		f, err := os.OpenFile(m.path("f"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400)
		must(t, err)
		_, err = f.WriteString("content")
		must(t, err)
		must(t, f.Close())
		if b, err := os.ReadFile(m.path("f")); err != nil || string(b) != "content" {
			t.Errorf("%q, %v", b, err)
		}
		_, err = os.OpenFile(m.path("f"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400)
		errno(t, err, syscall.EEXIST)
		must(t, os.WriteFile(m.path("x"), nil, 0o644))
		errno(t, unix.Renameat2(unix.AT_FDCWD, m.path("f"), unix.AT_FDCWD, m.path("x"), unix.RENAME_EXCHANGE),
			syscall.EINVAL)
		must(t, os.WriteFile(m.path("g"), nil, 0o644))
		errno(t, unix.Renameat2(unix.AT_FDCWD, m.path("f"), unix.AT_FDCWD, m.path("g"), unix.RENAME_NOREPLACE),
			syscall.EEXIST)
		must(t, unix.Renameat2(unix.AT_FDCWD, m.path("f"), unix.AT_FDCWD, m.path("h"), unix.RENAME_NOREPLACE))
		names(t, m.dir, "g", "h", "x")
	})
}
