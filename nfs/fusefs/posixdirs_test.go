package fusefs

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func init() {
	posixCases = append(posixCases, []struct {
		name string
		run  func(p *posix)
	}{
		{"links", func(p *posix) {
			p.file("f", "content", 0o644)
			p.dirs("d")
			p.stat("a new file", "f")
			p.stat("a new directory", "d")
			p.is("link", unix.Link(p.at("f"), p.at("d/g")))
			p.stat("two links", "f")
			p.is("link to a name that is there", unix.Link(p.at("f"), p.at("d/g")))
			p.is("link to a directory", unix.Link(p.at("d"), p.at("e")))
			p.is("link of nothing", unix.Link(p.at("none"), p.at("e")))
			p.is("link below nothing", unix.Link(p.at("f"), p.at("none/e")))
			p.is("link with a slash", unix.Link(p.at("f"), p.at("e/")))
			p.is("symlink", unix.Symlink("f", p.at("l")))
			p.is("link of a symlink", unix.Link(p.at("l"), p.at("m")))
			p.stat("a symlink with two links", "m")
			p.is("link of its target", unix.Linkat(unix.AT_FDCWD, p.at("l"), unix.AT_FDCWD, p.at("n"), unix.AT_SYMLINK_FOLLOW))
			p.stat("three links", "n")
			p.is("unlink", unix.Unlink(p.at("f")))
			p.stat("two links left", "n")
			p.dirs("d/a", "d/b")
			p.stat("two subdirectories", "d")
			p.is("rmdir", unix.Rmdir(p.at("d/a")))
			p.stat("one subdirectory", "d")
			p.is("a directory moves", unix.Rename(p.at("d/b"), p.at("b")))
			p.stat("no subdirectory", "d")
			p.stat("above", ".")
			p.fd("n", unix.O_RDWR, func(fd int) {
				p.is("unlink an open file", unix.Unlink(p.at("n")))
				p.is("unlink its other name", unix.Unlink(p.at("d/g")))
				var st unix.Stat_t
				p.is("fstat", unix.Fstat(fd, &st))
				p.note("links of an open file without a name", st.Nlink)
				b := make([]byte, 20)
				n, err := unix.Pread(fd, b, 0)
				p.is("read", err)
				p.note("read", string(b[:max(n, 0)]))
				p.is("write", one(unix.Pwrite(fd, []byte("more"), 100)))
				p.is("truncate", unix.Ftruncate(fd, 5))
				p.is("chmod", unix.Fchmod(fd, 0o600))
				p.open("open it by its old name", "n", unix.O_RDONLY, 0)
			})
		}},
		{"rename", func(p *posix) {
			p.file("f", "f", 0o644)
			p.file("g", "g", 0o644)
			p.dirs("empty", "full", "d", "d/sub")
			p.file("full/x", "x", 0o644)
			_ = unix.Link(p.at("f"), p.at("same"))
			_ = unix.Symlink("f", p.at("l"))
			for _, c := range [][2]string{
				{"none", "x"},
				{"f", "empty"},
				{"d", "f"},
				{"d", "full"},
				{"d", "d/sub/x"},
				{"d", "d"},
				{"f", "same"},
				{"f", "f"},
				{"f", "none/x"},
				{"f/x", "y"},
				{"f", "y/"},
				{"d", "f/x"},
				{"d/.", "x"},
				{"d/..", "x"},
				{"d", "."},
				{"f", ".."},
				{"l", "k"},
				{"d", "empty"},
				{"f", "g"},
				{"empty/", "d/"},
				{"f", strings.Repeat("n", 256)},
				{"g", "k"},
			} {
				from, to := c[0], c[1]
				if len(to) > 100 {
					to = "a long name"
				}
				p.is(fmt.Sprintf("rename %s to %s", from, to), unix.Rename(p.at(c[0]), p.at(c[1])))
			}
			p.names("after all", ".")
			for _, name := range []string{"f", "same", "k", "d", "full"} {
				p.stat(name, name)
			}
			p.file("a", "a", 0o644)
			p.file("b", "b", 0o644)
			for _, flags := range []uint{unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE, unix.RENAME_WHITEOUT, 1 << 20} {
				p.is(fmt.Sprintf("renameat2 with %#x", flags),
					unix.Renameat2(unix.AT_FDCWD, p.at("a"), unix.AT_FDCWD, p.at("b"), flags))
			}
			p.is("RENAME_NOREPLACE to a new name",
				unix.Renameat2(unix.AT_FDCWD, p.at("b"), unix.AT_FDCWD, p.at("c"), unix.RENAME_NOREPLACE))
			p.dirs("of-root", "open")
			_ = unix.Chmod(p.at("of-root"), 0o755)
			p.as(alice, func() {
				p.is("move a directory of root", unix.Rename(p.at("of-root"), p.at("open/x")))
				p.is("rename a directory of root", unix.Rename(p.at("of-root"), p.at("renamed")))
			})
		}},
		{"directories", func(p *posix) {
			p.file("f", "f", 0o644)
			p.dirs("d", "full", "full/x")
			_ = unix.Symlink("none", p.at("dangling"))
			for _, name := range []string{
				"d", "f", "dangling", "none/x", "f/x", "d/", "new/",
				strings.Repeat("n", 256), ".", "full/..",
			} {
				what := name[:min(len(name), 20)]
				p.is("mkdir "+what, unix.Mkdir(p.at(name), 0o777))
				p.is("rmdir "+what, unix.Rmdir(p.at(name)))
			}
			p.is("rmdir full", unix.Rmdir(p.at("full")))
			p.is("unlink full", unix.Unlink(p.at("full")))
			p.is("unlink f/", unix.Unlink(p.at("f/")))
			p.is("unlink nothing", unix.Unlink(p.at("none")))
			p.is("unlink dangling", unix.Unlink(p.at("dangling")))
			_ = unix.Symlink("x", p.at("l"))
			_ = unix.Mkfifo(p.at("p"), 0o644)
			p.names("types", ".")
			p.dirs("gone")
			fd, err := unix.Open(p.at("gone"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
			p.is("open", err)
			p.is("rmdir an open directory", unix.Rmdir(p.at("gone")))
			p.is("create in a removed directory", unix.Mkdirat(fd, "x", 0o755))
			p.is("create a file in a removed directory", openAt(fd, "x", unix.O_CREAT|unix.O_WRONLY))
			p.is("lookup in a removed directory", unix.Faccessat(fd, "x", unix.F_OK, 0))
			b := make([]byte, 4096)
			n, err := unix.ReadDirent(fd, b)
			p.is("list a removed directory", err)
			p.note("bytes", n)
			p.is("close", unix.Close(fd))
			p.fd("full", unix.O_RDONLY, func(fd int) {
				p.is("read a directory", one(unix.Read(fd, b)))
				p.is("fsync a directory", unix.Fsync(fd))
				p.is("truncate a directory", unix.Ftruncate(fd, 0))
			})
			p.is("truncate a directory by name", unix.Truncate(p.at("full"), 0))
		}},
		{"symlinks", func(p *posix) {
			b := make([]byte, 5000)
			p.file("f", "f", 0o644)
			for _, c := range []struct{ what, target string }{
				{"one", "f"},
				{"empty", ""},
				{"longest", strings.Repeat("a/", 2047) + "b"},
				{"too-long", strings.Repeat("a", 4096)},
				{"spaces", " a b\n"},
				{"absolute", "/none"},
			} {
				p.is("symlink "+c.what, unix.Symlink(c.target, p.at(c.what)))
				n, err := unix.Readlink(p.at(c.what), b)
				p.is("readlink "+c.what, err)
				p.note("target of "+c.what, string(b[:max(n, 0)]) == c.target)
				p.stat(c.what, c.what)
			}
			p.is("readlink of a file", one(unix.Readlink(p.at("f"), b)))
			p.is("symlink over a file", unix.Symlink("x", p.at("f")))
			p.is("lchown", unix.Lchown(p.at("one"), 4711, 4712))
			p.stat("lchown", "one")
			p.stat("its target", "f")
			p.is("chmod of the link", unix.Fchmodat(unix.AT_FDCWD, p.at("one"), 0o600, unix.AT_SYMLINK_NOFOLLOW))
			p.is("times of the link", unix.UtimesNanoAt(unix.AT_FDCWD, p.at("one"), []unix.Timespec{{Sec: 5}, {Sec: 7}},
				unix.AT_SYMLINK_NOFOLLOW))
			var st unix.Stat_t
			p.is("lstat", unix.Lstat(p.at("one"), &st))
			p.note("mtime", st.Mtim)
		}},
		{"special files", func(p *posix) {
			for _, c := range []struct {
				name string
				mode uint32
				dev  uint64
			}{
				{"fifo", unix.S_IFIFO | 0o620, 0},
				{"socket", unix.S_IFSOCK | 0o600, 0},
				{"char", unix.S_IFCHR | 0o666, unix.Mkdev(1, 3)},
				{"block", unix.S_IFBLK | 0o600, unix.Mkdev(7, 300)},
				{"file", unix.S_IFREG | 0o4711, 0},
				{"dir", unix.S_IFDIR | 0o755, 0},
			} {
				p.is("mknod "+c.name, unix.Mknod(p.at(c.name), c.mode, int(c.dev)))
				p.is("again "+c.name, unix.Mknod(p.at(c.name), c.mode, int(c.dev)))
				p.stat(c.name, c.name)
				p.is("truncate "+c.name, unix.Truncate(p.at(c.name), 0))
			}
			p.open("open the socket", "socket", unix.O_RDWR, 0)
			p.fd("fifo", unix.O_RDWR|unix.O_NONBLOCK, func(fd int) {
				p.is("write to the fifo", one(unix.Write(fd, []byte("x"))))
				p.is("read from the fifo", one(unix.Read(fd, make([]byte, 1))))
				p.is("read from the empty fifo", one(unix.Read(fd, make([]byte, 1))))
				p.is("seek in the fifo", seek(fd, 0, unix.SEEK_SET))
			})
		}},
	}...)
}

// names records names and types of a directory, sorted, with "." and "..".
func (p *posix) names(what, name string) {
	fd, err := unix.Open(p.at(name), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		p.is(what, err)
		return
	}
	_ = unix.Close(fd)
	list, err := os.ReadDir(p.at(name))
	p.is(what, err)
	for _, e := range list {
		p.note(what, fmt.Sprint(e.Name()[:min(len(e.Name()), 20)], " ", e.Type()))
	}
}

func openAt(dir int, name string, flags int) error {
	fd, err := unix.Openat(dir, name, flags, 0o644)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

func seek(fd int, off int64, whence int) error {
	_, err := unix.Seek(fd, off, whence)
	return err
}
