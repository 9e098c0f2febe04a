package fusefs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// signalPoll is how often an operation whose caller got a signal looks whether the caller is about
// to end. watchAfter is how long an operation runs before the code begins to watch for signals:
// most operations end earlier.
const (
	signalPoll = 200 * time.Millisecond
	watchAfter = 20 * time.Millisecond
)

// errTimeout is the error of operations that Config.Timeout has ended.
var errTimeout = errors.New("the server has not answered in time")

// op is an operation of the kernel that is being executed.
type op struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	ended  chan struct{}
	watch  *time.Timer
	soft   *time.Timer
	stat   *opStats
	start  time.Time
}

// begin starts an operation of a caller with an identity. The first signal to the caller closes
// cancel, and later ones do nothing. The code that calls begin also calls end.
//
// A signal that the caller handles or ignores does not end the operation. Programs repeat a call
// that ends with EINTR, as all programs in Go do. The server may have carried out the first call
// before it was killed, and does not recognize the second one: a RENAME would happen twice.
func (f *FS) begin(identity context.Context, caller *fuse.InHeader, what opcode, cancel <-chan struct{}) *op {
	o := &op{ended: make(chan struct{}), stat: &f.stats.ops[what], start: time.Now()}
	o.ctx, o.cancel = context.WithCancelCause(identity)
	thread := caller.Pid // the memory of caller is used again when the operation has ended
	o.watch = time.AfterFunc(watchAfter, func() {
		if o.signaled(cancel) {
			o.waitFatal(thread)
		}
	})
	if f.cfg.Timeout > 0 {
		o.soft = time.AfterFunc(f.cfg.Timeout, func() { o.cancel(errTimeout) })
	}
	return o
}

// beginWait is begin for an operation that waits for other users: a signal ends it at once.
func (f *FS) beginWait(identity context.Context, what opcode, cancel <-chan struct{}) *op {
	o := &op{ended: make(chan struct{}), stat: &f.stats.ops[what], start: time.Now()}
	o.ctx, o.cancel = context.WithCancelCause(identity)
	o.watch = time.AfterFunc(0, func() {
		if o.signaled(cancel) {
			o.cancel(context.Canceled)
		}
	})
	return o
}

// signaled waits for a signal, or for the end of the operation.
func (o *op) signaled(cancel <-chan struct{}) bool {
	select {
	case <-cancel:
		return true
	case <-o.ended:
		return false
	}
}

// waitFatal ends the operation when its caller is about to end.
func (o *op) waitFatal(thread uint32) {
	t := time.NewTicker(signalPoll)
	defer t.Stop()
	for !dies(thread) {
		select {
		case <-t.C:
		case <-o.ended:
			return
		}
	}
	o.cancel(context.Canceled)
}

// end ends the operation and returns its status.
func (o *op) end(err error) fuse.Status {
	if err != nil && context.Cause(o.ctx) == errTimeout {
		err = errTimeout
	}
	o.watch.Stop()
	if o.soft != nil {
		o.soft.Stop()
	}
	close(o.ended)
	o.cancel(nil)
	st := status(err)
	o.stat.add(time.Since(o.start), st != fuse.OK)
	return st
}

// errnos are the errors of Linux for statuses of NFS, where the numbers differ.
var errnos = map[nfs.Status]syscall.Errno{
	nfs.ErrNameTooLong: syscall.ENAMETOOLONG, nfs.ErrNotEmpty: syscall.ENOTEMPTY, nfs.ErrDQuot: syscall.EDQUOT,
	nfs.ErrStale: syscall.ESTALE, nfs.ErrFHExpired: syscall.ESTALE, nfs.ErrBadHandle: syscall.ESTALE,
	nfs.ErrRemote: syscall.EREMOTE, nfs.ErrNotSync: syscall.EAGAIN, nfs.ErrBadCookie: syscall.EINVAL,
	nfs.ErrNotSupp: syscall.EOPNOTSUPP, nfs.ErrAttrNotSupp: syscall.EOPNOTSUPP, nfs.ErrTooSmall: syscall.EINVAL,
	nfs.ErrServerFault: syscall.EIO, nfs.ErrBadType: syscall.EINVAL, nfs.ErrDenied: syscall.EAGAIN,
	nfs.ErrLocked: syscall.EAGAIN, nfs.ErrShareDenied: syscall.EACCES, nfs.ErrFileOpen: syscall.EBUSY,
	nfs.ErrSymlink: syscall.ELOOP, nfs.ErrBadOwner: syscall.EINVAL, nfs.ErrBadChar: syscall.EINVAL,
	nfs.ErrBadName: syscall.EINVAL, nfs.ErrBadRange: syscall.EINVAL, nfs.ErrLockRange: syscall.EINVAL,
	nfs.ErrLockNotSupp: syscall.ENOLCK, nfs.ErrDeadlock: syscall.EDEADLK, nfs.ErrOpenMode: syscall.EBADF,
	nfs.ErrNoXattr: syscall.ENODATA, nfs.ErrXattr2Big: syscall.E2BIG, nfs.ErrWrongSec: syscall.EPERM,
	nfs.ErrNoGrace: syscall.EIO, nfs.ErrJukebox: syscall.EAGAIN, nfs.ErrResource: syscall.ENOBUFS,
}

// status is an error as the kernel gets it.
func status(err error) fuse.Status {
	var errno syscall.Errno
	var st nfs.Status
	switch {
	case err == nil:
		return fuse.OK
	case errors.As(err, &errno):
		return fuse.Status(errno)
	case errors.Is(err, nfs.ErrDenied): // a *client.LockedError is no status
		return fuse.EAGAIN
	case errors.As(err, &st):
		if e, ok := errnos[st]; ok {
			return fuse.Status(e)
		}
		if st < nfs.ErrNameTooLong {
			return fuse.Status(st) // these numbers are those of Unix
		}
		return fuse.EIO
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return fuse.EIO
	case errors.Is(err, context.Canceled):
		return fuse.EINTR
	case errors.Is(err, fs.ErrPermission), errors.As(err, new(*rpc.DeniedError)):
		return fuse.EACCES
	case errors.Is(err, rpc.ErrClosed):
		return fuse.Status(syscall.ENOTCONN)
	case errors.Is(err, client.ErrLockLost), errors.Is(err, io.ErrUnexpectedEOF):
		return fuse.EIO
	}
	return fuse.EIO
}
