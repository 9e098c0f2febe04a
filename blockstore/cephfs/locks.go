//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
import "C"

import (
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
)

// The MDS has one lock table for all clients of the filesystem. To it all locks of a mount have one
// owner, so that its caller divides them among the clients of NFS. The locks end with the open file
// that they were taken with, or with the session.

// lastByte is the last byte that can be locked: off_t is signed.
const lastByte = math.MaxInt64 - 1

// flock returns a range for libcephfs. ok is false if such bytes cannot be locked.
func flock(start, end uint64, typ int) (l C.struct_flock, ok bool) {
	if start > lastByte {
		return l, false
	}
	l = C.struct_flock{l_type: C.short(typ), l_whence: unix.SEEK_SET, l_start: C.__off64_t(start)}
	if end < lastByte {
		l.l_len = C.__off64_t(end - start + 1)
	}
	return l, true
}

func lockType(exclusive bool) int {
	if exclusive {
		return unix.F_WRLCK
	}
	return unix.F_RDLCK
}

// conflicting converts the lock that is in the way of another one.
func conflicting(l *C.struct_flock) *blockstore.HostLock {
	in := &blockstore.HostLock{
		Start: uint64(l.l_start), End: math.MaxUint64, Exclusive: int(l.l_type) == unix.F_WRLCK,
	}
	if l.l_len > 0 {
		in.End = uint64(l.l_start + l.l_len - 1)
	}
	return in
}

// patience is how long a lock waits for an open that another gateway's client delays by a delegation.
// The caller has locked the state of its own client meanwhile. That client may have to return a
// delegation itself, and two would wait for each other.
const patience = 500 * time.Millisecond

// ready opens a file, which done gives back. It returns ErrWouldBlock if that takes longer than
// patience. The open goes on then, so that the other client has to return its delegation.
func (f *FS) ready(h blockstore.Handle, write bool) (*object, *C.Fh, error) {
	if o := f.objs.known(h); o != nil {
		if o.mu.TryRLock() {
			if o.fh != nil && (o.write || !write) {
				return o, o.fh, nil
			}
			o.mu.RUnlock()
		}
		f.objs.release(o)
	}
	f.objs.mu.Lock()
	_, busy := f.objs.opening[h]
	if !busy && f.objs.all != nil {
		f.objs.opening[h] = struct{}{}
	}
	f.objs.mu.Unlock()
	if busy {
		return nil, nil, blockstore.ErrWouldBlock
	}
	var r struct {
		o   *object
		fh  *C.Fh
		err error
	}
	opened, late := make(chan struct{}), make(chan struct{})
	f.leaving.Go(func() {
		r.o, r.fh, _, r.err = f.file(h, write, func(*blockstore.Attr) bool { return true })
		f.objs.mu.Lock()
		delete(f.objs.opening, h)
		f.objs.mu.Unlock()
		select {
		case opened <- struct{}{}:
		case <-late:
			if r.err == nil {
				f.done(r.o)
			}
		}
	})
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-opened:
		return r.o, r.fh, r.err
	case <-t.C:
		close(late)
		return nil, nil, blockstore.ErrWouldBlock
	}
}

// LockHost implements blockstore.HostLocker: the other programs are other clients of the cluster. A
// lock needs an open file that stays, so the file is open for writing from the first lock on.
func (f *FS) LockHost(h blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	want, ok := flock(start, end, lockType(exclusive))
	if !ok {
		return nil, nil
	}
	if snapOf(&h) != noSnap {
		return nil, nil // nobody writes to it
	}
	o, fh, err := f.ready(h, true)
	if err != nil {
		return nil, unlockable(err)
	}
	for {
		l := want
		r := C.rc_setlk(f.m, fh, &l)
		if r != -C.int(unix.EAGAIN) {
			err = failed(r)
			break
		}
		if in, err := f.conflict(fh, want); err != nil || in != nil {
			f.done(o)
			return in, err
		}
	}
	f.objs.mu.Lock()
	first := err == nil && !o.locked
	o.locked = o.locked || first
	f.objs.mu.Unlock()
	o.mu.RUnlock()
	if !first {
		f.objs.release(o)
	}
	return nil, unlockable(err)
}

// unlockable is the error of a lock that could not be taken. It is never that the store has no locks:
// then the lock would be one of this gateway alone.
func unlockable(err error) error {
	if err != nil && err != blockstore.ErrWouldBlock {
		return blockstore.ErrJukebox
	}
	return err
}

// conflict returns the lock that is in the way of want, or nil.
func (f *FS) conflict(fh *C.Fh, want C.struct_flock) (*blockstore.HostLock, error) {
	if err := failed(C.rc_getlk(f.m, fh, &want)); err != nil {
		return nil, unlockable(err)
	}
	if int(want.l_type) == unix.F_UNLCK {
		return nil, nil
	}
	return conflicting(&want), nil
}

// UnlockHost implements blockstore.HostLocker.
func (f *FS) UnlockHost(h blockstore.Handle, start, end uint64) {
	o := f.objs.known(h)
	l, ok := flock(start, end, unix.F_UNLCK)
	if o == nil {
		return
	}
	defer f.objs.release(o)
	if !ok || !f.hasLocks(o) {
		return // o.mu may be held for long by an open
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.fh != nil {
		C.rc_setlk(f.m, o.fh, &l)
	}
}

func (f *FS) hasLocks(o *object) bool {
	f.objs.mu.Lock()
	defer f.objs.mu.Unlock()
	return o.locked
}

// ReleaseHost implements blockstore.HostLocker.
func (f *FS) ReleaseHost(h blockstore.Handle) {
	f.UnlockHost(h, 0, math.MaxUint64)
	o := f.objs.known(h)
	if o == nil {
		return
	}
	f.objs.mu.Lock()
	had := o.locked
	o.locked = false
	f.objs.mu.Unlock()
	f.objs.release(o)
	if had {
		f.objs.release(o)
	}
}

// TestHost implements blockstore.HostLocker.
func (f *FS) TestHost(h blockstore.Handle, start, end uint64, exclusive bool) (*blockstore.HostLock, error) {
	want, ok := flock(start, end, lockType(exclusive))
	if !ok {
		return nil, nil
	}
	if snapOf(&h) != noSnap {
		return nil, nil
	}
	o, fh, err := f.ready(h, false)
	if err == blockstore.ErrWouldBlock {
		// The client with the delegation may have locks that nobody else knows.
		return &blockstore.HostLock{Start: start, End: end, Exclusive: true}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.done(o)
	return f.conflict(fh, want)
}
