package snapshot

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/desired"
)

// runner runs a program and returns its standard output.
type runner func(name string, args ...string) (string, error)

func command(name string, args ...string) (string, error) {
	var out, failed bytes.Buffer
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	c.Stdout, c.Stderr = &out, &failed
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%s: %s", name, cmp.Or(strings.TrimSpace(failed.String()), err.Error()))
	}
	return out.String(), nil
}

// zfs makes snapshots of a dataset, and mounts each in the directory.
type zfs struct {
	volume
	run runner
}

func (z *zfs) create(name string) error {
	if _, err := z.run("zfs", "snapshot", z.source+"@"+name); err != nil {
		return err
	}
	return z.mountName(name)
}

func (z *zfs) remove(name string) error {
	if err := z.unmount(z.run, name); err != nil {
		return err
	}
	_, err := z.run("zfs", "destroy", z.source+"@"+name)
	return err
}

func (z *zfs) list() ([]Snapshot, error) {
	out, err := z.run("zfs", "list", "-H", "-p", "-t", "snapshot", "-d", "1", "-o", "name,creation", z.source)
	if err != nil {
		return nil, err
	}
	return parseList(out, "\t", z.source+"@")
}

func (z *zfs) mount() error { return z.mountMissing(z.list, z.mountName) }

func (z *zfs) mountName(name string) error {
	return z.mountAt(z.run, name, "-t", "zfs", "-o", "ro", z.source+"@"+name)
}

// thinLVM makes thin snapshots of a thin logical volume, and mounts each in the directory. lvcreate
// freezes the file system meanwhile, so its journal is empty.
type thinLVM struct {
	volume
	run    runner
	vg, lv string
}

// thin returns the thin logical volume of a mount.
func thin(v volume, run runner) (*thinLVM, error) {
	refuse := func(why string) (*thinLVM, error) {
		return nil, fmt.Errorf("%s is %s on %s: snapshots need btrfs, ZFS or a thin logical volume of LVM%s", v.dir, v.fstype,
			v.source, why)
	}
	if !strings.HasPrefix(v.source, "/dev/") {
		return refuse("")
	}
	const sep = "/"
	out, err := run("lvs", "--noheadings", "--separator", sep, "-o", "vg_name,lv_name,pool_lv", v.source)
	if err != nil {
		return refuse(" (" + err.Error() + ")")
	}
	f := strings.Split(strings.TrimSpace(out), sep)
	if len(f) != 3 || f[2] == "" {
		return refuse(", and this one is in no thin pool")
	}
	return &thinLVM{volume: v, run: run, vg: f[0], lv: f[1]}, nil
}

// infix is between the names of the volume and of its snapshot in that of the logical volume.
const infix = "-rstored-"

func (l *thinLVM) create(name string) error {
	_, err := l.run("lvcreate", "--quiet", "--snapshot", "--setactivationskip", "n", "--name", l.lv+infix+name,
		l.vg+"/"+l.lv)
	if err != nil {
		return err
	}
	return l.mountName(name)
}

func (l *thinLVM) remove(name string) error {
	if err := l.unmount(l.run, name); err != nil {
		return err
	}
	_, err := l.run("lvremove", "--quiet", "--yes", l.vg+"/"+l.lv+infix+name)
	return err
}

func (l *thinLVM) list() ([]Snapshot, error) {
	out, err := l.run("lvs", "--config", `report { time_format="%s" }`, "--noheadings", "--separator", ",",
		"-o", "lv_name,lv_time", "--select", "origin="+l.lv, l.vg)
	if err != nil {
		return nil, err
	}
	return parseList(out, ",", l.lv+infix)
}

func (l *thinLVM) mount() error { return l.mountMissing(l.list, l.mountName) }

func (l *thinLVM) mountName(name string) error {
	options := "ro"
	switch l.fstype {
	case "xfs":
		options += ",norecovery,nouuid" // the UUID is that of the original
	case "ext3", "ext4":
		options += ",noload"
	}
	return l.mountAt(l.run, name, "-t", l.fstype, "-o", options, "/dev/"+l.vg+"/"+l.lv+infix+name)
}

// parseList reads lines with a name and a time in seconds since 1970. Names without the prefix are
// of others.
func parseList(out, sep, prefix string) (list []Snapshot, err error) {
	for line := range strings.Lines(out) {
		name, made, _ := strings.Cut(strings.TrimSpace(line), sep)
		name, ok := strings.CutPrefix(name, prefix)
		if !ok || !names.MatchString(name) {
			continue
		}
		sec, err := strconv.ParseInt(strings.TrimSpace(made), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("when was %s made: %w", name, err)
		}
		list = append(list, Snapshot{Name: name, Made: time.Unix(sec, 0).UTC()})
	}
	return list, nil
}

// mountAt makes the directory of a snapshot and mounts the snapshot there.
func (v *volume) mountAt(run runner, name string, args ...string) error {
	dir := filepath.Join(v.at(), name)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	_, err := run("mount", append(args, dir)...)
	return err
}

// unmount undoes mountAt, also in part. The server may have files of it open, so the mount is
// detached.
func (v *volume) unmount(run runner, name string) error {
	dir := filepath.Join(v.at(), name)
	if mounted(dir) {
		if _, err := run("umount", "--lazy", dir); err != nil {
			return err
		}
	}
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// mountMissing mounts the snapshots of a list that are not mounted.
func (v *volume) mountMissing(list func() ([]Snapshot, error), mount func(name string) error) error {
	all, err := list()
	errs := []error{err}
	if len(all) > 0 {
		errs = append(errs, os.MkdirAll(v.at(), 0o755))
	}
	for _, s := range all {
		if !mounted(filepath.Join(v.at(), s.Name)) {
			errs = append(errs, mount(s.Name))
		}
	}
	return errors.Join(errs...)
}

func mounted(dir string) bool {
	for _, m := range desired.HostMounts() {
		if m.At == dir {
			return true
		}
	}
	return false
}
