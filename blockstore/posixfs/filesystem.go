package posixfs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Filesystem identifies the filesystem of a directory.
type Filesystem struct {
	UUID [16]byte // all zeros: it has none, or the kernel does not return it
	// Statfs is f_fsid of statfs(2). Some filesystems derive it from the UUID, others from the
	// device number.
	Statfs uint64
	// ByDevice: without the UUID, only the device number identifies the filesystem.
	ByDevice bool
	Dev      uint64
	root     ident
}

// ProbeFilesystem looks at the filesystem of an existing directory.
func ProbeFilesystem(dir string) (Filesystem, error) {
	fs, err := probeDir(dir)
	if err != nil {
		return fs, fmt.Errorf("looking at the filesystem of %s: %w", dir, err)
	}
	return fs, nil
}

func probeDir(dir string) (Filesystem, error) {
	fd, err := again(func() (int, error) { return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return Filesystem{}, err
	}
	defer unix.Close(fd)
	id, err := identify(kindKernel, fd, "")
	if err != nil {
		if id, err = identify(kindBirth, fd, ""); err != nil {
			return Filesystem{}, err
		}
	}
	return probeFilesystem(fd, &id)
}

func probeFilesystem(fd int, root *ident) (fs Filesystem, err error) {
	var st unix.Stat_t
	var sfs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fs, err
	}
	if err := unix.Fstatfs(fd, &sfs); err != nil {
		return fs, err
	}
	statfs := uint64(uint32(sfs.Fsid.Val[0])) | uint64(uint32(sfs.Fsid.Val[1]))<<32
	fs = Filesystem{Statfs: statfs, Dev: st.Dev, root: *root}
	fs.UUID = uuidOf(fd, int64(sfs.Type))
	kind := typeOfFS(&sfs)
	fs.ByDevice = fs.UUID == [16]byte{} && !kind.uuidStatfs && !kind.inMemory
	return fs, nil
}

// uuidOf returns the UUID of the filesystem of a directory. Before Linux 6.9 only XFS has an
// ioctl for it.
func uuidOf(path int, magic int64) (uuid [16]byte) {
	fd, err := again(func() (int, error) {
		return unix.Open(procPath(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return uuid
	}
	defer unix.Close(fd)
	var u struct {
		n uint8
		b [16]byte
	}
	const getFSUUID = 2<<30 | unsafe.Sizeof(u)<<16 | 0x15<<8 // FS_IOC_GETFSUUID, since Linux 6.9
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), getFSUUID, uintptr(unsafe.Pointer(&u)))
	if e == 0 && int(u.n) == len(uuid) {
		return u.b
	}
	if magic != unix.XFS_SUPER_MAGIC {
		return uuid
	}
	var g struct {
		_    [8]uint32
		_    [4]uint64
		uuid [16]byte
		_    [8]uint32
	}
	const geometryV1 = 2<<30 | unsafe.Sizeof(g)<<16 | 'X'<<8 | 100 // XFS_IOC_FSGEOMETRY_V1
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), geometryV1, uintptr(unsafe.Pointer(&g))); e == 0 {
		return g.uuid
	}
	return uuid
}

// ID returns a number that identifies the filesystem: derived from its UUID if it has one, else
// from Statfs.
func (fs *Filesystem) ID() uint64 {
	b := fs.UUID[:]
	if fs.UUID == [16]byte{} {
		b = binary.BigEndian.AppendUint64(nil, fs.Statfs)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:]) | 1
}

// SameDirectory reports whether both were probed at the same directory, or at its copy in a copy
// of the filesystem.
func (fs *Filesystem) SameDirectory(o *Filesystem) bool {
	return bytes.Equal(fs.root.bytes(), o.root.bytes())
}

// exportID derives the FSID of an exported directory.
func exportID(filesystem uint64, root *ident) uint64 {
	sum := sha256.New()
	sum.Write(binary.BigEndian.AppendUint64(nil, filesystem))
	sum.Write(root.bytes())
	return binary.BigEndian.Uint64(sum.Sum(nil)) | 1
}
