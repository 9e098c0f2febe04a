package fusefs

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// posixCases are the system calls of TestPOSIX. Each case begins in an empty directory of the mode
// 0777, as root, without umask.
var posixCases = []struct {
	name string
	run  func(p *posix)
}{
	{"open", func(p *posix) {
		p.file("f", "content", 0o644)
		p.dirs("d")
		for link, target := range map[string]string{"to-f": "f", "to-d": "d", "dangling": "none", "loop": "loop"} {
			p.is("symlink "+link, unix.Symlink(target, p.at(link)))
		}
		slices.Sort(p.lines)
		_ = unix.Mkfifo(p.at("fifo"), 0o644)
		long := strings.Repeat("n", 255)
		for _, c := range []struct {
			name  string
			flags int
		}{
			{"none", unix.O_RDONLY},
			{"f/x", unix.O_RDONLY},
			{"f/", unix.O_RDONLY},
			{"d", unix.O_WRONLY},
			{"d", unix.O_RDWR},
			{"d", unix.O_RDONLY | unix.O_CREAT},
			{"d", unix.O_RDONLY | unix.O_TRUNC},
			{"f", unix.O_RDONLY | unix.O_DIRECTORY},
			{"f", unix.O_CREAT | unix.O_EXCL},
			{"to-f", unix.O_CREAT | unix.O_EXCL},
			{"dangling", unix.O_CREAT | unix.O_EXCL},
			{"dangling", unix.O_RDONLY},
			{"to-f", unix.O_NOFOLLOW},
			{"loop", unix.O_RDONLY},
			{"new/", unix.O_CREAT | unix.O_WRONLY},
			{"fifo", unix.O_WRONLY | unix.O_NONBLOCK},
			{"to-d", unix.O_RDONLY | unix.O_DIRECTORY},
			{"to-d/", unix.O_RDONLY},
			{"to-d", unix.O_NOFOLLOW | unix.O_DIRECTORY},
			{"none/x", unix.O_CREAT | unix.O_WRONLY},
			{"", unix.O_CREAT},
			{"f", unix.O_PATH},
			{"to-f", unix.O_PATH | unix.O_NOFOLLOW},
			{".", unix.O_WRONLY},
			{"f", unix.O_NOATIME},
		} {
			p.open(fmt.Sprintf("open %q with %#x", c.name, c.flags), c.name, c.flags, 0o644)
		}
		p.open("open a name of 255 bytes", long, unix.O_CREAT|unix.O_WRONLY, 0o644)
		p.open("open a name of 256 bytes", long+"n", unix.O_CREAT|unix.O_WRONLY, 0o644)
		p.open("open below a name of 256 bytes", long+"n/x", unix.O_RDONLY, 0)
		p.open("create through a link", "dangling", unix.O_CREAT|unix.O_WRONLY, 0o640)
		p.stat("what was created through a link", "none")
		p.open("truncate", "f", unix.O_WRONLY|unix.O_TRUNC, 0)
		p.stat("truncated", "f")
		p.open("O_TMPFILE", ".", unix.O_TMPFILE|unix.O_RDWR, 0o600)
		for _, mode := range []uint32{0o400, 0o4755, 0o2755, 0o1777, 0} {
			name := fmt.Sprintf("mode-%o", mode)
			p.open("create "+name, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, mode)
			p.stat(name, name)
		}
		unix.Umask(0o027)
		p.open("create with a umask", "umask", unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o666)
		p.stat("created with a umask", "umask")
		p.is("mkdir with a umask", unix.Mkdir(p.at("umask-d"), 0o777))
		p.stat("directory made with a umask", "umask-d")
	}},
	{"permissions", func(p *posix) {
		p.file("secret", "s", 0o600)
		p.file("group", "g", 0o640)
		_ = os.Chown(p.at("group"), 0, 4800)
		p.file("all", "a", 0o666)
		p.file("program", "#!/bin/true\n", 0o644)
		p.dirs("closed", "listed", "passed", "readonly")
		p.file("passed/f", "f", 0o644)
		p.file("listed/f", "f", 0o644)
		p.file("readonly/f", "f", 0o644)
		for name, mode := range map[string]uint32{"closed": 0o700, "listed": 0o744, "passed": 0o711, "readonly": 0o755} {
			_ = unix.Chmod(p.at(name), mode)
		}
		for _, u := range []struct {
			name string
			user
		}{{"alice", alice}, {"bob", bob}} {
			p.as(u.user, func() {
				who := u.name + ", "
				for _, name := range []string{"secret", "group", "all", "passed/f", "listed/f", "closed/f", "readonly/f"} {
					p.open(who+"read "+name, name, unix.O_RDONLY, 0)
					p.open(who+"write "+name, name, unix.O_WRONLY, 0)
					p.is(who+"stat "+name, unix.Access(p.at(name), unix.F_OK))
					p.is(who+"access "+name, unix.Access(p.at(name), unix.R_OK|unix.W_OK))
					p.is(who+"truncate "+name, unix.Truncate(p.at(name), 1))
				}
				for _, name := range []string{"closed", "listed", "passed", "readonly"} {
					p.open(who+"list "+name, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
					p.open(who+"create in "+name, name+"/new", unix.O_CREAT|unix.O_WRONLY, 0o644)
					p.is(who+"mkdir in "+name, unix.Mkdir(p.at(name+"/newd"), 0o755))
					p.is(who+"symlink in "+name, unix.Symlink("x", p.at(name+"/newl")))
					p.is(who+"unlink in "+name, unix.Unlink(p.at(name+"/f")))
					p.is(who+"rename in "+name, unix.Rename(p.at(name+"/f"), p.at(name+"/g")))
					p.is(who+"link in "+name, unix.Link(p.at("all"), p.at(name+"/l")))
					p.is(who+"rmdir "+name, unix.Rmdir(p.at(name+"/d")))
				}
				for _, name := range []string{"secret", "all"} {
					p.is(who+"chmod "+name, unix.Chmod(p.at(name), 0o777))
					p.is(who+"chown "+name, unix.Chown(p.at(name), u.id, -1))
					p.is(who+"chgrp "+name, unix.Chown(p.at(name), -1, u.id))
					p.is(who+"times "+name, unix.UtimesNanoAt(unix.AT_FDCWD, p.at(name), make([]unix.Timespec, 2), 0))
					p.is(who+"now "+name, unix.UtimesNanoAt(unix.AT_FDCWD, p.at(name),
						[]unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}, 0))
				}
				p.is(who+"execute", unix.Access(p.at("program"), unix.X_OK))
				p.is(who+"mknod", unix.Mknod(p.at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
				p.is(who+"mkfifo", unix.Mkfifo(p.at("fifo-of-"+u.name), 0o644))
				p.stat(who+"the fifo", "fifo-of-"+u.name)
				p.file("of-"+u.name, "x", 0o600)
				p.is(who+"chmod own", unix.Chmod(p.at("of-"+u.name), 0o2640))
				p.stat(who+"own", "of-"+u.name)
				p.is(who+"give own away", unix.Chown(p.at("of-"+u.name), 4713, -1))
				p.is(who+"own to a group", unix.Chown(p.at("of-"+u.name), -1, 4800))
				p.is(who+"O_NOATIME", openError(p.at("all"), unix.O_RDONLY|unix.O_NOATIME))
			})
		}
		p.is("root, execute", unix.Access(p.at("program"), unix.X_OK))
		p.open("root, read a file of mode 0", "of-bob", unix.O_RDWR, 0)
	}},
	{"set IDs", func(p *posix) {
		p.as(alice, func() { p.file("f", "content", 0o777) })
		set := func() { _ = unix.Chmod(p.at("f"), 0o6777) }
		for _, c := range []struct {
			what string
			do   func() error
		}{
			{"write", func() error {
				return with(p.at("f"), unix.O_WRONLY, func(fd int) error { return one(unix.Pwrite(fd, []byte("x"), 0)) })
			}},
			{"write nothing", func() error {
				return with(p.at("f"), unix.O_WRONLY, func(fd int) error { return one(unix.Pwrite(fd, nil, 0)) })
			}},
			{"truncate", func() error { return unix.Truncate(p.at("f"), 3) }},
			{"chown", func() error { return unix.Chown(p.at("f"), -1, -1) }},
			{"open with O_TRUNC", func() error { return openError(p.at("f"), unix.O_WRONLY|unix.O_TRUNC) }},
		} {
			for name, u := range map[string]user{"alice": alice, "bob": bob} {
				set()
				var err error
				p.as(u, func() { err = c.do() })
				p.is(c.what+" as "+name, err)
				p.stat("after "+c.what+" as "+name, "f")
			}
			slices.Sort(p.lines)
		}
		set()
		p.is("root gives it away", unix.Chown(p.at("f"), 4712, 4712))
		p.stat("given away", "f")
		p.dirs("d")
		_ = unix.Chown(p.at("d"), 4711, 4800)
		_ = unix.Chmod(p.at("d"), 0o2777)
		p.as(bob, func() {
			p.file("d/f", "", 0o666)
			p.is("mkdir", unix.Mkdir(p.at("d/d"), 0o755))
			p.is("symlink", unix.Symlink("x", p.at("d/l")))
			p.is("chmod with S_ISGID of another group", unix.Chmod(p.at("d/f"), 0o2755))
			p.open("create with S_ISGID", "d/g", unix.O_CREAT|unix.O_WRONLY, 0o2775)
		})
		for _, name := range []string{"d", "d/f", "d/d", "d/l", "d/g"} {
			p.stat(name, name)
		}
		p.is("mkdir 07777", unix.Mkdir(p.at("e"), 0o7777))
		p.stat("mode 07777", "e")
	}},
	{"sticky", func(p *posix) {
		p.dirs("t")
		_ = unix.Chmod(p.at("t"), 0o1777)
		p.as(alice, func() {
			p.file("t/f", "a", 0o666)
			p.file("t/g", "a", 0o666)
			p.dirs("t/d")
		})
		p.as(bob, func() {
			p.file("t/mine", "b", 0o666)
			p.is("unlink another's", unix.Unlink(p.at("t/f")))
			p.is("rename another's", unix.Rename(p.at("t/f"), p.at("t/x")))
			p.is("rename over another's", unix.Rename(p.at("t/mine"), p.at("t/f")))
			p.is("rmdir another's", unix.Rmdir(p.at("t/d")))
			p.is("rename own", unix.Rename(p.at("t/mine"), p.at("t/still-mine")))
			p.is("unlink own", unix.Unlink(p.at("t/still-mine")))
			p.is("link to another's", unix.Link(p.at("t/f"), p.at("t/l")))
		})
		p.as(alice, func() { p.is("unlink by the owner", unix.Unlink(p.at("t/f"))) })
		p.is("unlink by root", unix.Unlink(p.at("t/g")))
	}},
}

func openError(name string, flags int) error {
	return with(name, flags, func(int) error { return nil })
}

// with opens a file for a call.
func with(name string, flags int, do func(fd int) error) error {
	fd, err := unix.Open(name, flags, 0o666)
	if err != nil {
		return err
	}
	err = do(fd)
	if e := unix.Close(fd); err == nil {
		err = e
	}
	return err
}

func one(_ int, err error) error { return err }
