package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/cli"
)

// readyFD is the descriptor on which the process in the background says that the directory is
// mounted.
const readyFD = 3

// background starts the process that serves the mount, and waits until the directory is mounted. If
// now is set, background returns without the wait (option bg of nfs(5)).
func (r *run) background(now bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	args := []string{"mount", r.device, r.dir, "--options", r.list, fmt.Sprintf("--ready-fd=%d", readyFD)}
	for flag, set := range map[string]bool{"--read-only": r.readOnly, "--sync": r.sync, "--debug": r.debug} {
		if set {
			args = append(args, flag)
		}
	}
	if r.log != "" {
		log, err := filepath.Abs(r.log)
		if err != nil {
			return err
		}
		args = append(args, "--log", log)
	}
	cmd := exec.Command(self, args...)
	cmd.Args[0] = "rstorectl" // self can be mount.rstored, whose arguments are different
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{out}
	// Otherwise detach leaves the session. autofs lets only the process group of automount reach the
	// directory before it is mounted.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: now}
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = out.Close()
	if now {
		return cmd.Process.Release()
	}
	if n, _ := in.Read(make([]byte, 1)); n == 1 {
		return cmd.Process.Release()
	}
	err = cmd.Wait() // the process has printed the reason
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return &cli.ExitError{Code: exit.ExitCode()}
	}
	return fmt.Errorf("the process in the background ended without a mount: %w", err)
}

// detach leaves the terminal and its session: it redirects errors to the log, and reports that the
// mount is there.
func detach(ready int, log io.Writer) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	_, _ = unix.Setsid() // it fails if the process has a session already
	errs := int(null.Fd())
	if f, ok := log.(*os.File); ok {
		errs = int(f.Fd())
	}
	err = errors.Join(
		os.Chdir("/"), unix.Dup3(int(null.Fd()), 0, 0), unix.Dup3(int(null.Fd()), 1, 0), unix.Dup3(errs, 2, 0))
	f := os.NewFile(uintptr(ready), "ready")
	_, werr := f.Write([]byte{1})
	return errors.Join(err, werr, f.Close())
}

// abort ends the connection between the kernel and the process of a mount, so all waiting calls
// fail. Then it unmounts the directory.
func abort(m entry) {
	_ = os.WriteFile(fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", m.minor), []byte("1"), 0)
	_ = detachMount(m.dir)
}

// detachMount unmounts lazily.
func detachMount(dir string) error {
	err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EPERM) {
		return fusermount("-u", "-z", dir)
	}
	return err
}

// fusermount runs the program that mounts and unmounts for ordinary users.
func fusermount(args ...string) error {
	for _, name := range []string{"fusermount3", "fusermount"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := exec.Command(path, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %s", name, strings.TrimPrefix(strings.TrimSpace(string(out)), name+": "))
		}
		return nil
	}
	return errors.New("fusermount3 is missing; install the package fuse3, or be root")
}
