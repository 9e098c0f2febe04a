package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// ErrLockLost is for a File whose locks the server has given up, because it has not heard
// of the client for too long or has restarted and could not give them back. What was
// protected by them may be different now: nothing can be read or written by the File until
// it is closed.
var ErrLockLost = errors.New("the server has given up the file's locks")

// LockedError is a lock that somebody else's stands in the way of. It matches
// nfs.ErrDenied.
type LockedError struct{ Holder LockHolder }

// LockHolder is a lock of somebody else.
type LockHolder struct {
	Offset    uint64
	Length    uint64 // 0: to the end of the file, however long it becomes
	Exclusive bool
	Owner     []byte // as its client calls it
}

// Error implements error.
func (e *LockedError) Error() string {
	return fmt.Sprintf("bytes from %d on are locked by somebody else", e.Holder.Offset)
}

// Is implements errors.Is.
func (e *LockedError) Is(target error) bool { return target == nfs.ErrDenied }

// lockRange is a range of bytes, both ends in it, that is locked.
type lockRange struct {
	start, end uint64
	exclusive  bool
}

const toEnd = 1<<64 - 1

func newLockRange(off, n uint64, exclusive bool) (r lockRange, err error) {
	switch {
	case n == 0:
		return lockRange{off, toEnd, exclusive}, nil
	case n-1 > toEnd-off:
		return r, nfs.ErrInval
	}
	return lockRange{off, off + n - 1, exclusive}, nil
}

// length is the length on the wire.
func (r *lockRange) length() uint64 {
	if r.end == toEnd {
		return toEnd
	}
	return r.end - r.start + 1
}

// without is what is left of a list when a range is taken out of it.
func without(list []lockRange, r lockRange) (left []lockRange) {
	for _, h := range list {
		if h.end < r.start || h.start > r.end {
			left = append(left, h)
			continue
		}
		if h.start < r.start {
			left = append(left, lockRange{h.start, r.start - 1, h.exclusive})
		}
		if h.end > r.end {
			left = append(left, lockRange{r.end + 1, h.end, h.exclusive})
		}
	}
	return left
}

// locks4 are the byte-range locks of one File: one lock-owner. opens.mu guards what is not
// said otherwise.
type locks4 struct {
	f     *open4
	owner string
	turn  chan struct{} // held by who locks or unlocks

	id   state.Stateid // with seqid 0
	made bool          // the server has given id
	held []lockRange
	lost bool
}

// gone notes that the server has given up a file's locks. Call with opens.mu held.
func (f *open4) gone() {
	for _, l := range f.locks {
		l.lost = l.lost || len(l.held) > 0
		l.made, l.held = false, nil
	}
}

// newLocks makes a lock-owner for a file that is open.
func (o *opens) newLocks(h Handle) *locks4 {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.byFile[string(h)]
	if f == nil {
		return nil
	}
	o.lockers++
	l := &locks4{f: f, owner: fmt.Sprintf("lock %d", o.lockers), turn: make(chan struct{}, 1)}
	f.locks = append(f.locks, l)
	return l
}

// Types of locks on the wire.
func lockType(exclusive bool) uint32 {
	if exclusive {
		return nfs4.LockWrite
	}
	return nfs4.LockRead
}

// lockOp is a LOCK, by the stateid that the file has at the moment. Call with opens.mu
// held.
func (l *locks4) lockOp(r lockRange, reclaim bool, got *state.Stateid) op4 {
	id, byOpen := l.id, !l.made
	if byOpen {
		id = l.f.id
	}
	return op4{nfs4.OpLock, func(e *xdr.Encoder) {
		e.Uint32(lockType(r.exclusive))
		e.Bool(reclaim)
		e.Uint64(r.start)
		e.Uint64(r.length())
		e.Bool(byOpen)
		if byOpen {
			e.Uint32(0) // seqid
		}
		nfs4.EncodeStateid(e, id)
		e.Uint32(0) // seqid
		if byOpen {
			e.Uint64(0) // client ID
			e.String(l.owner)
		}
	}, func(d *xdr.Decoder) {
		*got = nfs4.DecodeStateid(d)
		got.Seq = 0
	}}
}

// taken notes a lock that the server has granted. Call with opens.mu held.
func (l *locks4) taken(r lockRange, id state.Stateid) {
	l.id, l.made = id, true
	l.held = append(without(l.held, r), r)
}

// decodeDenied reads a LOCK4denied.
func decodeDenied(h *LockHolder) func(*xdr.Decoder) {
	return func(d *xdr.Decoder) {
		*h = LockHolder{Offset: d.Uint64(), Length: d.Uint64()}
		h.Exclusive = d.Uint32() == nfs4.LockWrite
		d.Uint64() // client ID
		h.Owner = slices.Clone(d.Opaque(nfs4.OwnerMax))
		// Linux counts up to the largest offset that its files can have.
		if h.Length == toEnd || h.Offset <= math.MaxInt64 && h.Length > math.MaxInt64-h.Offset {
			h.Length = 0
		}
	}
}

