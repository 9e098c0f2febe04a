package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rdma/roce"
)

// dropBehind makes a file's pages from off on leave memory, and reports whether they did.
func dropBehind(t *testing.T, path string, off, size int64) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	fd := int(f.Fd())
	// All leave, as what was written together may leave together only; and what is before off
	// comes back, without what the kernel would read ahead of it.
	for _, advice := range []int{unix.FADV_DONTNEED, unix.FADV_RANDOM} {
		if err := unix.Fadvise(fd, 0, 0, advice); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unix.Pread(fd, make([]byte, off), 0); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	}()
	vec := make([]byte, size/int64(unix.Getpagesize()))
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(size),
		uintptr(unsafe.Pointer(unsafe.SliceData(vec)))); e != 0 {
		t.Fatal(e)
	}
	return vec[0]&1 != 0 && vec[len(vec)-1]&1 == 0
}

// TestReadOfHalfInMemory: a READ of which a part is in memory waits for the rest; the client
// gets all of it at once.
func TestReadOfHalfInMemory(t *testing.T) {
	const size = 1 << 20
	dir := t.TempDir()
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || st.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary directory is in memory")
	}
	s := newServerOf(t, dir, roce.Config{})
	data, b := make([]byte, size), make([]byte, size)
	words(data, 0, 1)
	for i, c := range []struct {
		version client.Version
		half    int64
	}{
		{client.Version3, size / 2},
		{client.Version3, 64 << 10},
		{client.Version42, size / 2},
		{client.Version42, 64 << 10},
	} {
		// A file of its own, as pages stay that the server has mapped.
		name := fmt.Sprint(i)
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
		u, err := client.ParseURL(s.at + name)
		if err != nil {
			t.Fatal(err)
		}
		cl := (&dial.Dialer{Version: c.version}).Client(u)
		e, err := cl.Resolve(t.Context(), u.Path)
		if err != nil {
			t.Fatal(err)
		}
		// So that the store has the file open, without which it does not look into memory.
		if n, _, err := cl.Read(t.Context(), e.Handle, b[:8], 0); n != 8 || err != nil {
			t.Fatal(n, err)
		}
		if !dropBehind(t, filepath.Join(dir, name), c.half, size) {
			t.Skip("the file system keeps in memory what it likes")
		}
		clear(b)
		n, eof, err := cl.Read(t.Context(), e.Handle, b, 0)
		if n != size || err != nil {
			t.Errorf("version %v, in memory to %d: %d bytes, end %v, %v", c.version, c.half, n, eof, err)
		}
		if err := notOf(b[:n], 0, 1, false); err != nil {
			t.Errorf("version %v, in memory to %d: %v", c.version, c.half, err)
		}
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}
}
