package posixfs

import (
	"sync"
	"time"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// entryMask asks statx for attributes, and for what distinguishes inodes and mounts.
const entryMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME | unix.STATX_MNT_ID

// statx looks up the entry's name in its directory, without following a link or triggering an
// automount. The name is still followed by the NUL that getdents has put there.
func (d *dirent) statx(dir int, sx *unix.Statx_t) unix.Errno {
	for {
		_, _, e := unix.Syscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(unsafe.SliceData(d.name))),
			unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, entryMask, uintptr(unsafe.Pointer(sx)), 0)
		if e != unix.EINTR {
			return e
		}
	}
}

// statx is dirent.statx. On a filesystem in memory the call never waits, so statx bypasses the Go
// scheduler (RawSyscall6).
func (f *FS) statx(dir int, e *listed, sx *unix.Statx_t) unix.Errno {
	if !f.inMemory {
		return e.dirent.statx(dir, sx)
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(unsafe.SliceData(e.name))),
		unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, entryMask, uintptr(unsafe.Pointer(sx)), 0)
	if errno == unix.EINTR {
		return e.dirent.statx(dir, sx)
	}
	return errno
}

// ours reports whether the object of a statx is on the mount of the export. Files of an overlay
// have the device numbers of their layers, so on an overlay the mount ID alone decides.
func (f *FS) ours(sx *unix.Statx_t) bool {
	known := sx.Mask&unix.STATX_MNT_ID != 0 && f.mountID != 0
	if known && f.layered {
		return sx.Mnt_id == f.mountID
	}
	return unix.Mkdev(sx.Dev_major, sx.Dev_minor) == f.dev && (!known || sx.Mnt_id == f.mountID)
}

// attrOfStatx is attrOf for statx.
func attrOfStatx(sx *unix.Statx_t) blockstore.Attr {
	at := func(t unix.StatxTimestamp) time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }
	return blockstore.Attr{
		Type:   typeOf(uint32(sx.Mode)),
		Mode:   uint32(sx.Mode) & 0o7777,
		NLink:  sx.Nlink,
		UID:    sx.Uid,
		GID:    sx.Gid,
		Size:   sx.Size,
		Used:   sx.Blocks * 512,
		Major:  sx.Rdev_major,
		Minor:  sx.Rdev_minor,
		FileID: sx.Ino,
		Atime:  at(sx.Atime),
		Mtime:  at(sx.Mtime),
		Ctime:  at(sx.Ctime),
	}
}

// incarnation identifies an inode. The number alone is used again after a removal.
type incarnation struct {
	ino  uint64
	dev  uint64 // layers of an overlay have devices and inode numbers of their own
	sec  int64
	nsec uint32
}

// incarnations caches the identities of inodes by what statx returns: the inode number and the
// birth time. To find the identity otherwise needs a descriptor. It caches only inodes that are
// older than grownUp. A later inode with the same number then has a later birth time, however
// coarse the clock is.
type incarnations struct {
	mu sync.RWMutex
	// Two generations of at most incarnationsMax. When recent is full it becomes before, and
	// entries of before that were not used since are dropped.
	recent, before map[incarnation]ident
}

const (
	incarnationsMax = 1 << 17
	grownUp         = 2 * time.Second
)

func (c *incarnations) init() { c.recent = make(map[incarnation]ident) }

func keyOf(sx *unix.Statx_t) (k incarnation, ok bool) {
	if sx.Mask&unix.STATX_BTIME == 0 || sx.Btime == (unix.StatxTimestamp{}) {
		return k, false
	}
	return incarnation{sx.Ino, unix.Mkdev(sx.Dev_major, sx.Dev_minor), sx.Btime.Sec, sx.Btime.Nsec}, true
}

func (c *incarnations) get(sx *unix.Statx_t) (id ident, ok bool) {
	k, ok := keyOf(sx)
	if !ok {
		return id, false
	}
	c.mu.RLock()
	id, ok = c.recent[k]
	old := false
	if !ok {
		id, ok = c.before[k]
		old = ok
	}
	c.mu.RUnlock()
	if old {
		c.set(k, &id)
	}
	return id, ok
}

// put caches the identity of an inode. Both come from the same descriptor.
func (c *incarnations) put(sx *unix.Statx_t, id *ident) {
	if k, ok := keyOf(sx); ok && time.Since(time.Unix(k.sec, int64(k.nsec))) > grownUp {
		c.set(k, id)
	}
}

func (c *incarnations) set(k incarnation, id *ident) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recent) >= incarnationsMax {
		c.before, c.recent = c.recent, make(map[incarnation]ident, incarnationsMax)
	}
	c.recent[k] = *id
}
