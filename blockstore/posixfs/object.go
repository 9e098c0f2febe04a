package posixfs

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// object is an open inode. Its identity and path descriptor never change. The data descriptors
// are opened by the first read or write. The cache counts its users: whoever gets an object from
// acquire or adopt calls release. The last user of an object that has left the cache closes its
// descriptors.
type object struct {
	id      ident
	h       blockstore.Handle
	typ     blockstore.FileType
	path    int      // O_PATH, or the descriptor that created the file
	changes *changes // of the store
	near    bool     // see fsType

	refs       int     // cache.mu
	evicted    bool    // cache.mu
	newer, old *object // cache.mu: the LRU list
	pinned     bool    // cache.mu: not in the LRU list, because it has a lease

	pins *pins // of the store

	windows *window // windows.mu: the first of its windows

	openMu sync.Mutex
	ro, rw atomic.Int32 // -1: not open
	lease  *lease       // openMu
	// dirty: it has unstable writes, which no sync through this object covers yet.
	dirty atomic.Bool
	syncs syncs
	ahead atomic.Pointer[ahead] // nil until a long read has to wait for the disk

	// mu is held for a change and the attributes before and after it; see changeLocked.
	mu sync.Mutex

	decMu     sync.Mutex
	decisions [2]decision
	nextDec   int
}

func (f *FS) newObject(id ident, fd int, typ blockstore.FileType) *object {
	o := &object{id: id, h: f.tag.handle(&id), typ: typ, path: fd, changes: &f.changes, near: f.near, pins: &f.pins}
	o.ro.Store(-1)
	o.rw.Store(-1)
	return o
}

// procPath names an open descriptor, for system calls that take only paths. The link in /proc
// leads to the object itself, even if it has no name any more. An O_PATH descriptor works too.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// stat calls fstat. An object without names is ErrStale, unless it is pinned.
func (o *object) stat(st *unix.Stat_t) error {
	for {
		err := o.fstat(st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return mapErr(err)
		}
		if st.Nlink == 0 && !o.pins.has(&o.h) {
			return blockstore.ErrStale
		}
		return nil
	}
}

// fstat calls fstat(2). If the call cannot wait it goes past the Go runtime (RawSyscall), which
// would else give the processor to another thread.
func (o *object) fstat(st *unix.Stat_t) error {
	if !o.near {
		return unix.Fstat(o.path, st)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_FSTAT, uintptr(o.path), uintptr(unsafe.Pointer(st)), 0); e != 0 {
		return e
	}
	return nil
}

// attr is stat in the store's form.
func (o *object) attr() (blockstore.Attr, error) {
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		return blockstore.Attr{}, err
	}
	return o.changes.attrOf(&st), nil
}

// dataType returns the error for reading or writing an object that is not a regular file. Devices
// and fifos belong to the client's kernel. Opening one here could block, or have an effect on a
// device.
func (o *object) dataType() error {
	switch o.typ {
	case blockstore.TypeReg:
		return nil
	case blockstore.TypeDir:
		return blockstore.ErrIsDir
	}
	return blockstore.ErrInval
}

// statFile is stat of a regular file; see dataType.
func (o *object) statFile(st *unix.Stat_t) error {
	if err := o.dataType(); err != nil {
		return err
	}
	return o.stat(st)
}

// reader returns a descriptor to read a regular file, or to list or sync a directory. It is
// opened as the daemon, because clients share it; each call checks the permission of its client.
func (o *object) reader() (int, error) {
	if fd := o.ro.Load(); fd >= 0 {
		return int(fd), nil
	}
	if fd := o.rw.Load(); fd >= 0 {
		return int(fd), nil
	}
	o.openMu.Lock()
	defer o.openMu.Unlock()
	if fd := o.ro.Load(); fd >= 0 {
		return int(fd), nil
	}
	fd, err := o.reopen(unix.O_RDONLY)
	if err != nil {
		return -1, err
	}
	o.ro.Store(int32(fd))
	return fd, nil
}

// writer returns a descriptor to write a regular file.
func (o *object) writer() (int, error) {
	if fd := o.rw.Load(); fd >= 0 {
		return int(fd), nil
	}
	o.openMu.Lock()
	defer o.openMu.Unlock()
	if fd := o.rw.Load(); fd >= 0 {
		return int(fd), nil
	}
	o.unlease(o.lease) // a lease to read: the kernel would make this open wait for its end
	fd, err := o.reopen(unix.O_RDWR)
	if err == unix.EACCES {
		fd, err = o.reopen(unix.O_WRONLY)
	}
	if err != nil {
		return -1, err
	}
	o.rw.Store(int32(fd))
	return fd, nil
}

// reopen opens the inode itself, whatever its name is now. O_NONBLOCK: the open does not wait
// for a lease of another program, but fails.
func (o *object) reopen(flags int) (int, error) {
	return again(func() (int, error) {
		return unix.Open(procPath(o.path), flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	})
}

// closeFiles closes the descriptors. No call may be using them.
func (o *object) closeFiles() {
	ro, rw := int(o.ro.Load()), int(o.rw.Load())
	if ro >= 0 && ro != o.path {
		unix.Close(ro)
	}
	if rw >= 0 && rw != o.path && rw != ro {
		unix.Close(rw)
	}
	unix.Close(o.path)
}

func attrOf(st *unix.Stat_t) blockstore.Attr {
	return blockstore.Attr{
		Type:   typeOf(st.Mode),
		Mode:   st.Mode & 0o7777,
		NLink:  uint32(st.Nlink),
		UID:    st.Uid,
		GID:    st.Gid,
		Size:   uint64(st.Size),
		Used:   uint64(st.Blocks) * 512,
		Major:  unix.Major(uint64(st.Rdev)),
		Minor:  unix.Minor(uint64(st.Rdev)),
		FileID: st.Ino,
		Atime:  time.Unix(st.Atim.Unix()),
		Mtime:  time.Unix(st.Mtim.Unix()),
		Ctime:  time.Unix(st.Ctim.Unix()),
	}
}

func typeOf(mode uint32) blockstore.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return blockstore.TypeDir
	case unix.S_IFBLK:
		return blockstore.TypeBlk
	case unix.S_IFCHR:
		return blockstore.TypeChr
	case unix.S_IFLNK:
		return blockstore.TypeLnk
	case unix.S_IFSOCK:
		return blockstore.TypeSock
	case unix.S_IFIFO:
		return blockstore.TypeFifo
	}
	return blockstore.TypeReg
}
