package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/cli"
)

// endTime bounds how long umount waits for the process of the mount to write the remaining data.
const endTime = 15 * time.Second

func umountCommand() *cobra.Command {
	var force, lazy bool
	c := &cobra.Command{
		Use: "umount DIR...", Short: "Unmount directories that rstorectl has mounted", Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			var errs []error
			for _, a := range args {
				dir, err := absolute(a)
				if err == nil {
					err = umount(dir, force, lazy)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	c.Long = "Unmount directories that rstorectl has mounted. It never waits for the server. A directory that is in use " +
		"stays mounted, and the command names the processes. It cleans up after a process of a mount that has ended."
	f := c.Flags()
	f.BoolVarP(&force, "force", "f", false, "end all calls that wait, and lose what has not been written")
	f.BoolVarP(&lazy, "lazy", "l", false, "take the mount out of the tree now; it ends when nobody uses it any more")
	return c
}

func umount(dir string, force, lazy bool) error {
	m, err := find(dir)
	if err != nil {
		return err
	}
	switch {
	case force:
		abort(m)
		if gone(m) {
			return nil
		}
		return fmt.Errorf("%s is still mounted", dir)
	case lazy:
		return detachMount(dir)
	}
	pid := allPublished()[m.minor].PID
	err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EPERM) {
		err = fusermount("-u", dir)
	}
	if gone(m) {
		waitForEnd(pid)
		return nil
	}
	if users := usersOf(dir); len(users) > 0 {
		return fmt.Errorf("%s is in use by %s; --lazy or --force unmount it nevertheless", dir, strings.Join(users, ", "))
	}
	return fmt.Errorf("unmounting %s: %w", dir, err)
}

// gone reports whether a mount is no longer there. Another mount can be below it.
func gone(m entry) bool {
	list, err := allMounts()
	return err == nil && !slices.ContainsFunc(list, func(e entry) bool { return e.minor == m.minor && e.dir == m.dir })
}

// waitForEnd waits until the process of a mount has written the remaining data. The process then
// removes its socket.
func waitForEnd(pid int) {
	dir, err := stateDir()
	if err != nil || pid == 0 {
		return
	}
	for end := time.Now().Add(endTime); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(socketOf(dir, pid)); err != nil || unix.Kill(pid, 0) == unix.ESRCH {
			return
		}
	}
}

// usersMax bounds how many processes a message names.
const usersMax = 5

// usersOf names processes that have open files or their working directory below a directory. It
// reads only links of /proc, which makes no call to the file system there.
func usersOf(dir string) (list []string) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range names {
		links, _ := filepath.Glob(p + "/fd/*")
		for _, l := range append(links, p+"/cwd", p+"/root") {
			to, err := os.Readlink(l)
			if err != nil || to != dir && !strings.HasPrefix(to, dir+"/") {
				continue
			}
			comm, _ := os.ReadFile(p + "/comm")
			list = append(list, fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(comm)), filepath.Base(p)))
			break
		}
	}
	slices.Sort(list)
	if len(list) > usersMax {
		list = append(list[:usersMax], fmt.Sprintf("and %d more", len(list)-usersMax))
	}
	return list
}
