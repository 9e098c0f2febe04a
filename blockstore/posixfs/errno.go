package posixfs

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// errnoTable maps what the kernel answers to the vocabulary of blockstore. What
// is not in it is an ErrIO that names the errno.
var errnoTable = map[unix.Errno]error{
	unix.EPERM:        blockstore.ErrPerm,
	unix.ENOENT:       blockstore.ErrNotExist,
	unix.EIO:          blockstore.ErrIO,
	unix.ENXIO:        blockstore.ErrNXIO,
	unix.EACCES:       blockstore.ErrAccess,
	unix.EEXIST:       blockstore.ErrExist,
	unix.EXDEV:        blockstore.ErrXDev,
	unix.ENODEV:       blockstore.ErrNoDev,
	unix.ENOTDIR:      blockstore.ErrNotDir,
	unix.EISDIR:       blockstore.ErrIsDir,
	unix.EINVAL:       blockstore.ErrInval,
	unix.ELOOP:        blockstore.ErrInval, // a symlink where none may be followed
	unix.EFBIG:        blockstore.ErrFBig,
	unix.EOVERFLOW:    blockstore.ErrFBig,
	unix.ENOSPC:       blockstore.ErrNoSpace,
	unix.EROFS:        blockstore.ErrROFS,
	unix.EMLINK:       blockstore.ErrMLink,
	unix.ENAMETOOLONG: blockstore.ErrNameTooLong,
	unix.ENOTEMPTY:    blockstore.ErrNotEmpty,
	unix.EDQUOT:       blockstore.ErrQuota,
	unix.ESTALE:       blockstore.ErrStale,
	unix.EOPNOTSUPP:   blockstore.ErrNotSupp,
	unix.ENOSYS:       blockstore.ErrNotSupp,
	unix.EBUSY:        blockstore.ErrAccess, // a mount point or a swap file: it stays
	// Shortages that pass: the client is asked to come again.
	unix.EAGAIN:    blockstore.ErrJukebox,
	unix.EINTR:     blockstore.ErrJukebox,
	unix.ENOMEM:    blockstore.ErrJukebox,
	unix.EMFILE:    blockstore.ErrJukebox,
	unix.ENFILE:    blockstore.ErrJukebox,
	unix.ETXTBSY:   blockstore.ErrJukebox,
	unix.ETIMEDOUT: blockstore.ErrJukebox,
}

// mapErr turns an errno into the store's error; others pass as they are.
func mapErr(err error) error {
	if err == nil {
		return nil
	}
	var e unix.Errno
	if !errors.As(err, &e) {
		return err
	}
	if m, ok := errnoTable[e]; ok {
		return m
	}
	return fmt.Errorf("%w: %v", blockstore.ErrIO, e)
}

// again runs a system call until no signal interrupts it.
func again[T any](call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if err != unix.EINTR {
			return v, err
		}
	}
}