// begin waits for the turn; follow with end.
func (l *locks4) begin(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *locks4) end() { <-l.turn }

// lock takes a lock, or returns a *LockedError.
func (o *opens) lock(ctx context.Context, l *locks4, r lockRange) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.end()
	var err error
	for range restores {
		var got state.Stateid
		var holder LockHolder
		o.mu.Lock()
		if l.lost {
			o.mu.Unlock()
			return ErrLockLost
		}
		open := l.f.id
		q := &compound4{cache: true, ops: []op4{putFH(l.f.h), l.lockOp(r, false, &got)}, denied: decodeDenied(&holder)}
		o.mu.Unlock()
		err = o.s.do(ctx, q)
		switch {
		case err == nil:
			o.mu.Lock()
			l.taken(r, got)
			o.mu.Unlock()
			return nil
		case err == nfs.ErrDenied:
			return &LockedError{holder}
		case !lostState(err):
			return err
		}
		if err := o.restore(ctx, l.f, open); err != nil {
			return err
		}
	}
	return err
}

// unlock gives up what is locked of a range.
func (o *opens) unlock(ctx context.Context, l *locks4, r lockRange) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.end()
	var err error
	for range restores {
		o.mu.Lock()
		made, lost, id, open := l.made, l.lost, l.id, l.f.id
		o.mu.Unlock()
		switch {
		case lost:
			return ErrLockLost
		case !made:
			return nil
		}
		err = o.s.do(ctx, &compound4{cache: true, ops: []op4{putFH(l.f.h), {nfs4.OpLockU, func(e *xdr.Encoder) {
			e.Uint32(lockType(r.exclusive))
			e.Uint32(0) // seqid
			nfs4.EncodeStateid(e, id)
			e.Uint64(r.start)
			e.Uint64(r.length())
		}, func(d *xdr.Decoder) { nfs4.DecodeStateid(d) }}}})
		if err == nil {
			o.mu.Lock()
			l.held = without(l.held, r)
			o.mu.Unlock()
			return nil
		}
		if !lostState(err) {
			return err
		}
		if err := o.restore(ctx, l.f, open); err != nil {
			return err
		}
	}
	return err
}

// testLock is LOCKT.
func (o *opens) testLock(ctx context.Context, l *locks4, r lockRange) (*LockHolder, error) {
	var holder LockHolder
	err := o.s.do(ctx, &compound4{ops: []op4{putFH(l.f.h), {num: nfs4.OpLockT, args: func(e *xdr.Encoder) {
		e.Uint32(lockType(r.exclusive))
		e.Uint64(r.start)
		e.Uint64(r.length())
		e.Uint64(0) // client ID
		e.String(l.owner)
	}}}, denied: decodeDenied(&holder)})
	if err == nfs.ErrDenied {
		return &holder, nil
	}
	return nil, err
}

// freeLocks ends a lock-owner: its locks, its stateid, and itself.
func (o *opens) freeLocks(ctx context.Context, l *locks4) error {
	err := o.unlock(ctx, l, lockRange{end: toEnd})
	o.mu.Lock()
	made, id := l.made, l.id
	l.f.locks = slices.DeleteFunc(l.f.locks, func(x *locks4) bool { return x == l })
	o.mu.Unlock()
	if made {
		_ = o.freeStateid(ctx, id) // the CLOSE of the file frees it at the latest
	}
	return err
}

func freeStateidOp(id state.Stateid) op4 {
	return op4{num: nfs4.OpFreeStateID, args: func(e *xdr.Encoder) { nfs4.EncodeStateid(e, id) }}
}

func (o *opens) freeStateid(ctx context.Context, id state.Stateid) error {
	return o.s.do(ctx, &compound4{cache: true, ops: []op4{freeStateidOp(id)}})
}

// reclaimLocks gets back the locks of a file whose open was reclaimed (RFC 8881 section
// 8.4.2.1). The others of an owner of which one cannot be had are given up.
func (o *opens) reclaimLocks(ctx context.Context, x *live, f *open4) error {
	o.mu.Lock()
	all := slices.Clone(f.locks)
	o.mu.Unlock()
	for _, l := range all {
		o.mu.Lock()
		held := slices.Clone(l.held)
		l.made = false
		o.mu.Unlock()
		for _, r := range held {
			var got state.Stateid
			o.mu.Lock()
			op := l.lockOp(r, true, &got)
			o.mu.Unlock()
			err := o.s.within(ctx, x, &compound4{cache: true, ops: []op4{putFH(f.h), op}})
			if err != nil && !errors.As(err, new(nfs.Status)) {
				return err
			}
			o.mu.Lock()
			if err == nil {
				l.id, l.made = got, true
			} else {
				l.lost, l.held = true, nil
			}
			made, id := l.made, l.id
			o.mu.Unlock()
			if err == nil {
				o.s.relocked.Add(1)
				continue
			}
			if made {
				_ = o.s.within(ctx, x, &compound4{cache: true, ops: []op4{putFH(f.h), unlockAllOp(id)}})
			}
			break
		}
	}
	return nil
}

