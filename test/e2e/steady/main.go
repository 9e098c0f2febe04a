// Command steady changes names and data in a directory without an end, and tells a test of each
// call that has succeeded. It runs in guests and above mounts, whose server the test takes away.
//
//	steady ADDRESS NAME DIRECTORY [lock|hold]
//
// It connects to ADDRESS and writes lines: NAME first, then "+" for a call that has succeeded,
// "file NAME" for a file that has to be there from now on, "error TEXT" for a call that has failed,
// and "end". It ends when the test closes its side, or sends anything. Each name is new, so that a
// call that the server carries out twice fails with EEXIST or ENOENT. With lock it holds a lock of
// bytes 2 to 5 of the file held-NAME, writes below it, and locks again what it has locked. With hold
// it does not lock again: version 3 grants no new lock in a grace period.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: steady ADDRESS NAME DIRECTORY [lock]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], append(os.Args, "")[4]); err != nil {
		fmt.Fprintln(os.Stderr, "steady:", err)
		os.Exit(1)
	}
}

// load is what one process does.
type load struct {
	out  net.Conn
	name string
	dir  string
	held *os.File // with the lock, or nil
	once bool     // the lock is not locked again
}

func run(addr, name, dir, lock string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	l := &load{out: c, name: name, dir: dir, once: lock == "hold"}
	if lock != "" {
		if l.held, err = os.OpenFile(filepath.Join(dir, "held-"+name), os.O_CREATE|os.O_RDWR, 0o644); err != nil {
			return err
		}
		if err := l.lock(); err != nil {
			return err
		}
	}
	l.say(name)
	var stop atomic.Bool
	go func() {
		_, _ = bufio.NewReader(c).ReadByte()
		stop.Store(true)
	}()
	for i := 1; !stop.Load(); i++ {
		if err := l.step(i); err != nil {
			l.say("error " + err.Error())
		}
	}
	l.say("end")
	return nil
}

// say tells the test a line. The test has gone if that fails.
func (l *load) say(line string) {
	if _, err := l.out.Write([]byte(strings.ReplaceAll(line, "\n", " ") + "\n")); err != nil {
		os.Exit(1)
	}
}

// did tells the test that a call has succeeded, and returns the error of one that has not.
func (l *load) did(err error) error {
	if err == nil {
		l.say("+")
	}
	return err
}

func (l *load) lock() error {
	w := unix.Flock_t{Type: unix.F_WRLCK, Start: 2, Len: 4}
	if err := unix.FcntlFlock(l.held.Fd(), unix.F_OFD_SETLK, &w); err != nil {
		return fmt.Errorf("the lock: %w", err)
	}
	return nil
}

// step makes one file, and a directory that it removes again.
func (l *load) step(i int) error {
	name := fmt.Sprintf("%s-%d", l.name, i)
	path := filepath.Join(l.dir, name)
	f, err := os.OpenFile(path+".part", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err = l.did(err); err != nil {
		return err
	}
	_, err = f.WriteString(strings.Repeat(name+"\n", 400))
	if err = errors.Join(err, f.Sync(), f.Close()); l.did(err) != nil {
		return err
	}
	if err := l.did(os.Rename(path+".part", path)); err != nil {
		return err
	}
	if i%3 != 0 {
		l.say("file " + name)
	} else if err := l.did(os.Remove(path)); err != nil {
		return err
	}
	if err := l.did(os.Mkdir(path+".dir", 0o700)); err != nil {
		return err
	}
	if err := l.did(os.Remove(path + ".dir")); err != nil {
		return err
	}
	if l.held == nil {
		return nil
	}
	_, err = l.held.WriteAt([]byte("x"), 3)
	err = errors.Join(err, l.held.Sync())
	if !l.once {
		err = errors.Join(err, l.lock())
	}
	return l.did(err)
}
