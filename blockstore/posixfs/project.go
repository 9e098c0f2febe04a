package posixfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.ProjectQuotas = (*FS)(nil)

// fsxattr is struct fsxattr of the ioctls FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR.
type fsxattr struct {
	flags, extsize, nextents, project, cowextsize uint32
	_                                             [8]byte
}

const (
	fsGetXattr = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr = 0x401c5820 // FS_IOC_FSSETXATTR
	// projectInherit is FS_XFLAG_PROJINHERIT: new files in the directory are in its project, and
	// statfs(2) of the directory has the size of the project's quota.
	projectInherit = 0x200

	quotaSet      = 0x800008 // Q_SETQUOTA
	quotaProject  = 2        // PRJQUOTA
	quotaLimits   = 1        // QIF_BLIMITS
	projectOurs   = 1 << 31  // in the numbers of projects that are chosen here
	projectTrials = 16
)

// projects are the system calls for quotas of projects. Tests replace them.
type projects struct {
	get   func(fd int) (fsxattr, error)
	set   func(fd int, x fsxattr) error
	quota func(fd int, project uint32) (dqblk, error)
	limit func(fd int, project uint32, d dqblk) error
}

var kernelProjects = projects{
	get: func(fd int) (x fsxattr, err error) {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsGetXattr, uintptr(unsafe.Pointer(&x)))
		return x, errnoOf(e)
	},
	set: func(fd int, x fsxattr) error {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsSetXattr, uintptr(unsafe.Pointer(&x)))
		return errnoOf(e)
	},
	quota: func(fd int, project uint32) (d dqblk, err error) {
		_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), quotaGet<<8|quotaProject, uintptr(project),
			uintptr(unsafe.Pointer(&d)), 0, 0)
		return d, errnoOf(e)
	},
	limit: func(fd int, project uint32, d dqblk) error {
		_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), quotaSet<<8|quotaProject, uintptr(project),
			uintptr(unsafe.Pointer(&d)), 0, 0)
		return errnoOf(e)
	},
}

