package daemon

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs"
)

// mountInfo tells what is mounted where on the host, and wakes up who polls it when that changes.
const mountInfo = "/proc/self/mountinfo"

// mount is something that is mounted on the host.
type mount struct{ at, kind string }

// hostMounts are the mounts of the host in the order in which they were made; none if they
// cannot be read.
func hostMounts() []mount {
	b, err := os.ReadFile(mountInfo)
	if err != nil {
		return nil
	}
	return parseMounts(string(b))
}

// parseMounts reads a mountinfo of proc(5).
func parseMounts(text string) (out []mount) {
	const at = 4
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if i := slices.Index(f, "-"); i > at && i+1 < len(f) {
			out = append(out, mount{config.Unescape(f[at]), f[i+1]})
		}
	}
	return out
}

// notFiles are file systems without files that anybody could want by NFS.
var notFiles = []string{
	"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl", "hugetlbfs",
	"mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "sysfs", "tracefs",
}

// mountsMax bounds what is exported by crossmnt.
const mountsMax = 256

// within is the path of a file below a directory, without a slash before it.
func within(dir, file string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(file, strings.TrimSuffix(dir, "/")+"/")
	return rest, ok && rest != ""
}

// mountedBelow are the exports of what is mounted below exports with crossmnt: by their rules,
// with file systems of their own. What is exported by itself stays as it is, and what is
// below that is its affair.
func mountedBelow(list []control.Export, mounts []mount) (out []control.Export) {
	seen := make(map[string]bool)
	for i := range list {
		seen[list[i].Path] = list[i].Type == config.TypePosix
		seen[list[i].Pseudo] = true
	}
	for _, m := range mounts {
		var over *control.Export
		for i := range list {
			e := &list[i]
			if _, ok := within(e.Path, m.at); ok && e.Type == config.TypePosix && (over == nil || len(e.Path) > len(over.Path)) {
				over = e
			}
		}
		if over == nil || !over.CrossMnt || slices.Contains(notFiles, m.kind) || seen[m.at] || len(out) == mountsMax {
			continue
		}
		rest, _ := within(over.Path, m.at)
		e := control.Export{Export: over.Export, Origin: control.OriginMount, Aliases: []string{}}
		e.Path, e.Pseudo, e.FSID, e.MountPoint = m.at, path.Join(over.Pseudo, rest), "", ""
		if seen[e.Pseudo] {
			continue
		}
		seen[m.at], seen[e.Pseudo] = true, true
		if e.Path != e.Pseudo && !seen[e.Path] {
			e.Aliases = append(e.Aliases, e.Path)
		}
		out = append(out, e)
	}
	slices.SortStableFunc(out, func(a, b control.Export) int { return cmp.Compare(a.Pseudo, b.Pseudo) })
	return out
}

// mountedAt is an error if an export wants something to be mounted that is not.
func mountedAt(e *config.Export, mounts []mount) error {
	if e.MountPoint == "" || e.Type != config.TypePosix {
		return nil
	}
	at := e.MountPoint
	if at == "." {
		at = e.Path
	}
	if slices.ContainsFunc(mounts, func(m mount) bool { return m.at == path.Clean(at) }) {
		return nil
	}
	return fmt.Errorf("nothing is mounted at %s", at)
}

// place is where an export lies in another one: in the nearest around it on the host, where it
// has the same place for clients.
func place(s *served, list []*served) *nfs.Place {
	if s.Type != config.TypePosix {
		return nil
	}
	var over *served
	for _, o := range list {
		if _, ok := within(o.Path, s.Path); ok && o.store != nil && o.Type == config.TypePosix && (over == nil || len(o.Path) > len(over.Path)) {
			over = o
		}
	}
	if over == nil {
		return nil
	}
	rest, _ := within(over.Path, s.Path)
	same := slices.ContainsFunc(append([]string{over.Pseudo}, over.Aliases...), func(n string) bool {
		at := path.Join(n, rest)
		return at == s.Pseudo || slices.Contains(s.Aliases, at)
	})
	if !same {
		return nil
	}
	h, err := over.store.Root()
	if dir := path.Dir(rest); err == nil && dir != "." {
		for name := range strings.SplitSeq(dir, "/") {
			if h, _, err = over.store.Lookup(nil, h, name); err != nil {
				break
			}
		}
	}
	if err != nil || h == (blockstore.Handle{}) {
		return nil // something lies between them that is no directory of the export
	}
	return &nfs.Place{Export: over.ID, Dir: h, Name: path.Base(rest)}
}

// mountWatcher calls a function whenever the mounts of the host have changed.
type mountWatcher struct {
	wake int // an eventfd that ends it
	once sync.Once
	done chan struct{}
}

// settle is how long the mounts are left alone after a change, as several often come at once.
const settle = 100 * time.Millisecond

// watchMounts starts one; nil where the host does not tell.
func watchMounts(changed func()) *mountWatcher {
	info, err := unix.Open(mountInfo, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(info)
		return nil
	}
	w := &mountWatcher{wake: wake, done: make(chan struct{})}
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

func (w *mountWatcher) stop() {
	if w == nil {
		return
	}
	w.once.Do(func() {
		_, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		<-w.done
		unix.Close(w.wake)
	})
}

// mountsChanged brings the exports that depend on mounts in line with them.
func (d *Daemon) mountsChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining.Load() || d.handedOver || !slices.ContainsFunc(d.exports, func(s *served) bool { return s.CrossMnt || s.MountPoint != "" }) {
		return
	}
	if err := d.applyExports(false); err != nil {
		d.log.Warn("after a change of the host's mounts", zap.Error(err))
	}
}
