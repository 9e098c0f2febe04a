package posixfs

import (
	"runtime"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.Quotas = (*FS)(nil)

// dqblk is struct if_dqblk of quotactl(2). Limits are in blocks of 1024 bytes.
type dqblk struct {
	hard, soft, space     uint64
	ihard, isoft, inodes  uint64
	spaceTime, inodesTime uint64
	valid                 uint32
	_                     uint32
}

const (
	quotaGet   = 0x800007 // Q_GETQUOTA
	quotaUser  = 0        // USRQUOTA
	quotaBlock = 1024
	// quotaProbe is a user other than that of the daemon. A daemon that may read only its own quota
	// cannot serve quotas.
	quotaProbe = 65534
)

// getQuota returns the quota of a user in the filesystem of a descriptor, which may be O_PATH
// (quotactl_fd(2), since Linux 5.14).
func getQuota(fd int, uid uint32) (d dqblk, err error) {
	_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), quotaGet<<8|quotaUser, uintptr(uid),
		uintptr(unsafe.Pointer(&d)), 0, 0)
	if e != 0 {
		return d, e
	}
	return d, nil
}

// quotas reads quotas. Tests replace get.
type quotas struct {
	get func(fd int, uid uint32) (dqblk, error)
}

// found reports whether there are quotas of users.
func (q *quotas) found(fd int) bool {
	_, err := q.get(fd, quotaProbe)
	return err == nil || err == unix.ENOENT // XFS has no quota of that user yet
}

// quotaOf calls getQuota with the identity of the user, because users may read their own quota
// without privileges.
func (k *caller) quotaOf(fd int, uid uint32) (d dqblk, err error) {
	if !k.on || uid == k.uid {
		return getQuota(fd, uid)
	}
	switch uid {
	case noID:
		return d, unix.EPERM
	case 0:
		// The kernel removes all capabilities for good from a thread that stops being root, so this
		// thread ends.
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked
			if err = unix.EPERM; setEUID(uid) {
				d, err = getQuota(fd, uid)
			}
		}()
		<-done
		return d, err
	}
	k.onThread(func() (clean bool) {
		if !setEUID(uid) {
			err = unix.EPERM
			return true
		}
		d, err = getQuota(fd, uid)
		return setEUID(k.uid)
	})
	return d, err
}

// Quota implements blockstore.Quotas.
func (f *FS) Quota(c *blockstore.Cred, h blockstore.Handle) (blockstore.Quota, error) {
	if !f.limits.Quotas {
		return blockstore.Quota{}, blockstore.ErrNotSupp
	}
	o, err := f.acquire(h)
	if err != nil {
		return blockstore.Quota{}, err
	}
	defer f.release(o)
	d, err := f.quotas.get(o.path, c.UID)
	switch err {
	case nil:
	case unix.ENOENT, unix.ESRCH: // the user has no files there, or quotas were turned off
		return blockstore.Quota{}, nil
	default:
		return blockstore.Quota{}, mapErr(err)
	}
	return d.quota(), nil
}

// quota converts what quotactl(2) returns.
func (d *dqblk) quota() blockstore.Quota {
	bytes := func(blocks uint64) uint64 {
		if blocks > 1<<53 {
			return 0
		}
		return blocks * quotaBlock
	}
	return blockstore.Quota{
		Used: d.space, Soft: bytes(d.soft), Hard: bytes(d.hard),
		Files: d.inodes, FilesSoft: d.isoft, FilesHard: d.ihard,
		Until: int64(d.spaceTime), FilesUntil: int64(d.inodesTime),
	}
}

// hasClones reports whether files of a filesystem can share blocks. It tries with two files
// without names (O_TMPFILE).
func hasClones(fd int) bool {
	var files [2]int
	for i := range files {
		tmp, err := unix.Open(procPath(fd), unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return false
		}
		defer unix.Close(tmp)
		files[i] = tmp
	}
	return unix.IoctlFileClone(files[1], files[0]) == nil
}
