package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// lockRange is a locked range of bytes, including both ends.
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

// without returns list less the bytes of r. Ranges that r cuts become shorter, or two.
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

// locks4 are the byte-range locks of one File. Each File is a lock-owner of its own. opens.mu
// guards the fields whose comments name no other lock.
type locks4 struct {
	opens *opens
	f     *open4
	owner string
	mu    ctxMutex // held while the server locks or unlocks

	id     state.Stateid // with seqid 0
	made   bool          // the server has returned id
	ranges []lockRange   // the ranges that are locked
	lost   bool          // the server has given up locks of ranges
}

// lose records that the server has given up the locks. opens.mu is held.
func (l *locks4) lose() {
	l.lost = l.lost || len(l.ranges) > 0
	l.made, l.ranges = false, nil
}

// loseLocks records that the server has given up all locks of a file. opens.mu is held.
func (f *open4) loseLocks() {
	for _, l := range f.locks {
		l.lose()
	}
}

// newLocks makes a lock-owner for a file that is open, or returns nil if it is not.
func (o *opens) newLocks(h Handle) *locks4 {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.byFile[string(h)]
	if f == nil {
		return nil
	}
	o.lockers++
	l := &locks4{opens: o, f: f, owner: fmt.Sprintf("lock %d", o.lockers), mu: newCtxMutex()}
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

// typeWaits added to the type of a lock makes READW_LT of READ_LT, and WRITEW_LT of WRITE_LT: the
// client waits if the lock is denied.
const typeWaits = 2

// lockOp is a LOCK (RFC 8881 section 18.10). The first LOCK of a lock-owner names the open of
// the file (open_to_lock_owner4), later ones the stateid of the locks. opens.mu is held.
func (l *locks4) lockOp(r lockRange, reclaim, waits bool, got *state.Stateid) op4 {
	kind := lockType(r.exclusive)
	if waits {
		kind += typeWaits
	}
	id, byOpen := l.id, !l.made
	if byOpen {
		id = l.f.id
	}
	return op4{nfs4.OpLock, func(e *xdr.Encoder) {
		e.Uint32(kind)
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

// unlockOp is a LOCKU (RFC 8881 section 18.12).
func unlockOp(id state.Stateid, r lockRange) op4 {
	return op4{nfs4.OpLockU, func(e *xdr.Encoder) {
		e.Uint32(lockType(r.exclusive))
		e.Uint32(0) // seqid
		nfs4.EncodeStateid(e, id)
		e.Uint64(r.start)
		e.Uint64(r.length())
	}, skipStateid}
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

// lock takes a lock, or returns a *LockedError. waits says that the caller then tries again.
func (l *locks4) lock(ctx context.Context, r lockRange, waits bool) error {
	var holder LockHolder
	err := l.change(ctx, func() (*compound4, func()) {
		var got state.Stateid
		q := &compound4{
			cache: true, ops: []op4{putFH(l.f.h), l.lockOp(r, false, waits, &got)}, denied: decodeDenied(&holder),
		}
		return q, func() { l.id, l.made, l.ranges = got, true, append(without(l.ranges, r), r) }
	})
	if err == nfs.ErrDenied {
		return &LockedError{holder}
	}
	return err
}

// unlock gives up what is locked of a range.
func (l *locks4) unlock(ctx context.Context, r lockRange) error {
	return l.change(ctx, func() (*compound4, func()) {
		if !l.made {
			return nil, nil
		}
		q := &compound4{cache: true, ops: []op4{putFH(l.f.h), unlockOp(l.id, r)}}
		return q, func() { l.ranges = without(l.ranges, r) }
	})
}

// change executes the compound that makes returns, and then calls done. It calls makes and done
// with opens.mu held. If the server has lost the open, change opens the file again and starts over.
// A nil compound says that there is nothing to do.
func (l *locks4) change(ctx context.Context, makes func() (q *compound4, done func())) error {
	o := l.opens
	if err := l.mu.lock(ctx); err != nil {
		return err
	}
	defer l.mu.unlock()
	var err error
	for range restores {
		o.mu.Lock()
		if l.lost {
			o.mu.Unlock()
			return ErrLockLost
		}
		open := l.f.id
		q, done := makes()
		o.mu.Unlock()
		if q == nil {
			return nil
		}
		if err = o.s.do(ctx, q); err == nil {
			o.mu.Lock()
			done()
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

// test returns the lock that is in the way of r, or nil (LOCKT, RFC 8881 section 18.11).
func (l *locks4) test(ctx context.Context, r lockRange) (*LockHolder, error) {
	var holder LockHolder
	err := l.opens.s.do(ctx, &compound4{ops: []op4{putFH(l.f.h), {num: nfs4.OpLockT, args: func(e *xdr.Encoder) {
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

// free ends a lock-owner: its locks, its stateid, and itself.
func (l *locks4) free(ctx context.Context) error {
	o := l.opens
	err := l.unlock(ctx, lockRange{end: toEnd})
	o.mu.Lock()
	made, id := l.made, l.id
	l.f.locks = slices.DeleteFunc(l.f.locks, func(x *locks4) bool { return x == l })
	o.mu.Unlock()
	if made {
		_ = o.s.change(ctx, freeStateidOp(id)) // if this fails, the CLOSE of the file frees the stateid
	}
	return err
}

// reclaimLocks reclaims the locks of a file whose open was reclaimed (RFC 8881 section 8.4.2.1). If
// one lock of an owner cannot be reclaimed, all locks of the owner are lost: the client cannot tell
// which part of the protected data is unchanged.
func (o *opens) reclaimLocks(ctx context.Context, x *live, f *open4) error {
	o.mu.Lock()
	all := slices.Clone(f.locks)
	o.mu.Unlock()
	for _, l := range all {
		o.mu.Lock()
		ranges := slices.Clone(l.ranges)
		l.made = false
		o.mu.Unlock()
		for _, r := range ranges {
			var got state.Stateid
			o.mu.Lock()
			op := l.lockOp(r, true, false, &got)
			o.mu.Unlock()
			err := o.s.changeDuring(ctx, x, putFH(f.h), op)
			if err != nil && !errors.As(err, new(nfs.Status)) {
				return err
			}
			o.mu.Lock()
			if err == nil {
				l.id, l.made = got, true
			} else {
				l.lost, l.ranges = true, nil
			}
			made, id := l.made, l.id
			o.mu.Unlock()
			if err == nil {
				o.s.relocked.Add(1)
				continue
			}
			if made {
				_ = o.s.changeDuring(ctx, x, putFH(f.h), unlockOp(id, lockRange{0, toEnd, true}))
			}
			break
		}
	}
	return nil
}
