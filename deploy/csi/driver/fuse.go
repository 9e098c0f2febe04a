package driver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// fuseType is the type of rstorectl's mounts in mountinfo.
const fuseType = "fuse.rstored"

// startTime bounds how long the unit of a mount waits for its server, in seconds.
const startTime = 60

// Host is the Mounter of this host: the kernel's client, and rstorectl for mounts by FUSE.
//
// One process of rstorectl serves each mount by FUSE, and the mount lasts as long as its process.
// With Units the host's systemd runs the process (systemd-run), so it outlives this process and its
// container. Without Units it is a child of this process, and the container's runtime ends it with
// the container.
type Host struct {
	Kernel
	// Rstorectl is the program. With Units it is a path on the host; see Install.
	Rstorectl string
	Units     bool
	// Dir has the logs of mounts. With Units the host has it at the same path.
	Dir string
}

// Install copies a program to a directory that the host shares, and returns its path. The name of
// the copy has a hash, so mounts of an earlier version keep their program.
func Install(program, dir string) (string, error) {
	b, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	to := filepath.Join(dir, "rstorectl-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(to); err == nil {
		return to, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, ".rstorectl-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(0o755), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return to, nil
}

// Mount implements Mounter.
func (h Host) Mount(ctx context.Context, m Mount, finished func()) error {
	if !m.FUSE {
		return h.Kernel.Mount(ctx, m, finished)
	}
	if err := os.MkdirAll(h.Dir, 0o755); err != nil {
		finished()
		return err
	}
	id := mountID(m.Target)
	args := []string{
		"mount", "--log", filepath.Join(h.Dir, id+".log"),
		"--options", strings.Join(slices.Concat(m.Options.Flags, m.Options.Data), ","), m.Source, m.Target,
	}
	run := h.child
	if h.Units {
		run = h.unit
	}
	return within(ctx, finished, func() error { return run(ctx, id, args) })
}

// mountID names a mount in the names of files and units.
func mountID(target string) string {
	sum := sha256.Sum256([]byte(target))
	return "rstored-csi-" + hex.EncodeToString(sum[:8])
}

// child runs rstorectl as a child of this process. If the directory is not mounted when ctx ends,
// child kills the process.
func (h Host) child(ctx context.Context, _ string, args []string) error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	const fd = 3 // the first of ExtraFiles
	cmd := exec.Command(h.Rstorectl, append(args, "--ready-fd="+strconv.Itoa(fd))...)
	var said bytes.Buffer
	cmd.Stderr, cmd.ExtraFiles = &said, []*os.File{out}
	// The pipe of Stderr stays open in the process until it has a log instead.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = out.Close()
	if err != nil {
		return err
	}
	mounted := make(chan bool, 1)
	go func() {
		n, _ := in.Read(make([]byte, 1))
		mounted <- n == 1
	}()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case ok := <-mounted:
		if ok {
			return nil
		}
	case <-ctx.Done():
		_ = cmd.Process.Kill()
	}
	return fuseError(<-ended, said.String())
}

// unit runs rstorectl as a unit of the host's systemd. This process reaches systemd through the
// root directory of the host's first process. systemd-run returns when rstorectl returns, that is,
// when the directory is mounted.
func (h Host) unit(_ context.Context, id string, args []string) error {
	errs := filepath.Join(h.Dir, id+".err")
	defer func() { _ = os.Remove(errs) }()
	// An earlier process of this path may still be ending.
	name := fmt.Sprintf("%s-%x", id, time.Now().UnixNano())
	args = slices.Clone(args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$", "$$") // systemd expands variables
	}
	cmd := exec.Command("/usr/bin/systemd-run", append([]string{
		"--quiet", "--collect", "--unit=" + name, "--service-type=forking", "--description=CSI volume by FUSE",
		"--property=StandardError=truncate:" + errs, "--property=TimeoutStartSec=" + strconv.Itoa(startTime),
		"--", h.Rstorectl,
	}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: "/proc/1/root"}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if said := tail(errs); said != "" {
		out = []byte(said)
	}
	var start *fs.PathError
	if errors.As(err, &start) {
		return fmt.Errorf("mounts by FUSE run as units of the host's systemd: the node needs systemd, and the plugin "+
			"hostPID and to be privileged: %w", err)
	}
	return fuseError(err, string(out))
}

// tail returns the end of a small file.
func tail(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	b, _ := io.ReadAll(io.LimitReader(f, 4096))
	return string(b)
}

// fuseErrors maps messages of rstorectl to errors of mount(2).
var fuseErrors = []struct {
	text string
	err  error
}{
	{"access denied by server", syscall.EACCES},
	{"No such file or directory", syscall.ENOENT},
	{"Connection refused", syscall.ECONNREFUSED},
	{"Connection timed out", syscall.ETIMEDOUT},
	{"not supported", syscall.EPROTONOSUPPORT},
	{"mount option", syscall.EINVAL},
}

// fuseError returns the error of a rstorectl that ended with err after it printed said.
func fuseError(err error, said string) error {
	said = strings.TrimPrefix(strings.Join(strings.Fields(said), " "), "rstorectl: ")
	if said == "" {
		return fmt.Errorf("rstorectl mount: %w", err)
	}
	for _, e := range fuseErrors {
		if strings.Contains(said, e.text) {
			return fmt.Errorf("rstorectl mount: %s: %w", said, e.err)
		}
	}
	return fmt.Errorf("rstorectl mount: %s", said)
}

// url is the source of a mount by FUSE.
func (p place) url(o Options) (string, error) {
	u, err := location(o.transport, p.server, o.port, path.Join(p.share, p.directory))
	return u.String(), err
}
