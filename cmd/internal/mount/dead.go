package mount

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// clearTime bounds how long clearDead waits for an answer at the directory.
const clearTime = 2 * time.Second

// clearDead unmounts from a directory what processes have left there that ended without an unmount, as
// after a kill. Programs that have files open there keep them: all they do with them fails with
// ENOTCONN. A mount whose process lives stays.
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
	go func() { // at a mount that lives it waits for the server; attributes could come from a cache
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
