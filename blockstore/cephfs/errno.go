//go:build cephfs && linux && cgo

package cephfs

import (
	"fmt"
	"syscall"

	"github.com/rstored/rstored/blockstore"
)

// errnos maps what libcephfs returns to the errors of blockstore.
var errnos = map[syscall.Errno]error{
	syscall.EPERM:        blockstore.ErrPerm,
	syscall.ENOENT:       blockstore.ErrNotExist,
	syscall.ENXIO:        blockstore.ErrNXIO,
	syscall.EACCES:       blockstore.ErrAccess,
	syscall.EEXIST:       blockstore.ErrExist,
	syscall.EXDEV:        blockstore.ErrXDev,
	syscall.ENOTDIR:      blockstore.ErrNotDir,
	syscall.EISDIR:       blockstore.ErrIsDir,
	syscall.EINVAL:       blockstore.ErrInval,
	syscall.EFBIG:        blockstore.ErrFBig,
	syscall.ENOSPC:       blockstore.ErrNoSpace,
	syscall.EROFS:        blockstore.ErrROFS,
	syscall.EMLINK:       blockstore.ErrMLink,
	syscall.ENAMETOOLONG: blockstore.ErrNameTooLong,
	syscall.ENOTEMPTY:    blockstore.ErrNotEmpty,
	syscall.EDQUOT:       blockstore.ErrQuota,
	syscall.ESTALE:       blockstore.ErrStale,
	syscall.EOPNOTSUPP:   blockstore.ErrNotSupp,
	syscall.ENODATA:      blockstore.ErrNoXattr,
	syscall.ERANGE:       blockstore.ErrXattrTooBig,
	syscall.E2BIG:        blockstore.ErrXattrTooBig,
	// Shortages that pass: the client waits and sends the call again.
	syscall.EAGAIN:    blockstore.ErrJukebox,
	syscall.EINTR:     blockstore.ErrJukebox,
	syscall.ENOMEM:    blockstore.ErrJukebox,
	syscall.EBUSY:     blockstore.ErrJukebox,
	syscall.ETIMEDOUT: blockstore.ErrJukebox,
}

// failed returns the error of a result: nil unless r is negative.
func failed[T ~int32 | ~int64](r T) error {
	if r >= 0 {
		return nil
	}
	e := syscall.Errno(-int64(r))
	if err, ok := errnos[e]; ok {
		return err
	}
	return fmt.Errorf("%w: cephfs: %v", blockstore.ErrIO, e)
}
