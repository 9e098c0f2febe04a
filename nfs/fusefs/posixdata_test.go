package fusefs

import (
	"fmt"
	"math"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

func init() {
	posixCases = append(posixCases, []struct {
		name string
		run  func(p *posix)
	}{
		{"read and write", func(p *posix) {
			p.file("f", "0123456789", 0o644)
			b := make([]byte, 8)
			p.fd("f", unix.O_RDONLY, func(fd int) {
				p.is("write", one(unix.Write(fd, b)))
				p.is("truncate", unix.Ftruncate(fd, 0))
				n, err := unix.Pread(fd, b, 6)
				p.is("read at the end", err)
				p.note("bytes", n)
				n, err = unix.Pread(fd, b, 100)
				p.is("read beyond the end", err)
				p.note("bytes", n)
				p.is("read at a negative offset", one(unix.Pread(fd, b, -1)))
				p.is("seek to a negative offset", seek(fd, -1, unix.SEEK_SET))
				p.is("seek far beyond the end", seek(fd, 1<<40, unix.SEEK_SET))
				p.is("seek nowhere", seek(fd, 0, 99))
				p.is("seek to data", seek(fd, 0, unix.SEEK_DATA))
				p.is("seek to data beyond the end", seek(fd, 11, unix.SEEK_DATA))
			})
			p.fd("f", unix.O_WRONLY, func(fd int) {
				p.is("read", one(unix.Read(fd, b)))
				p.is("write at a negative offset", one(unix.Pwrite(fd, b, -1)))
				p.is("write at the largest offset", one(unix.Pwrite(fd, b, math.MaxInt64)))
				p.is("write beyond the largest file", one(unix.Pwrite(fd, b, 1<<60)))
				p.is("truncate to less than nothing", unix.Ftruncate(fd, -1))
				p.is("truncate to too much", unix.Ftruncate(fd, 1<<60))
				p.is("write beyond the end", one(unix.Pwrite(fd, []byte("end"), 5000)))
				p.is("fsync", unix.Fsync(fd))
				p.is("fdatasync", unix.Fdatasync(fd))
			})
			p.stat("with a hole", "f")
			p.fd("f", unix.O_RDWR|unix.O_APPEND, func(fd int) {
				p.is("append", one(unix.Write(fd, []byte("more"))))
				p.is("pwrite with O_APPEND", one(unix.Pwrite(fd, []byte("more"), 0)))
				var st unix.Stat_t
				p.is("fstat", unix.Fstat(fd, &st))
				p.note("size", st.Size)
				at, err := unix.Seek(fd, 0, unix.SEEK_CUR)
				p.is("where", err)
				p.note("where", at)
				at, err = unix.Seek(fd, 0, unix.SEEK_END)
				p.is("end", err)
				p.note("end", at)
			})
			for _, size := range []int64{3, 3, 9000, 0} {
				what := fmt.Sprintf("truncate to %d", size)
				p.times(what, []string{"f"}, func() error { return unix.Truncate(p.at("f"), size) })
				p.stat(what, "f")
			}
			p.is("truncate nothing", unix.Truncate(p.at("none"), 0))
			p.is("truncate to -1", unix.Truncate(p.at("f"), -1))
			var st unix.Statfs_t
			p.is("statfs", unix.Statfs(p.at("f"), &st))
			p.note("longest name", st.Namelen)
		}},
		{"times", func(p *posix) {
			p.file("f", "content", 0o644)
			p.dirs("d", "e")
			f := []string{"f"}
			p.times("chmod", f, func() error { return unix.Chmod(p.at("f"), 0o600) })
			p.times("chmod to the same", f, func() error { return unix.Chmod(p.at("f"), 0o600) })
			p.times("chown", f, func() error { return unix.Chown(p.at("f"), 4711, -1) })
			p.times("chown of nothing", f, func() error { return unix.Chown(p.at("f"), -1, -1) })
			p.times("write", f, func() error {
				return with(p.at("f"), unix.O_WRONLY, func(fd int) error { return one(unix.Write(fd, []byte("x"))) })
			})
			p.times("write nothing", f, func() error {
				return with(p.at("f"), unix.O_WRONLY, func(fd int) error { return one(unix.Write(fd, nil)) })
			})
			p.times("read", f, func() error {
				return with(p.at("f"), unix.O_RDONLY, func(fd int) error { return one(unix.Read(fd, make([]byte, 4))) })
			})
			p.times("open", f, func() error { return openError(p.at("f"), unix.O_RDWR) })
			p.times("open with O_TRUNC", f, func() error { return openError(p.at("f"), unix.O_WRONLY|unix.O_TRUNC) })
			p.times("open an empty file with O_TRUNC", f, func() error {
				return openError(p.at("f"), unix.O_WRONLY|unix.O_TRUNC)
			})
			p.times("open with O_CREAT", []string{"f", "."}, func() error {
				return openError(p.at("f"), unix.O_WRONLY|unix.O_CREAT)
			})
			p.times("create", []string{"."}, func() error { return openError(p.at("new"), unix.O_WRONLY|unix.O_CREAT) })
			p.times("link", []string{"f", "d", "."}, func() error { return unix.Link(p.at("f"), p.at("d/l")) })
			p.times("rename", []string{"f", "d", "e"}, func() error { return unix.Rename(p.at("d/l"), p.at("e/l")) })
			p.times("unlink", []string{"f", "e"}, func() error { return unix.Unlink(p.at("e/l")) })
			p.times("mkdir", []string{"d"}, func() error { return unix.Mkdir(p.at("d/x"), 0o755) })
			p.times("rename of a directory", []string{"d", "e"}, func() error { return unix.Rename(p.at("d/x"), p.at("e/x")) })
			p.times("rmdir", []string{"e"}, func() error { return unix.Rmdir(p.at("e/x")) })
			p.times("symlink", []string{"e"}, func() error { return unix.Symlink("x", p.at("e/s")) })
			p.times("a failed rmdir", []string{"e"}, func() error { return unix.Rmdir(p.at("e")) })
			for what, ts := range map[string][]unix.Timespec{
				"nanoseconds":     {{Sec: 1000000000, Nsec: 123456789}, {Sec: 2000000000, Nsec: 987654321}},
				"before 1970":     {{Sec: -5, Nsec: 1}, {Sec: -1000000, Nsec: 999999999}},
				"after 2038":      {{Sec: 1 << 33}, {Sec: 1<<33 + 1, Nsec: 7}},
				"omit both":       {{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}},
				"bad nanoseconds": {{Nsec: 1000000000}, {}},
			} {
				p.is("chtimes, make it known", unix.UtimesNanoAt(unix.AT_FDCWD, p.at("f"), []unix.Timespec{{Sec: 1}, {Sec: 2}}, 0))
				p.is("utimensat, "+what, unix.UtimesNanoAt(unix.AT_FDCWD, p.at("f"), ts, 0))
				var st unix.Stat_t
				p.is("stat", unix.Stat(p.at("f"), &st))
				p.note(what, fmt.Sprint(st.Atim, st.Mtim))
			}
			sortFrom(p, "chtimes")
		}},
		{"locks", func(p *posix) {
			p.file("f", "content", 0o644)
			p.fd("f", unix.O_RDWR, func(a int) {
				p.fd("f", unix.O_RDWR, func(b int) {
					lock := func(what string, fd int, kind int16, from, n int64) {
						l := unix.Flock_t{Type: kind, Start: from, Len: n}
						p.is(what, unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l))
					}
					lock("exclusive", a, unix.F_WRLCK, 0, 10)
					lock("against it", b, unix.F_RDLCK, 5, 1)
					lock("beside it", b, unix.F_WRLCK, 10, 0)
					lock("downgrade", a, unix.F_RDLCK, 0, 5)
					lock("shared", b, unix.F_RDLCK, 0, 5)
					lock("of a negative length", a, unix.F_WRLCK, 4, -2)
					lock("before the file", a, unix.F_WRLCK, -1, 1)
					l := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 100}
					p.is("test", unix.FcntlFlock(uintptr(b), unix.F_OFD_GETLK, &l))
					p.note("what is in the way", fmt.Sprint(l.Type, l.Start, l.Len))
					lock("unlock", a, unix.F_UNLCK, 0, 0)
					lock("after it", b, unix.F_WRLCK, 0, 0)
					p.is("flock", unix.Flock(a, unix.LOCK_EX|unix.LOCK_NB))
					p.is("flock against it", unix.Flock(b, unix.LOCK_SH|unix.LOCK_NB))
				})
			})
			p.fd("f", unix.O_RDONLY, func(fd int) {
				l := unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
				p.is("a write lock needs an open for writing", unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l))
			})
			p.fd("f", unix.O_WRONLY, func(fd int) {
				l := unix.Flock_t{Type: unix.F_RDLCK, Len: 1}
				p.is("a read lock needs an open for reading", unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l))
			})
		}},
		{"attributes", func(p *posix) {
			p.file("f", "content", 0o644)
			_ = unix.Symlink("f", p.at("l"))
			b := make([]byte, 100)
			set := func(what, name, key, v string, flags int) {
				p.is(what, unix.Lsetxattr(p.at(name), key, []byte(v), flags))
			}
			set("set", "f", "user.a", "value", 0)
			set("create what is there", "f", "user.a", "x", unix.XATTR_CREATE)
			set("replace what is not there", "f", "user.b", "x", unix.XATTR_REPLACE)
			set("empty", "f", "user.e", "", 0)
			set("of a symlink", "l", "user.a", "x", 0)
			set("of no namespace", "f", "a", "x", 0)
			set("without a name", "f", "user.", "x", 0)
			set("longest name", "f", "user."+strings.Repeat("n", 250), "x", 0)
			set("longer name", "f", "user."+strings.Repeat("n", 251), "x", 0)
			for _, name := range []string{"user.a", "user.e", "user.none"} {
				n, err := unix.Getxattr(p.at("f"), name, b)
				p.is("get "+name, err)
				p.note("value", string(b[:max(n, 0)]))
			}
			p.is("too small a buffer", one(unix.Getxattr(p.at("f"), "user.a", b[:2])))
			n, err := unix.Getxattr(p.at("f"), "user.a", nil)
			p.is("size", err)
			p.note("size", n)
			p.is("remove", unix.Removexattr(p.at("f"), "user.a"))
			p.is("remove again", unix.Removexattr(p.at("f"), "user.a"))
			p.as(bob, func() { set("by another user", "f", "user.c", "x", 0) })
		}},
		{"allocation", func(p *posix) {
			p.file("f", strings.Repeat("0123456789", 2000), 0o644)
			p.fd("f", unix.O_RDWR, func(fd int) {
				for _, c := range []struct {
					what   string
					mode   uint32
					off, n int64
				}{
					{"allocate", 0, 0, 30000},
					{"keep the size", unix.FALLOC_FL_KEEP_SIZE, 0, 40000},
					{"punch", unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, 4096, 4096},
					{"punch without KEEP_SIZE", unix.FALLOC_FL_PUNCH_HOLE, 4096, 4096},
					{"zero", unix.FALLOC_FL_ZERO_RANGE, 8192, 4096},
					{"nothing", 0, 0, 0},
					{"a negative offset", 0, -1, 5},
					{"too far", 0, math.MaxInt64, 5},
				} {
					p.is(c.what, unix.Fallocate(fd, c.mode, c.off, c.n))
				}
				at, err := unix.Seek(fd, 0, unix.SEEK_HOLE)
				p.is("the first hole", err)
				p.note("the first hole", at)
				at, err = unix.Seek(fd, 4096, unix.SEEK_DATA)
				p.is("data after it", err)
				p.note("data after it", at)
				p.is("a hole beyond the end", seek(fd, 1<<20, unix.SEEK_HOLE))
			})
			p.stat("allocated", "f")
			p.fd("f", unix.O_RDONLY, func(fd int) { p.is("allocate without writing", unix.Fallocate(fd, 0, 0, 10)) })
		}},
	}...)
}

