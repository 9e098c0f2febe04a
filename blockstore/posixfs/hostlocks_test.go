package posixfs

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// fcntlFile is the file that a process started by the tests locks as it is told.
const fcntlFile = "RSTORED_TEST_FCNTL"

// TestFcntlProcess is that process: a line on its input is "r", "w" or "u", a start and a
// length, and the answer is "ok" or "busy". It uses the locks of POSIX, as lockf(3) does.
func TestFcntlProcess(t *testing.T) {
	name := os.Getenv(fcntlFile)
	if name == "" {
		t.Skip("started by other tests alone")
	}
	runtime.LockOSThread()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var what string
		l := unix.Flock_t{Whence: unix.SEEK_SET}
		if _, err := fmt.Sscan(in.Text(), &what, &l.Start, &l.Len); err != nil {
			t.Fatal(err)
		}
		l.Type = map[string]int16{"r": unix.F_RDLCK, "w": unix.F_WRLCK, "u": unix.F_UNLCK}[what]
		switch err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &l); {
		case err == nil:
			fmt.Println("> ok")
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
			fmt.Println("> busy")
		default:
			fmt.Println(">", err)
		}
	}
}

// program is such a process.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Scanner
}

func startProgram(t *testing.T, name string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(os.Args[0], "-test.run=^TestFcntlProcess$", "-test.v")}
	p.cmd.Env = append(os.Environ(), fcntlFile+"="+name)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdin, p.in = r, w
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	t.Cleanup(func() {
		_ = w.Close()
		_ = p.cmd.Wait()
	})
	return p
}

func (p *program) says(line, want string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.t.Fatal(err)
	}
	for p.out.Scan() {
		if got, ok := strings.CutPrefix(p.out.Text(), "> "); ok {
			if got != want {
				p.t.Errorf("%q by the program: %s, want %s", line, got, want)
			}
			return
		}
	}
	p.t.Fatalf("the program has ended: %v", p.out.Err())
}

// TestHostLocks: a process that locks by fcntl and the store see each other's locks.
func TestHostLocks(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	if err := os.WriteFile(name, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			_ = f.Close()
		}
	}()
	root, _ := f.Root()
	h, _, err := f.Lookup(&blockstore.Cred{}, root, "f")
	if err != nil {
		t.Fatal(err)
	}
	take := func(start, end uint64, ex, want bool) *blockstore.HostLock {
		t.Helper()
		in, err := f.LockHost(h, start, end, ex)
		if err != nil || (in == nil) != want {
			t.Errorf("%d-%d, exclusive %v: %+v, %v", start, end, ex, in, err)
		}
		return in
	}
	p := startProgram(t, name)
	pid := p.cmd.Process.Pid

	p.says("w 0 10", "ok")
	if in := take(5, 20, false, false); in == nil ||
		*in != (blockstore.HostLock{Start: 0, End: 9, Exclusive: true, PID: pid}) {
		t.Errorf("the holder is %+v", in)
	}
	if len(f.hostLocks.fds) != 0 {
		t.Error("a descriptor was kept for nothing")
	}
	in, err := f.TestHost(h, 9, 9, false)
	if err != nil || in == nil || in.PID != pid {
		t.Errorf("%+v, %v", in, err)
	}
	if in, err := f.TestHost(h, 10, math.MaxUint64, true); in != nil || err != nil {
		t.Errorf("%+v, %v", in, err)
	}
	take(10, 19, true, true)
	take(20, 29, false, true)
	p.says("r 15 1", "busy")
	p.says("w 25 1", "busy")
	p.says("r 25 1", "ok")
	p.says("r 30 0", "ok") // to the end, wherever that is
	if in := take(100, math.MaxUint64, true, false); in == nil || in.Start != 30 || in.End != math.MaxUint64 ||
		in.Exclusive {
		t.Errorf("the holder is %+v", in)
	}
	take(20, 24, true, true)  // its own may become exclusive
	take(10, 12, false, true) // and shared
	p.says("r 10 3", "ok")
	p.says("r 13 1", "busy")
	p.says("u 0 0", "ok")
	f.UnlockHost(h, 13, 15)
	p.says("w 13 3", "ok")
	p.says("w 16 1", "busy")
	p.says("u 0 0", "ok")

	// What no host has bytes for is nobody's concern there.
	take(math.MaxUint64-1, math.MaxUint64, true, true)
	take(1<<63, math.MaxUint64, true, true)
	p.says("w 9223372036854775806 1", "ok")
	p.says("u 0 0", "ok")
	take(1000, math.MaxUint64, true, true)
	p.says("w 9223372036854775806 1", "busy")
	p.says("w 999 0", "busy")
	p.says("w 999 1", "ok")

	// Descriptors of the file that are not for locks may come and go.
	if _, _, _, err := f.WriteAt(&blockstore.Cred{}, h, []byte("x"), 0, blockstore.Unstable); err != nil {
		t.Fatal(err)
	}
	f.objects.drop(&h)
	p.says("w 1000 1", "busy")
	f.ReleaseHost(h)
	p.says("w 0 0", "ok")
	p.says("u 0 0", "ok")

	take(0, 0, true, true)
	p.says("w 0 1", "busy")
	closed = true
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	p.says("w 0 1", "ok")
}

// TestHostLockBounds: there are only so many files, each has one descriptor, and what
// cannot be locked says so.
func TestHostLockBounds(t *testing.T) {
	dir := t.TempDir()
	for i := range 4 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.hostLocks.files.locks = 3
	root, _ := f.Root()
	var hs [4]blockstore.Handle
	for i := range hs {
		if hs[i], _, err = f.Lookup(&blockstore.Cred{}, root, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i, h := range hs {
		want := error(nil)
		if i == 3 {
			want = blockstore.ErrJukebox
		}
		for range 2 {
			if _, err := f.LockHost(h, 0, 9, true); !errors.Is(err, want) {
				t.Errorf("file %d: %v", i, err)
			}
		}
	}
	if n := len(f.hostLocks.fds); n != 3 {
		t.Errorf("%d descriptors", n)
	}
	f.ReleaseHost(hs[0])
	if _, err := f.LockHost(hs[3], 0, 9, true); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
	if _, err := f.LockHost(root, 0, 9, true); err == nil {
		t.Error("a directory was locked")
	}
	f.hostLocks.remote = true
	if _, err := f.LockHost(hs[1], 0, 9, true); !errors.Is(err, blockstore.ErrNotSupp) {
		t.Errorf("of a remote filesystem: %v", err)
	}
}