func unlockAllOp(id state.Stateid) op4 {
	return op4{nfs4.OpLockU, func(e *xdr.Encoder) {
		e.Uint32(nfs4.LockWrite)
		e.Uint32(0)
		nfs4.EncodeStateid(e, id)
		e.Uint64(0)
		e.Uint64(toEnd)
	}, func(d *xdr.Decoder) { nfs4.DecodeStateid(d) }}
}

// Waiting times for a lock that somebody else has. A server does not say when it becomes
// free.
const (
	lockWaitFirst = 20 * time.Millisecond
	lockWaitMax   = time.Second
)

// lockOwner is the lock-owner of the file, which is made by the first lock; the file is
// opened for reading or writing.
func (f *File) lockOwner(access uint32) (*opens, *locks4, error) {
	p, err := f.c.procs(f.ctx)
	if err != nil {
		return nil, nil, err
	}
	four, ok := p.(proc4)
	if !ok || f.node.Attr.Type != blockstore.TypeReg {
		return nil, nil, nfs.ErrNotSupp
	}
	if err := f.hold(access, 0); err != nil {
		return nil, nil, err
	}
	f.opening.Lock()
	defer f.opening.Unlock()
	if f.locks == nil {
		if f.locks = four.opens.newLocks(f.node.Handle); f.locks == nil {
			return nil, nil, nfs.ErrBadStateID
		}
	}
	return four.opens, f.locks, nil
}

// lockAccess is how a file has to be open for a lock.
func lockAccess(exclusive bool) uint32 {
	if exclusive {
		return ShareWrite
	}
	return ShareRead
}

// TryLock locks n bytes from off on, or all of them from there on if n is 0, for the File
// alone or together with others that share them. Two Files lock each other out, whichever
// clients they are of; a File replaces its own locks. What somebody else has locked is
// refused with a *LockedError. Locks are advice: they keep nobody from reading or writing.
// They are there until Unlock or Close, and over restarts of the server; see ErrLockLost.
// They need version 4; without, it is nfs.ErrNotSupp.
func (f *File) TryLock(off, n uint64, exclusive bool) error { return f.lock(f.ctx, off, n, exclusive) }

func (f *File) lock(ctx context.Context, off, n uint64, exclusive bool) error {
	r, err := newLockRange(off, n, exclusive)
	if err != nil {
		return pathError("lock", f.name, err)
	}
	o, l, err := f.lockOwner(lockAccess(exclusive))
	if err == nil {
		err = o.lock(ctx, l, r)
	}
	return pathError("lock", f.name, err)
}

// Lock is TryLock that waits, until ctx ends, for what somebody else has locked.
func (f *File) Lock(ctx context.Context, off, n uint64, exclusive bool) error {
	for wait := lockWaitFirst; ; wait = min(2*wait, lockWaitMax) {
		err := f.lock(ctx, off, n, exclusive)
		if !errors.As(err, new(*LockedError)) {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return pathError("lock", f.name, err)
		}
	}
}

// Unlock gives up what the File has locked of n bytes from off on; 0 is all of them from
// there on.
func (f *File) Unlock(off, n uint64) error {
	r, err := newLockRange(off, n, true)
	if err != nil {
		return pathError("unlock", f.name, err)
	}
	f.opening.Lock()
	l := f.locks
	f.opening.Unlock()
	if l == nil {
		return nil
	}
	p, err := f.c.procs(f.ctx)
	if err == nil {
		err = p.(proc4).opens.unlock(f.ctx, l, r)
	}
	return pathError("unlock", f.name, err)
}

// TestLock returns a lock of somebody else that stands in the way, or nil.
func (f *File) TestLock(off, n uint64, exclusive bool) (*LockHolder, error) {
	r, err := newLockRange(off, n, exclusive)
	if err != nil {
		return nil, pathError("lock", f.name, err)
	}
	o, l, err := f.lockOwner(ShareRead)
	if err != nil {
		return nil, pathError("lock", f.name, err)
	}
	h, err := o.testLock(f.ctx, l, r)
	return h, pathError("lock", f.name, err)
}

// lockLost reports whether the server has given up the file's locks.
func (f *File) lockLost() error {
	f.opening.Lock()
	l := f.locks
	f.opening.Unlock()
	if l == nil {
		return nil
	}
	p, err := f.c.procs(f.ctx)
	if err != nil {
		return err
	}
	o := p.(proc4).opens
	o.mu.Lock()
	defer o.mu.Unlock()
	if l.lost {
		return ErrLockLost
	}
	return nil
}

// unlockAll is for Close. Call with opening held.
func (f *File) unlockAll() error {
	l := f.locks
	if l == nil {
		return nil
	}
	f.locks = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), releaseTime)
	defer cancel()
	p, err := f.c.procs(ctx)
	if err != nil {
		return err
	}
	return p.(proc4).opens.freeLocks(ctx, l)
}
