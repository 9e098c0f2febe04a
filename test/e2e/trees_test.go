package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// oddTree makes one of everything that a copy can stumble over.
func oddTree(t *testing.T, root string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	data := make([]byte, 3<<20+13)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	must(os.MkdirAll(root, 0o755))
	for _, n := range []int{
		0, 1, 2, 3, 4, 5, 511, 512, 1023, 3779, 3780, 3781, 4095, 4096, 4097, 65535, 65537, 1<<20 - 1,
		1 << 20, 1<<20 + 1, len(data),
	} {
		must(os.WriteFile(filepath.Join(root, fmt.Sprintf("size-%d", n)), data[:n], 0o644))
	}
	must(os.WriteFile(filepath.Join(root, "exec"), []byte("#!/bin/sh\n"), 0o755))
	must(os.WriteFile(filepath.Join(root, "readonly"), []byte("x"), 0o400))
	deep := root
	for i := range 40 {
		deep = filepath.Join(deep, fmt.Sprintf("deep%02d", i))
	}
	must(os.MkdirAll(deep, 0o755))
	must(os.WriteFile(filepath.Join(deep, "bottom"), data[:100], 0o600))
	must(os.WriteFile(filepath.Join(root, strings.Repeat("n", 255)), data[:10], 0o644))
	must(os.WriteFile(filepath.Join(root, "latin1-\xe9\xff\xfe"), data[:20], 0o644))
	must(os.WriteFile(filepath.Join(root, "sp ace\ttab\nnewline %41 #?;&"), data[:30], 0o644))
	must(os.Mkdir(filepath.Join(root, "empty-dir"), 0o700))
	must(os.Symlink("size-1", filepath.Join(root, "link")))
	must(os.Symlink("/nowhere/at/all", filepath.Join(root, "dangling")))
	must(os.Symlink(strings.Repeat("t/", 500)+"t", filepath.Join(root, "long-target")))
	must(os.Link(filepath.Join(root, "size-4096"), filepath.Join(root, "hard-1")))
	must(os.Link(filepath.Join(root, "size-4096"), filepath.Join(root, "hard-2")))
	must(syscall.Mkfifo(filepath.Join(root, "fifo"), 0o640))
	// More than 4 GiB, nearly all of it holes.
	f, err := os.Create(filepath.Join(root, "huge-sparse"))
	must(err)
	for _, off := range []int64{0, 1<<32 - 5, 1<<32 + 1<<20, 1<<32 + 1<<24} {
		_, err = f.WriteAt(data[:11], off)
		must(err)
	}
	must(f.Close())
	old := time.Unix(1234567890, 0)
	for _, p := range []string{"size-1", "exec"} {
		must(os.Chtimes(filepath.Join(root, p), old, old))
	}
}

func TestTreesOfOddFiles(t *testing.T) {
	src := filepath.Join(t.TempDir(), "src")
	oddTree(t, src)
	for _, transport := range []string{"rdma", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			d := newDaemon(t)
			before := d.stats()
			d.ctl("put", "-r", src, d.url(transport, "tree"))
			sameTree(t, src, filepath.Join(d.export, "tree"))
			back := filepath.Join(t.TempDir(), "back")
			d.ctl("get", "-r", d.url(transport, "tree"), back)
			sameTree(t, src, back)
			var st syscall.Stat_t
			if err := syscall.Stat(filepath.Join(back, "huge-sparse"), &st); err != nil {
				t.Fatal(err)
			}
			if st.Blocks*512 > 64<<20 {
				t.Errorf("the sparse file came back with %d MiB allocated", st.Blocks*512>>20)
			}
			after := d.stats()
			for _, c := range []string{"rdma_write_bytes", "rdma_read_bytes"} {
				b, _ := counter(before, c)
				a, ok := counter(after, c)
				if !ok {
					t.Errorf("stats has no %s", c)
				}
				if moved := a - b; (transport == "rdma") != (moved > 3<<20) {
					t.Errorf("%s grew by %.0f over %s", c, moved, transport)
				}
			}
		})
	}
}

