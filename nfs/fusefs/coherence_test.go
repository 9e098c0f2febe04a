package fusefs

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

// two is a test with two mounts of one export, by different transports.
func two(t *testing.T, f func(t *testing.T, s *host, a, b *mounted)) {
	for _, v := range []client.Version{client.Version3, client.Version42} {
		t.Run(v.String(), func(t *testing.T) {
			s := newHost(t)
			f(t, s, s.mount("rdma", v), s.mount("tcp", v))
		})
	}
}

// TestCloseToOpen: who opens a file sees what another mount wrote before it closed the file,
// whether it overwrote, lengthened, shortened or replaced the file.
func TestCloseToOpen(t *testing.T) {
	two(t, func(t *testing.T, _ *host, a, b *mounted) {
		for i, step := range []func(name string, data []byte) error{
			func(name string, data []byte) error { return os.WriteFile(name, data, 0o644) },
			func(name string, data []byte) error { return os.WriteFile(name, data, 0o644) },
			func(name string, data []byte) error {
				return errors.Join(os.WriteFile(name+".new", data, 0o644), os.Rename(name+".new", name))
			},
		} {
			for j, size := range []int{10, 300_000, 10, 2 << 20, 2<<20 - 1, 4096} {
				writer, other := a, b
				if j%2 == 1 {
					writer, other = b, a
				}
				data := noise(byte(10*i+j), size)
				must(t, step(writer.path("f"), data))
				if got, err := os.ReadFile(other.path("f")); err != nil || !bytes.Equal(got, data) {
					t.Errorf("step %d, size %d: %d bytes, %v", i, size, len(got), err)
				}
			}
		}
	})
}

// TestLocks: locks of two mounts exclude each other, a lock shows what the other wrote under its
// lock, and the end of a process's open ends its locks.
func TestLocks(t *testing.T) {
	s := newHost(t)
	a, b := s.mount("rdma", client.Version42), s.mount("tcp", client.Version41)
	f, err := os.OpenFile(a.path("f"), os.O_RDWR|os.O_CREATE, 0o666)
	must(t, err)
	g, err := os.OpenFile(b.path("f"), os.O_RDWR, 0)
	must(t, err)
	defer func() { _ = g.Close() }()
	set := func(f *os.File, cmd int, typ int16) error {
		return syscall.FcntlFlock(f.Fd(), cmd, &syscall.Flock_t{Type: typ, Start: 5, Len: 10})
	}
	must(t, set(f, syscall.F_SETLK, syscall.F_WRLCK))
	errno(t, set(g, syscall.F_SETLK, syscall.F_RDLCK), syscall.EAGAIN)
	held := syscall.Flock_t{Type: syscall.F_RDLCK, Len: 100}
	must(t, syscall.FcntlFlock(g.Fd(), syscall.F_GETLK, &held))
	if held.Type != syscall.F_WRLCK || held.Start != 5 || held.Len != 10 {
		t.Errorf("%+v", held)
	}
	_, err = f.WriteAt([]byte("under the lock"), 0)
	must(t, err)
	got := make(chan error, 1)
	go func() { got <- set(g, syscall.F_SETLKW, syscall.F_WRLCK) }()
	select {
	case err := <-got:
		t.Fatalf("locked twice: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	must(t, set(f, syscall.F_SETLK, syscall.F_UNLCK))
	must(t, <-got)
	text := make([]byte, 14)
	if _, err := g.ReadAt(text, 0); err != nil || string(text) != "under the lock" {
		t.Errorf("%q, %v", text, err)
	}
	must(t, set(g, syscall.F_SETLK, syscall.F_UNLCK))
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	errno(t, unix.Flock(int(g.Fd()), unix.LOCK_SH|unix.LOCK_NB), syscall.EAGAIN)
	must(t, f.Close())
	waitFor(t, "the lock of the closed file to end", func() bool {
		return unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	})
}

// TestLocksOfVersion3: they are refused, so that no program relies on them, unless the mount asks
// for its own.
func TestLocksOfVersion3(t *testing.T) {
	s := newHost(t)
	for _, local := range []bool{false, true} {
		m := s.mount("tcp", client.Version3, func(c *Config) { c.LocalLocks = local })
		f, err := os.OpenFile(m.path("f"), os.O_RDWR|os.O_CREATE, 0o666)
		must(t, err)
		for what, err := range map[string]error{
			"fcntl": syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}),
			"flock": unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB),
			"get":   syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}),
		} {
			if local != (err == nil) || !local && err != syscall.ENOLCK {
				t.Errorf("local %t: %s: %v", local, what, err)
			}
		}
		must(t, f.Close())
	}
}

