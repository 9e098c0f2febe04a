package fusefs

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

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