func TestUnreadableFileIsReportedAndTheRestGoesOn(t *testing.T) {
	for _, transport := range []string{"rdma", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			d := newDaemon(t)
			work := t.TempDir()
			src, back := filepath.Join(work, "src"), filepath.Join(work, "back")
			if err := errors.Join(os.Chmod(filepath.Dir(work), 0o755), os.Chmod(work, 0o777), os.Mkdir(src, 0o755)); err != nil {
				t.Fatal(err)
			}
			for i := range 10 {
				if err := os.WriteFile(filepath.Join(src, fmt.Sprint("f", i)), []byte("data"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(filepath.Join(src, "f3"), 0); err != nil {
				t.Fatal(err)
			}
			if os.Getuid() == 0 {
				// Root can read everything, so somebody else copies.
				d.as = &syscall.Credential{Uid: 65534, Gid: 65534}
				if err := os.Chmod(d.export, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			_, stderr, err := d.try(time.Minute, "put", "-r", src, d.url(transport, "tree"))
			if exitCode(err) != 1 || !strings.Contains(stderr, "f3") {
				t.Errorf("put: exit %d, %q; want 1 and the file's name", exitCode(err), stderr)
			}
			if got := scan(t, filepath.Join(d.export, "tree")); len(got) != 10 {
				t.Errorf("%d objects arrived, want the directory and nine files", len(got))
			}
			if d.as == nil {
				return
			}
			// The other way, it is the server that refuses. It lets an owner read
			// whatever the mode is, as NFS servers do, so the file is another's.
			f5 := filepath.Join(d.export, "tree", "f5")
			if err := errors.Join(os.Chown(f5, 0, 0), os.Chmod(f5, 0o600)); err != nil {
				t.Fatal(err)
			}
			_, stderr, err = d.try(time.Minute, "get", "-r", d.url(transport, "tree"), back)
			if exitCode(err) != 1 || !strings.Contains(stderr, "f5") {
				t.Errorf("get: exit %d, %q; want 1 and the file's name", exitCode(err), stderr)
			}
			if got := scan(t, back); len(got) != 9 {
				t.Errorf("%d objects came back, want the directory and eight files", len(got))
			}
		})
	}
}

func TestHundredThousandFilesInOneDirectory(t *testing.T) {
	d := newDaemon(t)
	dir := filepath.Join(d.export, "many")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const n = 100_000
	for i := range n {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("file-%06d", i)))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	for _, transport := range []string{"rdma", "tcp"} {
		start := time.Now()
		out := d.ctl("ls", d.url(transport, "many"))
		t.Logf("listing %d names over %s took %v", n, transport, time.Since(start).Round(time.Millisecond))
		seen := map[string]bool{}
		for _, f := range strings.Fields(out) {
			if strings.HasPrefix(f, "file-") {
				if seen[f] {
					t.Fatalf("%s was listed twice over %s", f, transport)
				}
				seen[f] = true
			}
		}
		if len(seen) != n {
			t.Errorf("%d of %d names were listed over %s", len(seen), n, transport)
		}
	}
}

func TestFileCommands(t *testing.T) {
	for _, transport := range []string{"rdma", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			d := newDaemon(t)
			u := func(p string) string { return d.url(transport, p) }
			local := filepath.Join(t.TempDir(), "local")
			data := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
			if err := os.WriteFile(local, data, 0o640); err != nil {
				t.Fatal(err)
			}
			d.ctl("mkdir", u("a"))
			d.ctl("put", local, u("a/file"))
			if got := d.ctl("cat", u("a/file")); got != string(data) {
				t.Error("cat gave other bytes than put took")
			}
			d.ctl("cp", u("a/file"), u("a/copy"))
			d.ctl("mv", u("a/copy"), u("a/moved"))
			if out := d.ctl("ls", u("a")); !strings.Contains(out, "file") || !strings.Contains(out, "moved") ||
				strings.Contains(out, "copy") {
				t.Errorf("ls after mv: %q", out)
			}
			if out := d.ctl("-o", "json", "stat", u("a/moved")); !strings.Contains(out, "3200000") {
				t.Errorf("stat does not tell the size: %s", out)
			}
			d.ctl("df", u(""))
			d.ctl("get", u("a/moved"), local+".back")
			if sumFile(t, local) != sumFile(t, local+".back") {
				t.Error("get gave other bytes than put took")
			}
			d.ctl("rm", u("a/file"))
			d.ctl("rm", "-r", u("a"))
			if _, err := os.Stat(filepath.Join(d.export, "a")); err == nil {
				t.Error("rm -r left the directory")
			}
			if _, stderr, err := d.try(time.Minute, "cat", u("nothing")); exitCode(err) != 1 ||
				!strings.Contains(stderr, "nothing") {
				t.Errorf("cat of a missing file: exit %d, %q", exitCode(err), stderr)
			}
			if _, _, err := d.try(time.Minute, "cat"); exitCode(err) != 2 {
				t.Errorf("cat without an argument: exit %d, want 2", exitCode(err))
			}
		})
	}
}
