package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// hostRange is a lock of this process, which is a program on the server's host like any other.
type hostRange struct {
	typ        int16
	start, len int64
	free       bool // it can be had
}

// hostTakes takes locks of a file by fcntl and checks which can be had.
func hostTakes(f *os.File, list ...hostRange) error {
	for _, l := range list {
		err := unix.FcntlFlock(f.Fd(), unix.F_SETLK,
			&unix.Flock_t{Type: l.typ, Whence: unix.SEEK_SET, Start: l.start, Len: l.len})
		busy := errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES)
		if err != nil && !busy {
			return err
		}
		if busy == l.free {
			return fmt.Errorf("on the host, a lock of type %d on %d bytes at %d is busy: %v", l.typ, l.len, l.start, busy)
		}
	}
	return nil
}

// locksOnHost locks the file that a guest locks, on the host.
func locksOnHost(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "made"); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(r.Exports, "file"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// A guest that has the file delegated would lock it without a word.
	if err := r.Command(ctx, "rstorectl", "get", "--nfs-version", "3", "nfs+tcp://"+HostAddr+"/e/file",
		filepath.Join(r.Share, "got")); err != nil {
		return err
	}
	if err := r.Tell("ready"); err != nil {
		return err
	}
	all := hostRange{unix.F_UNLCK, 0, 0, true}
	for _, s := range []struct {
		when, then string
		takes      []hostRange
	}{
		{"locked", "seen", []hostRange{
			{unix.F_WRLCK, 0, 1, false},
			{unix.F_RDLCK, 9, 1, false},
			{unix.F_WRLCK, 10, 1, false},
			{unix.F_RDLCK, 10, 10, true},
			{unix.F_WRLCK, 20, 0, true},
			all,
		}},
		{"half", "half-seen", []hostRange{
			{unix.F_WRLCK, 0, 5, true},
			{unix.F_RDLCK, 5, 1, false},
			{unix.F_WRLCK, 19, 1, false},
			all,
		}},
		{"unlocked", "host-locked", []hostRange{
			{unix.F_WRLCK, 0, 0, true},
			all,
			{unix.F_WRLCK, 0, 10, true},
			{unix.F_RDLCK, 10, 10, true},
		}},
	} {
		if err := r.Await(ctx, s.when); err != nil {
			return err
		}
		if err := hostTakes(f, s.takes...); err != nil {
			return fmt.Errorf("%s: %w", s.when, err)
		}
		if err := r.Tell(s.then); err != nil {
			return err
		}
	}
	if err := r.Await(ctx, "waiting"); err != nil {
		return err
	}
	if err := r.Sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	if err := r.Tell("host-unlocking"); err != nil {
		return err
	}
	if err := hostTakes(f, all); err != nil {
		return err
	}
	if err := r.Await(ctx, "had"); err != nil {
		return err
	}
	if err := hostTakes(f, hostRange{unix.F_RDLCK, 9, 1, false}, hostRange{unix.F_WRLCK, 10, 0, true}, all); err != nil {
		return err
	}
	n, err := r.counts()
	if err != nil {
		return err
	}
	if n.Events["host_lock_conflicts"] == 0 || n.Errors["host_locks_unsupported"]+n.Errors["host_locks_full"] > 0 {
		return fmt.Errorf("events %v, errors %v", n.Events, n.Errors)
	}
	return r.Tell("had-seen")
}
