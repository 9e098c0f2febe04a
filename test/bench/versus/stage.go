package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// tests is the directory of the tests' module, from that of the repository, where the program runs.
const tests = "test"

// fileSize is that of the files that are read and written, in bytes.
const fileSize = 256 << 20

// memorySize bounds the file system in memory. The servers keep files open for a while that were
// removed behind their back.
const memorySize = "8g"

// namespaces are what the stage has for itself. As its first process it takes all
// others with it when it ends. Who is not root is root in a namespace of users, as far as
// that goes: nfs-ganesha wants more.
//
// A cluster of Ceph is in the network namespace of this process.
func namespaces(ceph bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	if ceph {
		a.Cloneflags &^= syscall.CLONE_NEWNET
	}
	if uid := os.Getuid(); uid != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return a
}

// onStage is the process in the namespaces: it measures what is asked for and leaves
// the results in the stage's directory.
func onStage(ctx context.Context, o *options) error {
	if err := furnish(o.stage); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(o.stage, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	s := newServers(o.stage, log)
	defer s.stop()
	var measured any
	if o.scale != nil {
		measured, err = measureScaling(ctx, o, s)
	} else {
		measured, err = measureAll(ctx, o, s)
	}
	if err != nil {
		return err
	}
	b, err := json.Marshal(measured)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.stage, "results.json"), b, 0o644)
}

// furnish gives the namespaces what they need: the loopback interface, /proc, an empty
// /run for the peers' sockets and locks, and a file system in memory.
func furnish(dir string) error {
	memory := filepath.Join(dir, "memory")
	if err := os.Mkdir(memory, 0o755); err != nil {
		return err
	}
	for _, m := range []struct {
		target, kind, data string
		flags              uintptr
	}{
		{"/", "", "", unix.MS_REC | unix.MS_PRIVATE},
		{"/proc", "proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"/run", "tmpfs", "mode=0755", unix.MS_NOSUID | unix.MS_NODEV},
		{memory, "tmpfs", "mode=0755,size=" + memorySize, unix.MS_NOSUID | unix.MS_NODEV},
	} {
		if err := unix.Mount("none", m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	for _, d := range []string{"/run/rpcbind", "/run/ganesha"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	return loopback()
}

// loopback brings the loopback interface up.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bringing lo up: %w", err)
	}
	return nil
}

// fill makes what the load works on in an export: file, and the directories names and
// large.
func fill(dir string, entries int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		return err
	}
	p := make([]byte, 1<<20)
	for i := range p {
		p[i] = byte(i * i >> 3)
	}
	for range fileSize / len(p) {
		if _, err := f.Write(p); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	for _, d := range []struct {
		name, file string
		n          int
	}{{"names", "name-%06d", 1000}, {"large", "an-entry-of-a-large-directory-%07d", entries}} {
		sub := filepath.Join(dir, d.name)
		if err := os.Mkdir(sub, 0o755); err != nil {
			return err
		}
		for i := range d.n {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf(d.file, i)), nil, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