// TestServerRestarts: the server restarts and loses its memory while a file is written. Data that
// it had only acknowledged as unstable is sent again, and newer data is not overwritten by it.
func TestServerRestarts(t *testing.T) {
	for _, v := range []client.Version{client.Version3, client.Version42} {
		t.Run(v.String(), func(t *testing.T) {
			s := newHost(t)
			m := s.mount("tcp", v)
			f, err := os.Create(m.path("f"))
			must(t, err)
			want := noise(1, 6<<20)
			_, err = f.WriteAt(want, 0)
			must(t, err)
			_, err = f.Stat() // the server has it, unstable
			must(t, err)
			s.stop()
			// What a server loses that loses its memory.
			must(t, os.WriteFile(filepath.Join(s.dir, "f"), make([]byte, 1<<20), 0o644))
			s.start()
			over := noise(2, 1<<20)
			copy(want[1<<20+500:], over)
			_, err = f.WriteAt(over, 1<<20+500)
			must(t, err)
			must(t, f.Close())
			if got, err := os.ReadFile(filepath.Join(s.dir, "f")); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if n := m.Stats().Rewrites; n == 0 {
				t.Error("nothing was sent again")
			}
		})
	}
}

// TestGrows: a file that another mount appends to is read on by a descriptor that is open, after
// the attributes are as old as they may become.
func TestGrows(t *testing.T) {
	s := newHost(t)
	a := s.mount("rdma", client.Version42, func(c *Config) { c.Times = CacheTimes{} })
	b := s.mount("tcp", client.Version42)
	must(t, os.WriteFile(b.path("f"), []byte("one"), 0o644))
	f, err := os.Open(a.path("f"))
	must(t, err)
	defer func() { _ = f.Close() }()
	buf := make([]byte, 100)
	n, err := f.Read(buf)
	must(t, err)
	must(t, os.WriteFile(b.path("f"), []byte("one two"), 0o644))
	waitFor(t, "the new end", func() bool {
		k, _ := f.ReadAt(buf, int64(n))
		return string(buf[:k]) == " two"
	})
}

// TestSoft: with a timeout, calls to a server that is away fail with EIO.
func TestSoft(t *testing.T) {
	s := newHost(t)
	m := s.mount("tcp", client.Version42, func(c *Config) { c.Timeout = 300 * time.Millisecond })
	f, err := os.Create(m.path("f"))
	must(t, err)
	s.stop()
	_, err = os.Stat(m.path("absent"))
	errno(t, err, syscall.EIO)
	_, err = f.Write([]byte("data"))
	must(t, err)
	errno(t, f.Sync(), syscall.EIO)
	s.start()
	_ = f.Close()
}

// TestPerUser: in a mount for all users calls have the identity of the caller.
func TestPerUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root becomes another user")
	}
	s := newHost(t)
	m := s.mount("rdma", client.Version42, func(c *Config) { c.AllowOther = true })
	must(t, os.Chmod(m.dir, 0o777))
	for dir := filepath.Dir(m.dir); len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
	c := exec.Command("sh", "-ec", "echo mine >"+m.path("f")+"; mkdir "+m.path("d")+"; touch "+m.path("d/x"))
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4712, Groups: []uint32{4713}}}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var st syscall.Stat_t
	must(t, syscall.Stat(filepath.Join(s.dir, "d/x"), &st))
	if st.Uid != 4711 || st.Gid != 4712 {
		t.Errorf("made by %d:%d", st.Uid, st.Gid)
	}
	must(t, os.WriteFile(m.path("group"), []byte("g"), 0o640))
	must(t, os.Chown(m.path("group"), 0, 4713))
	must(t, os.WriteFile(m.path("secret"), []byte("s"), 0o600))
	for name, ok := range map[string]bool{"group": true, "secret": false} {
		c := exec.Command("cat", m.path(name))
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4712, Groups: []uint32{4713}}}
		if out, err := c.CombinedOutput(); (err == nil) != ok {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