// Versions that lack what a case needs.
var (
	no42   = []client.Version{client.Version3, client.Version41}
	only3  = []client.Version{client.Version3}
	only42 = []client.Version{client.Version42}
)

// deviations are the observations that differ.
var deviations = []deviation{
	{"open", "O_TMPFILE", "ENOTSUP", nil},
	{"read and write", "write beyond the largest file", "ok", nil}, // it fails at fsync or close
	{"read and write", "fsync", "EFBIG", nil},
	{"times", "chown of nothing changes of f", "[]", nil},
	{"set IDs", "chown as bob", "ok", nil},
	{"set IDs", "after chown as alice", "mode 106777, 1 links, owner 4711:4711, 3 bytes, device 0", nil},
	{"times", "before 1970", "{0 0} {0 0}", only3},
	{"times", "after 2038", "{4294967295 0} {4294967295 0}", only3},
	{"locks", "", "", only3},
	{"locks", "flock", "EAGAIN", []client.Version{client.Version41, client.Version42}},
	{"attributes", "", "", no42},
	{"allocation", "", "", no42},
	{"allocation", "keep the size", "ENOTSUP", only42},
	{"allocation", "data after it", "12288", only42},
	{"links", "links of an open file without a name", "1", nil},
	{"rename", "renameat2 with 0x2", "EINVAL", nil},
	{"rename", "renameat2 with 0x4", "EINVAL", nil},
}
