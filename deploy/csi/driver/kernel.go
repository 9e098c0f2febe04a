package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kernel is the Mounter of this host. It calls mount(2) for the kernel's client, so the image needs
// no program of nfs-utils.
type Kernel struct{}

// forceAfter is the time after which an unmount drops unwritten data of a server that does not
// answer.
const forceAfter = 20 * time.Second

var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
	"strictatime": unix.MS_STRICTATIME, "lazytime": unix.MS_LAZYTIME, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
	"nosuid": unix.MS_NOSUID, "sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC,
}

// Mount implements Mounter.
func (Kernel) Mount(ctx context.Context, m Mount, finished func()) error {
	flags, data, err := arguments(ctx, m, net.DefaultResolver.LookupHost)
	if err != nil {
		finished()
		return err
	}
	return within(ctx, finished, func() error {
		if err := unix.Mount(m.Source, m.Target, "nfs", flags, data); err != nil {
			return fmt.Errorf("mount -t nfs -o %s %s: %w", data, m.Source, err)
		}
		return nil
	})
}

// arguments returns the arguments of mount(2). The kernel takes an address and resolves no names.
func arguments(
	ctx context.Context, m Mount, lookup func(context.Context, string) ([]string, error),
) (flags uintptr, data string, err error) {
	addrs, err := lookup(ctx, m.Server)
	if err != nil {
		return 0, "", fmt.Errorf("the address of the server: %w", err)
	}
	for _, f := range m.Options.Flags {
		flags |= mountFlags[f]
	}
	return flags, strings.Join(append(m.Options.Data[:len(m.Options.Data):len(m.Options.Data)], "addr="+addrs[0]),
		","), nil
}

// Unmount implements Mounter. If the server does not answer, the kernel drops waiting calls after
// forceAfter.
func (Kernel) Unmount(ctx context.Context, target string, finished func()) error {
	return within(ctx, finished, func() error {
		force := time.AfterFunc(forceAfter, func() { _ = unix.Unmount(target, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW) })
		defer force.Stop()
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		if err == unix.EINVAL { // somebody else, or the timer, was first
			return nil
		}
		return err
	})
}

// Mounts implements Mounter.
func (Kernel) Mounts() ([]Mounted, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountinfo(string(b))
}

// parseMountinfo reads proc_pid_mountinfo(5).
func parseMountinfo(text string) (list []Mounted, err error) {
	for line := range strings.Lines(text) { // a line can have any length: an overlay's line names all of its layers
		line = strings.TrimSuffix(line, "\n")
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 2 {
			return nil, fmt.Errorf("mountinfo: %q", line)
		}
		m := Mounted{Target: unescape(f[4]), Type: g[0], Source: unescape(g[1])}
		for _, o := range strings.Split(f[5], ",") {
			m.ReadOnly = m.ReadOnly || o == "ro"
		}
		list = append(list, m)
	}
	return list, nil
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`).Replace

// Usage implements Mounter.
func (Kernel) Usage(ctx context.Context, path string, finished func()) (u Usage, err error) {
	s := new(unix.Statfs_t) // not shared with later calls: the system call may return late
	if err = within(ctx, finished, func() error { return unix.Statfs(path, s) }); err != nil {
		return u, err
	}
	size := uint64(s.Frsize)
	if size == 0 {
		size = uint64(s.Bsize)
	}
	return Usage{
		TotalBytes: s.Blocks * size, AvailBytes: s.Bavail * size, UsedBytes: (s.Blocks - min(s.Bfree, s.Blocks)) * size,
		TotalFiles: s.Files, FreeFiles: s.Ffree, UsedFiles: s.Files - min(s.Ffree, s.Files),
	}, nil
}

// sharedMode are the mode bits of a directory that a group shares: all permissions for the group,
// and set-group-ID, so that new files belong to the group.
const sharedMode = unix.S_ISGID | unix.S_IRWXG

// Grant implements Mounter. If the server refuses the change, Grant succeeds nevertheless for a
// directory that the members of the group can use already.
func (Kernel) Grant(ctx context.Context, path string, gid uint32, finished func()) error {
	return within(ctx, finished, func() error {
		var s unix.Stat_t
		if err := unix.Lstat(path, &s); err != nil {
			return err
		}
		if s.Gid == gid && s.Mode&sharedMode == sharedMode {
			return nil
		}
		err := unix.Lchown(path, -1, int(gid))
		if err == nil {
			err = unix.Chmod(path, s.Mode&0o7777|sharedMode)
		}
		usable := s.Mode&unix.S_IRWXO == unix.S_IRWXO || s.Gid == gid && s.Mode&unix.S_IRWXG == unix.S_IRWXG
		if (err == unix.EPERM || err == unix.EACCES) && usable {
			return nil
		}
		return err
	})
}

// within runs a system call that can wait for a server without limit. It returns when ctx ends,
// even if the call has not returned. It calls finished when the system call has returned, which can
// be later.
func within(ctx context.Context, finished func(), call func() error) error {
	done := make(chan error, 1)
	go func() {
		defer finished()
		done <- call()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the server does not answer: %w", errors.Join(context.Cause(ctx), ctx.Err()))
	}
}