func errnoOf(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// SetProjectQuota bounds what the files of the export may take, in bytes, by a quota of the
// directory's project; 0 is no bound. A directory without a project gets one, if it is empty:
// existing files would not count. The same holds for a directory in the project of its parent,
// because the bound of the parent is never changed. SetProjectQuota needs CAP_SYS_ADMIN, and a file
// system with quotas of projects.
func (f *FS) SetProjectQuota(bytes uint64) error {
	d, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return kernelProjects.bound(d, bytes)
}

// ProjectQuota implements blockstore.ProjectQuotas. A daemon without CAP_SYS_ADMIN may not read
// quotas of projects. It returns what statfs(2) says of the directory: the size of the quota, or of
// the file system if that is smaller.
func (f *FS) ProjectQuota(dir blockstore.Handle) (blockstore.Quota, error) {
	o, err := f.acquire(dir)
	if err != nil {
		return blockstore.Quota{}, err
	}
	defer f.release(o)
	d, err := os.OpenFile(procPath(o.path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return blockstore.Quota{}, mapErr(err)
	}
	defer func() { _ = d.Close() }()
	fd := int(d.Fd())
	x, err := kernelProjects.get(fd)
	if err != nil || x.project == 0 || x.flags&projectInherit == 0 {
		return blockstore.Quota{}, nil
	}
	q, err := kernelProjects.quota(fd, x.project)
	switch {
	case err == nil:
		return q.quota(), nil
	case !errors.Is(err, unix.EPERM):
		return blockstore.Quota{}, nil // quotas are off
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(fd, &s); err != nil {
		return blockstore.Quota{}, mapErr(err)
	}
	unit := uint64(s.Bsize)
	return blockstore.Quota{
		Used: (s.Blocks - min(s.Bfree, s.Blocks)) * unit, Hard: s.Blocks * unit,
		Files: s.Files - min(s.Ffree, s.Files), FilesHard: s.Files,
	}, nil
}

// bound is SetProjectQuota for an open directory.
func (p *projects) bound(d *os.File, bytes uint64) error {
	fd := int(d.Fd())
	x, err := p.get(fd)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return errors.New("the file system has no projects: quotas of directories need ext4 with the features project and " +
			"quota, or XFS")
	}
	if err != nil {
		return fmt.Errorf("reading the project of the directory: %w", err)
	}
	inherited, err := p.inherited(d, x)
	if err != nil {
		return err
	}
	if inherited || x.project == 0 || x.flags&projectInherit == 0 {
		if bytes == 0 {
			return nil
		}
		if err := p.join(d, x, inherited); err != nil {
			return err
		}
		if x, err = p.get(fd); err != nil {
			return err
		}
	}
	// Blocks are rounded up, so that the bound is not below what was asked for.
	err = p.limit(fd, x.project, dqblk{hard: (bytes + quotaBlock - 1) / quotaBlock, valid: quotaLimits})
	return quotaError(err)
}

// inherited reports whether a directory is in the project of its parent. Files of other directories
// then count for the project too.
func (p *projects) inherited(d *os.File, x fsxattr) (bool, error) {
	if x.project == 0 {
		return false, nil
	}
	up, err := unix.Openat(int(d.Fd()), "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("opening the directory above %s: %w", d.Name(), err)
	}
	defer func() { _ = unix.Close(up) }()
	var s, above unix.Stat_t
	if err := errors.Join(unix.Fstat(int(d.Fd()), &s), unix.Fstat(up, &above)); err != nil {
		return false, err
	}
	// Above the root of a file system are other projects.
	if s.Dev != above.Dev || s.Ino == above.Ino {
		return false, nil
	}
	y, err := p.get(up)
	if err != nil {
		return false, fmt.Errorf("reading the project of the directory above %s: %w", d.Name(), err)
	}
	return y.project == x.project && y.flags&projectInherit != 0, nil
}

// join puts an empty directory into a project of its own. A directory that has a project number,
// and has not inherited it, keeps the number.
func (p *projects) join(d *os.File, x fsxattr, inherited bool) error {
	if _, err := d.Readdirnames(1); !errors.Is(err, io.EOF) {
		why := "no project, so that they would not count"
		if inherited {
			why = fmt.Sprintf("only the project %d of the directory above it, which the quota would bound as a whole", x.project)
		}
		return errors.Join(err, fmt.Errorf("the directory %s has files and %s: put them into a project of their own by "+
			"'chattr -R -p NUMBER +P DIR' on ext4, or by 'xfs_quota -x -c \"project -s -p DIR NUMBER\"' on XFS", d.Name(), why))
	}
	fd := int(d.Fd())
	if x.project == 0 || inherited {
		var err error
		if x.project, err = p.free(d); err != nil {
			return err
		}
	}
	x.flags |= projectInherit
	if err := p.set(fd, x); err != nil {
		return fmt.Errorf("putting the directory into a project: %w", err)
	}
	return nil
}

// free chooses a project number that no file or directory has.
func (p *projects) free(d *os.File) (uint32, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &s); err != nil {
		return 0, err
	}
	n := projectOurs | uint32(s.Ino^s.Ino>>32)
	for range projectTrials {
		q, err := p.quota(int(d.Fd()), n)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return 0, quotaError(err)
		}
		if q.space == 0 && q.inodes == 0 {
			return n, nil
		}
		n = projectOurs | (n + 1)
	}
	return 0, fmt.Errorf("no free number of a project was found for %s in %d trials: choose one, by "+
		"'chattr -p NUMBER +P DIR' on ext4, or by 'xfs_quota -x -c \"project -s -p DIR NUMBER\"' on XFS",
		d.Name(), projectTrials)
}

// quotaError says what to do about an error of quotactl(2).
func quotaError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("setting a quota needs CAP_SYS_ADMIN: %w", err)
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTTY):
		return fmt.Errorf("quotas of projects are off on the file system: mount it with prjquota: %w", err)
	}
	return fmt.Errorf("setting a quota: %w", err)
}
