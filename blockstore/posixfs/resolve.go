package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// maxDepth bounds every walk towards the root.
const maxDepth = 4096

// confine makes openat2 resolve a name below the directory, through no symbolic link of any
// kind, and on the mount of the directory.
const confine = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// probeOpenat2 reports whether openat2 is missing (old kernels, seccomp filters of containers),
// and returns the mount ID of the root.
func probeOpenat2(root int) (missing bool, mountID uint64) {
	fd, err := unix.Openat2(root, ".", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: confine})
	if err == nil {
		unix.Close(fd)
	}
	var sx unix.Statx_t
	if unix.Statx(root, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &sx) == nil && sx.Mask&unix.STATX_MNT_ID != 0 {
		mountID = sx.Mnt_id
	}
	return err != nil, mountID
}

// openName opens one name (O_PATH) below dir. A mount point is EXDEV.
func (f *FS) openName(dir int, name string) (int, error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if !f.noOpenat2 {
		return again(func() (int, error) {
			fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: flags, Resolve: confine})
			if err == unix.EAGAIN {
				// A rename on the host made the kernel unsure about "..", although a single name has none: try
				// again.
				err = unix.EINTR
			}
			if err == unix.EXDEV {
				// A mount point, or the object was renamed to another directory during the lookup, so that the
				// kernel finds it no longer beneath this one.
				var e dirent
				e.name = append([]byte(name), 0)
				var sx unix.Statx_t
				switch errno := e.statx(dir, &sx); {
				case errno != 0:
					err = errno
				case f.ours(&sx):
					err = unix.EINTR // no mount point: try again
				}
			}
			return fd, err
		})
	}
	fd, err := again(func() (int, error) { return unix.Openat(dir, name, flags, 0) })
	if err != nil {
		return -1, err
	}
	if !f.sameMount(fd) {
		unix.Close(fd)
		return -1, unix.EXDEV
	}
	return fd, nil
}

func (f *FS) sameMount(fd int) bool {
	var sx unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID|unix.STATX_INO, &sx) != nil {
		return false
	}
	return f.ours(&sx)
}

// below reports whether a directory is the root or below it. It walks up by "..", and so needs
// no names.
func (f *FS) below(fd int) (bool, error) {
	found, _, err := f.climb(fd, nil)
	return found, err
}

// mustBeBelow returns ErrStale for a directory that is not below the root.
func (f *FS) mustBeBelow(fd int) error {
	ok, err := f.below(fd)
	if err == nil && !ok {
		f.count.outside.Add(1)
		err = blockstore.ErrStale
	}
	return err
}

// above reports whether id is the directory or one of its ancestors in the export, as far as the
// daemon may look. The kernel checks this again in renameat2.
func (f *FS) above(id *ident, fd int) bool {
	_, met, _ := f.climb(fd, id)
	return met
}

// climb walks up from a directory. root says that it has reached the root of the export. met says
// that it has passed the directory id, which may be the first directory or the root.
func (f *FS) climb(fd int, id *ident) (root, met bool, err error) {
	cur, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return false, met, err
	}
	defer func() { unix.Close(cur) }()
	var last unix.Stat_t
	for range maxDepth {
		var st unix.Stat_t
		if err := unix.Fstat(cur, &st); err != nil {
			return false, met, err
		}
		if st.Ino == last.Ino && st.Dev == last.Dev {
			return false, met, nil // the top of the host's tree
		}
		here, err := identify(f.kind, cur, "")
		if err != nil {
			return false, met, err
		}
		met = met || (id != nil && here == *id)
		if here == f.root.id && st.Dev == f.dev {
			return true, met, nil
		}
		last = st
		up, err := again(func() (int, error) {
			return unix.Openat(cur, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		})
		if err != nil {
			return false, met, err
		}
		unix.Close(cur)
		cur = up
	}
	return false, met, nil
}

// byHandle resolves identities by open_by_handle_at.
type byHandle struct {
	fs   *FS
	root int // a descriptor on the mount, which the root object owns
}

func (k *byHandle) openRaw(id *ident) (int, error) {
	return again(func() (int, error) {
		return unix.OpenByHandleAt(k.root, id.kernel(), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	})
}

func (k *byHandle) open(id *ident) (int, error) {
	fd, err := k.openRaw(id)
	if err != nil {
		if err == unix.EINVAL || err == unix.ENOENT {
			err = unix.ESTALE
		}
		return -1, mapErr(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, mapErr(err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Nlink > 0 {
		if err := k.fs.mustBeBelow(fd); err != nil {
			unix.Close(fd)
			return -1, mapErr(err)
		}
	}
	return fd, nil
}

func (k *byHandle) seen(id, parent *ident, name string) {}
func (k *byHandle) knows(*ident, *ident, string) bool   { return true }
func (k *byHandle) gone(id *ident)                      {}
func (k *byHandle) epoch() uint64                       { return 0 }
func (k *byHandle) close() error                        { return nil }
