package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// fsType is what the store knows of a type of filesystem. No system call returns it.
type fsType struct {
	// near: fstat never waits. The filesystem has the inode of an open descriptor in memory, and
	// does not ask a server or a FUSE daemon. Only this host changes it, so that its kernel reports
	// every change.
	near bool
	// mappable: files are in the page cache, and a mapping needs no call to a server or a FUSE daemon.
	mappable bool
	// inMemory: no read or write waits for a disk, and nothing is left after a restart.
	inMemory bool
	// uuidStatfs: f_fsid of statfs(2) is derived from the UUID, not from the number of the device.
	uuidStatfs bool
	// remote: a server or a FUSE daemon has the locks, so a call for a lock would have to wait.
	remote bool
	// aborts: a sync can return success although the filesystem has lost its transaction; see aborted.
	aborts bool

	linkMax     uint32 // 0: not known
	maxFileSize uint64 // 0: that of the kernel
}

// fsTypes are the types by the magic number of statfs(2). A type that is not here has the zero
// fsType, with which the store makes no assumptions.
var fsTypes = map[uint32]fsType{
	// ext2 and ext3 have the same magic number.
	unix.EXT4_SUPER_MAGIC: {
		near: true, mappable: true, uuidStatfs: true, aborts: true, linkMax: 65000, maxFileSize: 16<<40 - 4096,
	},
	unix.XFS_SUPER_MAGIC:   {near: true, mappable: true, aborts: true, linkMax: 1<<31 - 1},
	unix.BTRFS_SUPER_MAGIC: {near: true, mappable: true, uuidStatfs: true, linkMax: 65535},
	unix.TMPFS_MAGIC:       {near: true, mappable: true, inMemory: true, linkMax: 1<<31 - 1},
	unix.RAMFS_MAGIC:       {near: true, inMemory: true},

	unix.NFS_SUPER_MAGIC: {remote: true}, unix.SMB_SUPER_MAGIC: {remote: true}, unix.SMB2_SUPER_MAGIC: {remote: true},
	unix.CIFS_SUPER_MAGIC: {remote: true}, unix.CEPH_SUPER_MAGIC: {remote: true}, unix.V9FS_MAGIC: {remote: true},
	unix.AFS_SUPER_MAGIC: {remote: true}, unix.AFS_FS_MAGIC: {remote: true}, unix.CODA_SUPER_MAGIC: {remote: true},
	unix.NCP_SUPER_MAGIC: {remote: true}, unix.FUSE_SUPER_MAGIC: {remote: true}, unix.OCFS2_SUPER_MAGIC: {remote: true},
	gfs2Magic: {remote: true},
}

const gfs2Magic = 0x01161970 // GFS2_MAGIC of linux/magic.h

func typeOfFS(s *unix.Statfs_t) fsType { return fsTypes[uint32(s.Type)] }

// limits returns the limits of files and names.
func (t *fsType) limits() blockstore.Limits {
	l := blockstore.Limits{MaxFileSize: 1<<63 - 1, LinkMax: 32000, NameMax: blockstore.NameMax}
	if t.maxFileSize != 0 {
		l.MaxFileSize = t.maxFileSize
	}
	if t.linkMax != 0 {
		l.LinkMax = t.linkMax
	}
	return l
}
