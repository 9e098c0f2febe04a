package fusefs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

// posix records what system calls in one directory return, for TestPOSIX.
type posix struct {
	dir   string
	lines []string
}

// user is who makes a call: a user, its group, and the other groups that it is in.
type user struct {
	id     int
	groups []uint32
}

var (
	root  = user{id: 0}
	alice = user{id: 4711, groups: []uint32{4800}}
	bob   = user{id: 4712}
)

// at is the name of a file in the directory.
func (p *posix) at(name string) string { return p.dir + "/" + name }

// note records the value of an observation.
func (p *posix) note(what string, v any) { p.lines = append(p.lines, fmt.Sprintf("%s: %v", what, v)) }

// is records the error of a call.
func (p *posix) is(what string, err error) {
	var e syscall.Errno
	switch {
	case err == nil:
		p.note(what, "ok")
	case errors.As(err, &e):
		p.note(what, unix.ErrnoName(e))
	default:
		p.note(what, err)
	}
}

// stat records type, permissions, links, owner and size.
func (p *posix) stat(what, name string) {
	var st unix.Stat_t
	if err := unix.Lstat(p.at(name), &st); err != nil {
		p.is(what, err)
		return
	}
	p.note(what, fmt.Sprintf("mode %o, %d links, owner %d:%d, %d bytes, device %d", st.Mode, st.Nlink, st.Uid, st.Gid,
		st.Size, st.Rdev))
}

// open opens a file and closes it, and records the error.
func (p *posix) open(what, name string, flags int, mode uint32) {
	fd, err := unix.Open(p.at(name), flags, mode)
	if err == nil {
		err = unix.Close(fd)
	}
	p.is(what, err)
}

// file makes a file with content. It is not a part of what is compared.
func (p *posix) file(name, content string, mode os.FileMode) {
	if err := os.WriteFile(p.at(name), []byte(content), mode); err != nil {
		p.note("cannot make "+name, err)
	}
}

// dirs makes directories with the permissions 0777.
func (p *posix) dirs(names ...string) {
	for _, name := range names {
		if err := os.Mkdir(p.at(name), 0o777); err != nil {
			p.note("cannot make "+name, err)
		}
	}
}

// fd runs calls with an open file.
func (p *posix) fd(name string, flags int, do func(fd int)) {
	fd, err := unix.Open(p.at(name), flags, 0o666)
	if err != nil {
		p.is("open "+name, err)
		return
	}
	do(fd)
	p.is("close "+name, unix.Close(fd))
}

// times records which times of files a call changes.
func (p *posix) times(what string, names []string, do func() error) {
	var before, after unix.Stat_t
	was := make([]unix.Stat_t, len(names))
	for i, name := range names {
		if err := unix.Lstat(p.at(name), &before); err != nil {
			p.is(what+", stat before", err)
		}
		was[i] = before
	}
	time.Sleep(20 * time.Millisecond) // more than the step of the clock of a file system
	p.is(what, do())
	for i, name := range names {
		if err := unix.Lstat(p.at(name), &after); err != nil {
			p.note(what+", "+name, "gone")
			continue
		}
		var changed []string
		for _, c := range []struct {
			name string
			a, b unix.Timespec
		}{{"mtime", was[i].Mtim, after.Mtim}, {"ctime", was[i].Ctim, after.Ctim}} {
			if c.a != c.b {
				changed = append(changed, c.name)
			}
		}
		p.note(what+" changes of "+name, changed)
	}
}

// as makes calls as a user, without umask. It has a thread of its own for them, which ends with
// them.
func (p *posix) as(u user, do func()) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		unix.Umask(0)
		if err == nil && u.id != 0 {
			err = become(u)
		}
		if err == nil {
			do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		p.note("become a user", err)
	}
}

// become changes the identity of this thread alone.
func become(u user) error {
	groups := append([]uint32{uint32(u.id)}, u.groups...)
	_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0)
	if e != 0 {
		return e
	}
	for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, e := unix.RawSyscall(call, uintptr(u.id), uintptr(u.id), uintptr(u.id)); e != 0 {
			return e
		}
	}
	return nil
}

// TestPOSIX makes the same system calls in a local directory and in a mount. They have the same
// results, but for the deviations of the table, which docs/mount.md gives reasons for.
func TestPOSIX(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root becomes another user")
	}
	var fs unix.Statfs_t
	must(t, unix.Statfs(os.TempDir(), &fs))
	if fs.Type != unix.EXT4_SUPER_MAGIC {
		t.Skipf("%s is not on ext4", os.TempDir())
	}
	local := t.TempDir()
	opened(t, local)
	for _, c := range []struct {
		transport string
		v         client.Version
	}{{"tcp", client.Version3}, {"tcp", client.Version41}, {"rdma", client.Version42}} {
		t.Run(c.transport+" "+c.v.String(), func(t *testing.T) {
			s := newHost(t)
			m := s.mount(c.transport, c.v, func(c *Config) { c.AllowOther = true })
			opened(t, m.dir)
			used := make(map[int]bool)
			for _, pc := range posixCases {
				t.Run(pc.name, func(t *testing.T) {
					name := strings.ReplaceAll(pc.name, " ", "-")
					want := runPOSIX(t, filepath.Join(local, c.v.String()+name), pc.run)
					got := runPOSIX(t, m.path(name), pc.run)
					for i := range max(len(want), len(got)) {
						w, g := "nothing", "nothing"
						if i < len(want) {
							w = want[i]
						}
						if i < len(got) {
							g = got[i]
						}
						if w == g {
							continue
						}
						if at := slices.IndexFunc(deviations, func(d deviation) bool { return d.is(c.v, pc.name, w, g) }); at >= 0 {
							used[at] = true
							continue
						}
						t.Errorf("ext4:  %s\nmount: %s", w, g)
					}
				})
			}
			for i, d := range deviations {
				if d.of(c.v) && !used[i] {
					t.Errorf("%s, %s: no deviation", d.in, d.what)
				}
			}
		})
	}
}

// opened lets all users pass to a directory of the test.
func opened(t *testing.T, dir string) {
	t.Helper()
	must(t, os.Chmod(dir, 0o777))
	for dir = filepath.Dir(dir); len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
}

func runPOSIX(t *testing.T, dir string, run func(p *posix)) []string {
	t.Helper()
	must(t, os.Mkdir(dir, 0o777))
	must(t, os.Chmod(dir, 0o777))
	p := &posix{dir: dir}
	p.as(root, func() { run(p) })
	return p.lines
}

// A deviation is an observation that has another value in a mount. docs/mount.md has the reasons.
type deviation struct {
	in, what string // the case, and the observation; without one, the whole case
	here     string // the value in a mount
	versions []client.Version
}

func (d deviation) of(v client.Version) bool {
	return len(d.versions) == 0 || slices.Contains(d.versions, v)
}

func (d deviation) is(v client.Version, name, want, got string) bool {
	return d.of(v) && d.in == name && (d.what == "" || strings.HasPrefix(want, d.what+": ") && got == d.what+": "+d.here)
}

// sortFrom sorts the observations from the first one on that begins with a prefix: those of a loop
// over a map.
func sortFrom(p *posix, prefix string) {
	at := slices.IndexFunc(p.lines, func(s string) bool { return strings.HasPrefix(s, prefix) })
	slices.Sort(p.lines[max(at, 0):])
}
