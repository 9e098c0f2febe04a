package desired

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// SnapshotDir is the directory of an export that has its snapshots. Each is a subvolume of btrfs,
// or a mount.
const SnapshotDir = ".snapshots"

// snapshotsMax bounds the snapshots of one export that are served: the last ones by name.
const snapshotsMax = 256

// subvolumeIno is the inode number of the root of every subvolume of btrfs.
const subvolumeIno = 256

// Subvolumes returns the names of the subvolumes of btrfs in a directory, sorted.
func Subvolumes(dir string) (names []string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range list {
		if e.IsDir() && IsSubvolume(filepath.Join(dir, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names
}

// IsSubvolume reports whether a directory of btrfs is the root of a subvolume.
func IsSubvolume(dir string) bool {
	st, err := os.Lstat(dir)
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && st.IsDir() && sys.Ino == subvolumeIno
}

// MountOf returns the mount that a directory is in: the one with the longest path, and the last of
// several with that path. ok is false if the mounts are not known.
func MountOf(dir string, mounts []Mount) (m Mount, ok bool) {
	for _, o := range mounts {
		_, below := Within(o.At, dir)
		if (below || o.At == dir) && len(o.At) >= len(m.At) {
			m, ok = o, true
		}
	}
	return m, ok
}

// Snapshots returns the names of the snapshots in the SnapshotDir of a directory, sorted. Only
// btrfs is asked, because the file system could be one that does not answer. Hidden names are no
// snapshots.
func Snapshots(dir string, mounts []Mount, subvolumes func(dir string) []string) (names []string) {
	at := path.Join(dir, SnapshotDir)
	for _, m := range mounts {
		if name, ok := Within(at, m.At); ok && !strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	if m, ok := MountOf(at, mounts); ok && m.Kind == Btrfs {
		names = append(names, subvolumes(at)...)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(n string) bool { return strings.HasPrefix(n, ".") })
}

// Btrfs is the kind of a mount of that file system.
const Btrfs = "btrfs"

// snapshotsBelow returns an export for each snapshot of an export, and one for the directory with
// them. All are read-only. Each is a file system of its own for clients, because its files have the
// same numbers as the originals. Otherwise they have the rules of the export.
func snapshotsBelow(list []control.Export, mounts []Mount, subvolumes func(string) []string) (out []control.Export) {
	if subvolumes == nil {
		return nil
	}
	seen := make(map[string]bool)
	for i := range list {
		seen[list[i].Pseudo] = true
		for _, a := range list[i].Aliases {
			seen[a] = true
		}
	}
	for i := range list {
		over := &list[i]
		if over.Type != config.TypePosix {
			continue
		}
		names := Snapshots(over.Path, mounts, subvolumes)
		names = names[max(len(names)-snapshotsMax, 0):]
		if len(names) == 0 || seen[path.Join(over.Pseudo, SnapshotDir)] {
			continue
		}
		for _, name := range append([]string{"."}, names...) {
			rest := path.Join(SnapshotDir, name)
			e := control.Export{Export: over.Export, Origin: control.OriginSnapshot, Aliases: []string{}}
			e.Path, e.Pseudo = path.Join(over.Path, rest), path.Join(over.Pseudo, rest)
			e.FSID, e.MountPoint, e.Source, e.ReadOnly, e.Async = "", "", "", true, false
			e.Clients = slices.Clone(e.Rules())
			for j := range e.Clients {
				e.Clients[j].NoHide = true // version 3 too finds the snapshots here, and not the directory below
			}
			if e.Path != e.Pseudo && !seen[e.Path] {
				seen[e.Path] = true
				e.Aliases = append(e.Aliases, e.Path)
			}
			out = append(out, e)
		}
	}
	return out
}
