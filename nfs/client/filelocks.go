package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// ErrLockLost says that the server has ended the locks of a File: it has not received a call of the
// client for longer than the lease, or it restarted and the client could not reclaim the locks.
// Other clients may have changed the data that the locks protected. So every call of the File but
// Close fails.
var ErrLockLost = errors.New("the server has given up the file's locks")

// LockedError is the error of a lock that conflicts with Holder, a lock of another owner. It
// matches nfs.ErrDenied.
type LockedError struct{ Holder LockHolder }

// LockHolder is a lock of another owner: another File, another client, or a program of the server's
// host.
type LockHolder struct {
	Offset    uint64
	Length    uint64 // 0: to the end of the file, however long it becomes
	Exclusive bool
	Owner     []byte // as the client of the owner calls it
}

// Error implements error.
func (e *LockedError) Error() string {
	return fmt.Sprintf("bytes from %d on are locked by another owner", e.Holder.Offset)
}

// Is implements errors.Is.
func (e *LockedError) Is(target error) bool { return target == nfs.ErrDenied }

// How often Lock asks again for a lock that another owner has, if the server sends no
// CB_NOTIFY_LOCK.
const (
	lockWaitFirst = 20 * time.Millisecond
	lockWaitMax   = time.Second
)

// lockOwner returns the lock-owner of the File, and makes it at the first call. It opens the
// file for access, as a LOCK needs it.
func (f *File) lockOwner(access uint32) (*locks4, error) {
	p, err := f.c.procs(f.ctx)
	if err != nil {
		return nil, err
	}
	four, ok := p.(proc4)
	if !ok || f.node.Attr.Type != blockstore.TypeReg {
		return nil, nfs.ErrNotSupp
	}
	if err := f.acquire(access, 0); err != nil {
		return nil, err
	}
	f.opening.Lock()
	defer f.opening.Unlock()
	if f.locks == nil {
		if f.locks = four.opens.newLocks(f.node.Handle); f.locks == nil {
			return nil, nfs.ErrBadStateID
		}
	}
	return f.locks, nil
}

// lockAccess returns the access with which a file must be open for a lock: a write lock needs an
// open for writing (RFC 8881 section 9.1.2).
func lockAccess(exclusive bool) uint32 {
	if exclusive {
		return ShareWrite
	}
	return ShareRead
}

// TryLock locks n bytes from off on, or all bytes from off on if n is 0. Several Files can lock
// a range if none of them does so exclusively; they may be of different clients. A
// lock replaces the locks that the same File has in the range. A range that another File has locked
// is refused with a *LockedError.
//
// Locks are advisory: READ and WRITE of others still work. A lock stays until Unlock or Close,
// and the client reclaims it after a restart of the server; see ErrLockLost. Locks need version
// 4. With version 3 the error is nfs.ErrNotSupp.
func (f *File) TryLock(off, n uint64, exclusive bool) error {
	l, r, err := f.toLock(off, n, exclusive)
	if err == nil {
		err = l.lock(f.ctx, r, false)
	}
	return pathError("lock", f.name, err)
}

// toLock returns the lock-owner of the File for a lock of a range.
func (f *File) toLock(off, n uint64, exclusive bool) (*locks4, lockRange, error) {
	r, err := newLockRange(off, n, exclusive)
	if err != nil {
		return nil, r, err
	}
	l, err := f.lockOwner(lockAccess(exclusive))
	return l, r, err
}

// Lock is TryLock, but if another File has locked the range, it waits until ctx ends.
func (f *File) Lock(ctx context.Context, off, n uint64, exclusive bool) error {
	l, r, err := f.toLock(off, n, exclusive)
	if err == nil {
		err = l.await(ctx, r)
	}
	return pathError("lock", f.name, err)
}

// Unlock ends the locks of the File in n bytes from off on; n 0 means all bytes from off on.
func (f *File) Unlock(off, n uint64) error {
	r, err := newLockRange(off, n, true)
	if l := f.ownLocks(); err == nil && l != nil {
		err = l.unlock(f.ctx, r)
	}
	return pathError("unlock", f.name, err)
}

// TestLock returns a lock of another owner that is in the way, or nil.
func (f *File) TestLock(off, n uint64, exclusive bool) (*LockHolder, error) {
	r, err := newLockRange(off, n, exclusive)
	if err != nil {
		return nil, pathError("lock", f.name, err)
	}
	l, err := f.lockOwner(ShareRead)
	if err != nil {
		return nil, pathError("lock", f.name, err)
	}
	h, err := l.test(f.ctx, r)
	return h, pathError("lock", f.name, err)
}

// ownLocks returns the lock-owner of the File, or nil if there has been no lock.
func (f *File) ownLocks() *locks4 {
	f.opening.Lock()
	defer f.opening.Unlock()
	return f.locks
}

// lockLost returns ErrLockLost if the server has given up the file's locks.
func (f *File) lockLost() error {
	l := f.ownLocks()
	if l == nil {
		return nil
	}
	l.opens.mu.Lock()
	defer l.opens.mu.Unlock()
	if l.lost {
		return ErrLockLost
	}
	return nil
}

// locksKey is the key of the locks that UnderLocks adds to a context: a []*locks4.
type locksKey struct{}

// UnderLocks returns a context for READs and WRITEs of the file that the locks of f protect. Their
// stateid is that of the locks (RFC 8881 section 8.2.5). If the server has given the locks up, they
// fail with ErrLockLost and change nothing. The locks of several Files of one client can be added.
func (f *File) UnderLocks(ctx context.Context) context.Context {
	l := f.ownLocks()
	if l == nil {
		return ctx
	}
	list, _ := ctx.Value(locksKey{}).([]*locks4)
	return context.WithValue(ctx, locksKey{}, append(slices.Clip(list), l))
}

// unlockAll ends the lock-owner when the File is closed. opening is held.
func (f *File) unlockAll() error {
	l := f.locks
	if l == nil {
		return nil
	}
	f.locks = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), releaseTime)
	defer cancel()
	return l.free(ctx)
}
