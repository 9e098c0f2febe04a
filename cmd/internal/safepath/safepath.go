package safepath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// linksMax is the most symbolic links that a path may lead through, as in the kernel.
const linksMax = 40

// overflow is the user ID that the kernel shows for owners without an ID in this user namespace.
const overflow = 65534

// Check returns nil if the path exists and only root and the owners can change what it leads to. A
// world-writable directory on the way is accepted if it is sticky, like /tmp: there users can
// replace only their own files.
func Check(path string, owners ...uint32) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s is not an absolute path", path)
	}
	rest := split(path)
	at := "/"
	for links := 0; ; {
		st, err := os.Lstat(at)
		if err != nil {
			return err
		}
		if st.Mode().Type() == fs.ModeSymlink {
			if links++; links > linksMax {
				return &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
			}
			to, err := os.Readlink(at)
			if err != nil {
				return err
			}
			if !filepath.IsAbs(to) {
				to = filepath.Dir(at) + "/" + to
			}
			// A link can be changed by its owner, checked here, and through its directory, checked
			// before.
			if err := owned(at, st, owners); err != nil {
				return err
			}
			rest, at = append(split(to), rest...), "/"
			continue
		}
		if err := owned(at, st, owners); err != nil {
			return err
		}
		sticky := st.IsDir() && st.Mode()&fs.ModeSticky != 0 && len(rest) > 0
		if st.Mode().Perm()&others(st) != 0 && !sticky {
			return fmt.Errorf("%s can be written by others than its owner (mode %04o)", at, st.Mode().Perm())
		}
		if len(rest) == 0 {
			return nil
		}
		if rest[0] == ".." {
			at = filepath.Dir(at)
		} else {
			at = filepath.Join(at, rest[0])
		}
		rest = rest[1:]
	}
}

// Me returns the owners besides root whose files this process may execute: its own user, unless it
// has capabilities that its user lacks.
func Me() []uint32 {
	uid := uint32(os.Geteuid())
	if uid == 0 || privileged() {
		return nil
	}
	return []uint32{uid}
}

func privileged() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return true
	}
	return data[0].Permitted|data[1].Permitted != 0
}

func split(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" || s == "." })
}

func owned(at string, st fs.FileInfo, owners []uint32) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("the owner of " + at + " is not known")
	}
	if sys.Uid != 0 && !slices.Contains(owners, sys.Uid) && !(sys.Uid == overflow && outside()) {
		return fmt.Errorf("%s belongs to user %d", at, sys.Uid)
	}
	return nil
}

// others are the permission bits by which other users can write. A private group, with the number
// of the user, counts as the user.
func others(st fs.FileInfo) fs.FileMode {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != 0 && sys.Gid == sys.Uid {
		return 0o002
	}
	return 0o022
}

// outside reports whether the overflow user stands for users of the outer user namespace, root
// among them. No process in this namespace can have that ID.
func outside() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		var in, out, n uint64
		if _, err := fmt.Sscan(line, &in, &out, &n); err != nil || in <= overflow && overflow < in+n {
			return false
		}
	}
	return true
}
