package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/desired"
)

// btrfs makes snapshots by the ioctls of the file system, without its programs. A snapshot is a
// read-only subvolume in the directory, and shares all blocks.
type btrfs struct{ volume }

// volumeArgs is struct btrfs_ioctl_vol_args_v2 of linux/btrfs.h.
type volumeArgs struct {
	fd      int64
	transid uint64
	flags   uint64
	_       [4]uint64
	name    [4040]byte
}

// removeArgs is struct btrfs_ioctl_vol_args.
type removeArgs struct {
	fd   int64
	name [4088]byte
}

// subvolumeInfo is struct btrfs_ioctl_get_subvol_info_args.
type subvolumeInfo struct {
	_     [8 + 256 + 4*8 + 3*16 + 4*8]byte
	times [4]struct { // ctime, otime, stime, rtime
		sec  uint64
		nsec uint32
		_    uint32
	}
	_ [8]uint64
}

const (
	magic          = 0x94
	iocWrite       = 1 << 30
	iocRead        = 2 << 30
	snapCreate     = iocWrite | unsafe.Sizeof(volumeArgs{})<<16 | magic<<8 | 23
	snapDestroy    = iocWrite | unsafe.Sizeof(removeArgs{})<<16 | magic<<8 | 15
	getSubvolInfo  = iocRead | unsafe.Sizeof(subvolumeInfo{})<<16 | magic<<8 | 60
	readOnlyVolume = 1 << 1 // BTRFS_SUBVOL_RDONLY
)

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		if e == 0 {
			return nil
		}
		if e != unix.EINTR {
			return e
		}
	}
}

func (b *btrfs) create(name string) error {
	src, err := unix.Open(b.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: b.dir, Err: err}
	}
	defer unix.Close(src)
	at, err := unix.Openat2(src, desired.SnapshotDir, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return &os.PathError{Op: "open", Path: b.at(), Err: err}
	}
	defer unix.Close(at)
	// What programs have written and the kernel has not is part of the snapshot.
	if err := unix.Syncfs(src); err != nil {
		return err
	}
	args := volumeArgs{fd: int64(src), flags: readOnlyVolume}
	copy(args.name[:len(args.name)-1], name)
	return ioctl(at, snapCreate, unsafe.Pointer(&args))
}

func (b *btrfs) remove(name string) error {
	at, err := unix.Open(b.at(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: b.at(), Err: err}
	}
	defer unix.Close(at)
	var args removeArgs
	copy(args.name[:len(args.name)-1], name)
	return ioctl(at, snapDestroy, unsafe.Pointer(&args))
}

func (b *btrfs) list() (out []Snapshot, err error) {
	for _, name := range desired.Subvolumes(b.at()) {
		made, err := madeAt(filepath.Join(b.at(), name))
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("when was %s made: %w", name, err)
		}
		out = append(out, Snapshot{Name: name, Made: made})
	}
	return out, nil
}

// madeAt returns when a subvolume was made. The times of its directory are those of the original.
func madeAt(dir string) (time.Time, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return time.Time{}, err
	}
	defer unix.Close(fd)
	var info subvolumeInfo
	if err := ioctl(fd, getSubvolInfo, unsafe.Pointer(&info)); err != nil {
		return time.Time{}, err
	}
	return time.Unix(int64(info.times[1].sec), int64(info.times[1].nsec)).UTC(), nil
}
