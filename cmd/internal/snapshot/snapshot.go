package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/desired"
)

// Snapshot is a snapshot of an exported directory.
type Snapshot struct {
	Name string    `json:"name"`
	Made time.Time `json:"made"`
}

// Volume makes the snapshots of one directory. Its methods may run in several processes at a time.
type Volume struct {
	volume
	kind kind
}

// volume is what kinds have in common.
type volume struct {
	dir    string // of the export, absolute
	source string // of its mount: a device, or a dataset of ZFS
	fstype string
}

// at is the directory of the snapshots.
func (v *volume) at() string { return filepath.Join(v.dir, desired.SnapshotDir) }

// kind is a way to make snapshots.
type kind interface {
	create(name string) error
	remove(name string) error
	list() ([]Snapshot, error)
}

// Open finds out how snapshots of a directory can be made. The error says what would have to be
// different.
func Open(dir string, mounts []desired.Mount) (*Volume, error) {
	return open(dir, mounts, command)
}

func open(dir string, mounts []desired.Mount, run runner) (*Volume, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	m, ok := desired.MountOf(dir, mounts)
	if !ok {
		return nil, fmt.Errorf("the mount of %s is not known", dir)
	}
	v := &Volume{volume: volume{dir: dir, source: m.Source, fstype: m.Kind}}
	switch {
	case m.Kind == desired.Btrfs:
		if !desired.IsSubvolume(dir) {
			return nil, fmt.Errorf("%s is a directory of btrfs and no subvolume, and only subvolumes have snapshots: "+
				"'btrfs subvolume create' a new one and move the files", dir)
		}
		v.kind = &btrfs{v.volume}
		return v, nil
	case m.At != dir:
		return nil, fmt.Errorf("%s is part of the %s that is mounted at %s: snapshots are of whole file systems, so export "+
			"that, or a file system of its own", dir, m.Kind, m.At)
	case m.Kind == "zfs":
		v.kind = &zfs{v.volume, run}
		return v, nil
	}
	v.kind, err = thin(v.volume, run)
	return v, err
}

// names are those of snapshots. They are also names of logical volumes and of ZFS.
var names = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// ErrExists says that there is a snapshot of that name.
var ErrExists = errors.New("there is a snapshot of that name")

// Create makes a snapshot.
func (v *Volume) Create(name string) error {
	if !names.MatchString(name) {
		return fmt.Errorf("%q: a name of a snapshot has letters, digits and . _ -, begins with a letter or a digit, and has "+
			"at most 63 of them", name)
	}
	err := os.Mkdir(v.at(), 0o755)
	switch {
	case err == nil:
		// Not that of the umask: clients look for names there.
		if err := os.Chmod(v.at(), 0o755); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrExist):
		return err
	}
	st, err := os.Lstat(v.at())
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is not a directory", v.at())
	}
	err = v.kind.create(name)
	if errors.Is(err, unix.EEXIST) {
		err = ErrExists
	}
	if err != nil {
		return fmt.Errorf("snapshot %s of %s: %w", name, v.dir, err)
	}
	return nil
}

// List returns the snapshots, the oldest first.
func (v *Volume) List() ([]Snapshot, error) {
	list, err := v.kind.list()
	slices.SortFunc(list, func(a, b Snapshot) int {
		return cmp.Or(a.Made.Compare(b.Made), cmp.Compare(a.Name, b.Name))
	})
	return list, err
}

// Remove removes a snapshot.
func (v *Volume) Remove(name string) error {
	err := error(unix.ENOENT)
	if names.MatchString(name) {
		err = v.kind.remove(name)
	}
	if errors.Is(err, unix.ENOENT) {
		err = errors.New("there is no such snapshot")
	}
	if err != nil {
		return fmt.Errorf("snapshot %s of %s: %w", name, v.dir, err)
	}
	return nil
}

// Mount mounts the snapshots that are not mounted, as after a restart of the host. Kinds that mount
// nothing need no call.
func (v *Volume) Mount() error {
	if m, ok := v.kind.(interface{ mount() error }); ok {
		return m.mount()
	}
	return nil
}
