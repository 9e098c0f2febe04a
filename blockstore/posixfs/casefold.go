package posixfs

import "golang.org/x/sys/unix"

// casefold is FS_CASEFOLD_FL of linux/fs.h. A new directory has it from the directory above.
const casefold = 0x40000000

// caseInsensitive reports whether names below a directory that differ in case alone are the same
// file: always on FAT, and below a directory with casefold (ext4, f2fs, tmpfs).
func caseInsensitive(fd int, magic int64) bool {
	if magic == unix.MSDOS_SUPER_MAGIC || magic == unix.EXFAT_SUPER_MAGIC {
		return true
	}
	dir, err := unix.Open(procPath(fd), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	flags, err := unix.IoctlGetUint32(dir, unix.FS_IOC_GETFLAGS)
	return err == nil && flags&casefold != 0
}
