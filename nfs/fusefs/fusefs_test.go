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

// mapped calls do with bytes [off, off+n) of a file, through a shared mapping. Only a child may do
// so, see inChild.
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

// inChild runs a test again in a process of its own, with the name of a file. A mapping in the
// process that serves the mount would stop that process for ever: the Go runtime does not know that
// a thread waits in a page fault, and munmap(2) waits for the data to be written while it has the
// lock of the process's memory.
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
