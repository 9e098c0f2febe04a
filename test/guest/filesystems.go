package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// smallFS is a file system of 16 MiB and 200 files.
func smallFS(r *Run) (func() error, error) {
	return unmount(r.Exports), syscall.Mount("small", r.Exports, "tmpfs", 0, "size=16m,nr_inodes=200,mode=755")
}

// quotaFS is a file system of which 8 MiB may be used. Btrfs keeps quotas by itself;
// the others want more of the host's kernel than it may have.
func quotaFS(r *Run) (func() error, error) {
	return btrfs(r, 128<<20, "-M", func(top string) [][]string {
		return [][]string{{"btrfs", "quota", "enable", top}, {"btrfs", "qgroup", "limit", "8M", top + "/exports"}}
	})
}

// btrfsFS is a file system that can share blocks between files.
func btrfsFS(r *Run) (func() error, error) {
	return btrfs(r, 256<<20, "-n16k", func(string) [][]string { return nil })
}

// btrfs makes a subvolume of a new btrfs of so many bytes the exports, and runs more
// commands on the file system mounted at top.
func btrfs(r *Run, size int64, option string, more func(top string) [][]string) (func() error, error) {
	image, top := r.path("image"), r.path("top")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := errors.Join(os.Truncate(image, size), os.Mkdir(top, 0o755)); err != nil {
		return nil, err
	}
	commands := [][]string{
		{"mkfs.btrfs", "-q", option, image},
		{"mount", "-o", "loop", image, top},
		{"btrfs", "subvolume", "create", top + "/exports"},
	}
	commands = append(append(commands, more(top)...), []string{"mount", "--bind", top + "/exports", r.Exports})
	for _, args := range commands {
		if _, err := output(exec.Command(args[0], args[1:]...)); err != nil {
			return nil, errors.Join(err, syscall.Unmount(top, syscall.MNT_DETACH))
		}
	}
	return func() error { return errors.Join(unmount(r.Exports)(), unmount(top)()) }, nil
}

func unmount(dir string) func() error {
	return func() error { return syscall.Unmount(dir, syscall.MNT_DETACH) }
}

// nothingLeft holds what the daemon has when no client is there any more against
// what it had at the start.
func nothingLeft(ctx context.Context, r *Run) error {
	before, err := r.holdings()
	if err != nil {
		return err
	}
	if err := r.Await(ctx, "gone"); err != nil {
		return err
	}
	after, err := r.holdings()
	if err != nil {
		return err
	}
	clients, err := r.CtlOutput("clients", "-o", "json")
	if err != nil {
		return err
	}
	r.Logf("%+v, then %+v; clients %s", before, after, clients)
	if err := after.leftover(before); err != nil {
		return err
	}
	if strings.Contains(clients, guestAddr(0)) {
		return fmt.Errorf("the daemon still has a client: %s", clients)
	}
	return r.Tell("checked")
}

// seesXattrs looks for what a guest has set in the file itself, and adds to it.
func seesXattrs(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "changed"); err != nil {
		return err
	}
	file := filepath.Join(r.Exports, "file")
	b := make([]byte, 16)
	n, err := syscall.Getxattr(file, "user.many-19", b)
	if err != nil || string(b[:n]) != "v19" {
		return fmt.Errorf("the file has %q, %w", b[:max(n, 0)], err)
	}
	if err := syscall.Setxattr(file, "user.host", []byte("host"), 0); err != nil {
		return err
	}
	return r.Tell("seen")
}

// standsStill stops the daemon for longer than the client's connection endures.
func standsStill(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "loaded"); err != nil {
		return err
	}
	if err := r.Sleep(ctx, time.Second); err != nil {
		return err
	}
	if err := r.SignalDaemon(syscall.SIGSTOP); err != nil {
		return err
	}
	err := r.Sleep(ctx, 30*time.Second)
	return errors.Join(err, r.SignalDaemon(syscall.SIGCONT))
}

// unplugged takes the guest's cable out for twenty seconds, on the host: after "ip
// link set eth0 down" in the guest with a connection in use, rdma_rxe there counts no
// received packet any more, not even of rping. Why is not known.
func unplugged(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "loaded"); err != nil {
		return err
	}
	if err := r.Sleep(ctx, time.Second); err != nil {
		return err
	}
	if err := ip("-n", r.ns, "link", "set", "tap0", "nomaster"); err != nil {
		return err
	}
	err := r.Sleep(ctx, 20*time.Second)
	return errors.Join(err, ip("-n", r.ns, "link", "set", "tap0", "master", "br0"))
}
