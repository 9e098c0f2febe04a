package posixfs

import (
	"sync"
	"time"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// entryMask is what statx is asked for: attributes, and what tells inodes and mounts apart.
const entryMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME | unix.STATX_MNT_ID

// statx looks at the entry's name in its directory, without following or mounting anything. The
// name is passed on as the kernel gave it, with its NUL.
func (d *dirent) statx(dir int, sx *unix.Statx_t) unix.Errno {
	for {
		_, _, e := unix.Syscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(unsafe.SliceData(d.name))),
			unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, entryMask, uintptr(unsafe.Pointer(sx)), 0)
		if e != unix.EINTR {
			return e
		}
	}
}

// statx is that of an entry. Where nothing has to be waited for the runtime is not told.
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

// ours says whether what was looked at is on the mount of the export.
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

// incarnation tells an inode from all that had or will have its number.
type incarnation struct {
	ino  uint64
	dev  uint64 // layers of an overlay have devices and inode numbers of their own
	sec  int64
	nsec uint32
}

// incarnations remembers which identity an inode has, which costs a descriptor to find
// out, by what a statx tells: its number and its birth. Only inodes that
// have been there for grownUp are remembered. A later one of the same number is born
// later then, however coarse the clock is.
type incarnations struct {
	mu sync.RWMutex
	// Two generations of at most incarnationsMax; what was not asked for while the
	// first filled goes.
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

// put remembers the identity of an inode, both found out by one descriptor.
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
