package mount

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// clearTime bounds how long clearDead waits for an answer at the directory.
const clearTime = 2 * time.Second

// clearDead unmounts the mounts at a directory whose processes ended without an unmount, for
// example by a kill. Programs with open files there keep them, but every call on these files fails
// with ENOTCONN. A mount with a running process stays.
func clearDead(dir string) error {
	for {
		m, err := find(dir)
		if err != nil {
			return nil //nolint:nilerr // nothing is mounted there
		}
		if _, lives := allPublished()[m.minor]; lives || !disconnected(dir) {
			return nil
		}
		if err := detachMount(dir); err != nil {
			return fmt.Errorf("unmounting %s, whose process has ended: %w", dir, err)
		}
	}
}

// disconnected reports whether the kernel has no process for the mount at a directory.
func disconnected(dir string) bool {
	answer := make(chan error, 1)
	go func() { // a running mount waits for its server here; attributes could come from a cache
		var st unix.Statfs_t
		answer <- unix.Statfs(dir, &st)
	}()
	select {
	case err := <-answer:
		return errors.Is(err, unix.ENOTCONN)
	case <-time.After(clearTime):
		return false
	}
}
