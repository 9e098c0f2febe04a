package desired

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// mountInfo lists the mounts of the host (proc(5)). poll(2) of it returns when they change.
const mountInfo = "/proc/self/mountinfo"

// Mount is something that is mounted on the host.
type Mount struct{ At, Kind, Source string }

// HostMounts are the mounts of the host in the order in which they were made; none if they
// cannot be read.
func HostMounts() []Mount {
	b, err := os.ReadFile(mountInfo)
	if err != nil {
		return nil
	}
	return parseMounts(string(b))
}

// parseMounts reads a mountinfo of proc(5).
func parseMounts(text string) (out []Mount) {
	const at = 4
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if i := slices.Index(f, "-"); i > at && i+2 < len(f) {
			out = append(out, Mount{At: config.Unescape(f[at]), Kind: f[i+1], Source: config.Unescape(f[i+2])})
		}
	}
	return out
}

// notFiles are the types of file systems that are of no use over NFS.
var notFiles = []string{
	"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
	"fusectl", "hugetlbfs",
	"mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "sysfs", "tracefs",
}

// mountsMax bounds the exports that crossmnt adds.
const mountsMax = 256

// Within is the path of a file below a directory, without a slash before it.
func Within(dir, file string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(file, strings.TrimSuffix(dir, "/")+"/")
	return rest, ok && rest != ""
}

// mountedBelow returns an export for each file system that is mounted below an export with
// crossmnt. It has the rules of that export. A mount that has an export of its own is left out, and
// so are the mounts below it: the options of that export decide about them.
func mountedBelow(list []control.Export, mounts []Mount) (out []control.Export) {
	seen := make(map[string]bool)
	for i := range list {
		seen[list[i].Path] = list[i].Type == config.TypePosix
		seen[list[i].Pseudo] = true
	}
	for _, m := range mounts {
		var over *control.Export
		for i := range list {
			e := &list[i]
			if _, ok := Within(e.Path, m.At); ok && e.Type == config.TypePosix && (over == nil || len(e.Path) > len(over.Path)) {
				over = e
			}
		}
		if over == nil || !over.CrossMnt || slices.Contains(notFiles, m.Kind) || seen[m.At] || len(out) == mountsMax ||
			path.Base(path.Dir(m.At)) == SnapshotDir {
			continue
		}
		rest, _ := Within(over.Path, m.At)
		e := control.Export{Export: over.Export, Origin: control.OriginMount, Aliases: []string{}}
		e.Path, e.Pseudo, e.FSID, e.MountPoint = m.At, path.Join(over.Pseudo, rest), "", ""
		if seen[e.Pseudo] {
			continue
		}
		seen[m.At], seen[e.Pseudo] = true, true
		if e.Path != e.Pseudo && !seen[e.Path] {
			e.Aliases = append(e.Aliases, e.Path)
		}
		out = append(out, e)
	}
	slices.SortStableFunc(out, func(a, b control.Export) int { return cmp.Compare(a.Pseudo, b.Pseudo) })
	return out
}

// Bypassed returns the exports that lie in another export and in its file system, and have stricter
// rules than that export. Clients of the outer export reach them by the outer rules. As with the
// kernel's server only a mount separates exports.
func Bypassed(list []control.Export, mounts []Mount) (out []string) {
	for i := range list {
		e := &list[i]
		for j := range list {
			over := &list[j]
			rest, in := Within(over.Path, e.Path)
			if !in || e.Origin == control.OriginSnapshot || e.Type != config.TypePosix ||
				over.Type != config.TypePosix || !e.Confines(&over.Export) ||
				slices.ContainsFunc(mounts, func(m Mount) bool {
					at, between := Within(over.Path, m.At)
					return between && (at == rest || strings.HasPrefix(rest, at+"/"))
				}) {
				continue
			}
			out = append(out, fmt.Sprintf("export %s lies in export %s and in the same file system: clients of %s reach it "+
				"by the rules of that one, which let them do more; give it a file system of its own, or %s its rules",
				e.Pseudo, over.Pseudo, over.Pseudo, over.Pseudo))
		}
	}
	return out
}

// MountedAt is an error if an export wants something to be mounted that is not.
func MountedAt(e *config.Export, mounts []Mount) error {
	if e.MountPoint == "" || e.Type != config.TypePosix {
		return nil
	}
	at := e.MountPoint
	if at == "." {
		at = e.Path
	}
	if slices.ContainsFunc(mounts, func(m Mount) bool { return m.At == path.Clean(at) }) {
		return nil
	}
	return fmt.Errorf("nothing is mounted at %s", at)
}

// MountWatcher calls a function whenever the mounts of the host have changed.
type MountWatcher struct {
	wake int // an eventfd that ends it
	once sync.Once
	done chan struct{}
}

// settle is the time between a change and the call of the function, because changes often come in
// groups.
const settle = 100 * time.Millisecond

// WatchMounts starts a watcher. It returns nil if the host does not report changes.
func WatchMounts(changed func()) *MountWatcher {
	info, err := unix.Open(mountInfo, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(info)
		return nil
	}
	w := &MountWatcher{wake: wake, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		defer unix.Close(info)
		for {
			fds := []unix.PollFd{{Fd: int32(info), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}
			if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
				return
			}
			if fds[1].Revents != 0 {
				return
			}
			if fds[0].Revents != 0 {
				time.Sleep(settle)
				changed()
			}
		}
	}()
	return w
}

// Stop ends the watcher.
func (w *MountWatcher) Stop() {
	if w == nil {
		return
	}
	w.once.Do(func() {
		_, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		<-w.done
		unix.Close(w.wake)
	})
}
