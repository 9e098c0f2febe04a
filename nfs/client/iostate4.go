package client

import (
	"context"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// restores bounds how often a call is sent again because the server has lost the open of its
// stateid.
const restores = 4

// ioState is the stateid of a READ, a WRITE, or a SETATTR of the size.
type ioState struct {
	id   state.Stateid
	f    *open4        // nil: id is the anonymous stateid
	open state.Stateid // of f
	d    *Delegation   // nil: id is not that of a delegation
}

// ioState returns the stateid for an access to a file (RFC 8881 sections 8.2.5 and 9.1.2):
//
//	of the locks of the context           if the caller has some
//	of the delegation for writing         for a WRITE, if there is one: after the server has revoked
//	                                      it, the server refuses the WRITE
//	of the open                           if there is one with this access
//	the anonymous stateid                 otherwise
//
// The error is ErrLockLost or ErrDelegationLost. It waits while the client returns the delegation
// under which the data of the context was written: whether the data may still be written depends on
// the server's answer.
func (o *opens) ioState(ctx context.Context, h Handle, access uint32) (u ioState, err error) {
	locks, _ := ctx.Value(locksKey{}).([]*locks4)
	under, _ := ctx.Value(delegationKey{}).(*Delegation)
	o.mu.Lock()
	defer o.mu.Unlock()
	for under != nil && under.leaving() {
		over := under.over
		o.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			err = ctx.Err()
		}
		o.mu.Lock()
		if err != nil {
			return u, err
		}
	}
	if under != nil && under.gone() {
		return u, ErrDelegationLost
	}
	u.id, u.f = o.openState(h, access)
	u.open = u.id
	locked := false
	for _, l := range locks {
		if l.lost {
			return u, ErrLockLost
		}
		if u.f != nil && l.f == u.f && l.made {
			u.id, locked = l.id, true
		}
	}
	if u.f == nil || locked || access != ShareWrite {
		return u, nil
	}
	if d := u.f.deleg; d != nil && d.write && d.phase < phaseEnded && !d.leaving() {
		u.id, u.d = d.id, d
		u.id.Seq = 0 // stands for the newest
	}
	return u, nil
}

// openState returns the stateid of the open of a file if there is one with this access, else the
// anonymous one (RFC 8881 section 8.2.3). opens.mu is held.
func (o *opens) openState(h Handle, access uint32) (state.Stateid, *open4) {
	f := o.byFile[string(h)]
	if f == nil || !f.open || access&^f.access != 0 {
		return state.Anonymous, nil
	}
	return f.id, f
}

// retry decides whether a call with the stateid u, which failed with err, is sent again. If the
// server has lost the open, retry opens the file again. If the server has ended the delegation,
// retry records the loss.
func (o *opens) retry(ctx context.Context, u *ioState, err error) (again bool, failed error) {
	switch {
	case u.f == nil || !lostState(err):
		return false, err
	case u.d != nil:
		o.refused(u.d, u.id)
		return true, nil
	}
	if err := o.restore(ctx, u.f, u.open); err != nil {
		return false, err
	}
	return true, nil
}

// refused records that the server does not accept the stateid id of a delegation any more. It
// changes nothing if the client has reclaimed the delegation meanwhile, or is returning it.
func (o *opens) refused(d *Delegation, id state.Stateid) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d.id.Other == id.Other && !d.leaving() {
		o.lose(d)
	}
}

// withState executes the compound that io makes for a stateid of a file. If the server has lost the
// open, withState opens the file again and repeats the compound. It does not do so if the context
// has locks, because the locks are lost with the open (UnderLocks).
func (p proc4) withState(ctx context.Context, h Handle, access uint32, io func(state.Stateid) *compound4) error {
	for range restores {
		u, err := p.opens.ioState(ctx, h, access)
		if err != nil {
			return err
		}
		if err = p.do(ctx, io(u.id)); err == nil {
			return nil
		}
		if again, err := p.opens.retry(ctx, &u, err); !again {
			return as3(err)
		}
	}
	return nfs.ErrBadStateID
}
