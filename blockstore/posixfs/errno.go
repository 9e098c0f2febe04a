package posixfs

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// errnoTable maps the errors of the kernel to those of blockstore. Another errno becomes an
// ErrIO that names it.
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
	// Shortages that pass: the client waits and sends the call again (NFS3ERR_JUKEBOX, NFS4ERR_DELAY).
	unix.EAGAIN:    blockstore.ErrJukebox,
	unix.EINTR:     blockstore.ErrJukebox,
	unix.ENOMEM:    blockstore.ErrJukebox,
	unix.EMFILE:    blockstore.ErrJukebox,
	unix.ENFILE:    blockstore.ErrJukebox,
	unix.ETXTBSY:   blockstore.ErrJukebox,
	unix.ETIMEDOUT: blockstore.ErrJukebox,
}

// mapErr returns the error of blockstore for an errno. It returns other errors as they are.
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

// retry is again for a system call that returns no value.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// again repeats a system call that a signal interrupts (EINTR), such as those with which the Go
// runtime preempts threads.
func again[T any](call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if err != unix.EINTR {
			return v, err
		}
	}
}
