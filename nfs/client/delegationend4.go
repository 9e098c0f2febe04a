package client

import (
	"context"

	"github.com/rstored/rstored/nfs/state"
)

// How a delegation ends: the client returns it, the server has ended it on its own, or the server
// does not grant it again after a restart.

// returning writes back, returns a delegation, and closes its file if nobody here has it open.
func (o *opens) returning(d *Delegation) {
	ctx, cancel := context.WithTimeout(WithCred(context.Background(), o.s.cred), o.s.conn.giveUp)
	defer cancel()
	if u := o.user(); u != nil {
		u.Recalled(ctx, d)
	}
	o.mu.Lock()
	d.sent = true
	o.mu.Unlock()
	// The stateid is read when the call is sent: a restart of the server changes it.
	err := o.s.change(ctx, putFH(d.f.h), delegReturnOp(func() state.Stateid {
		o.mu.Lock()
		defer o.mu.Unlock()
		return d.id
	}))
	o.mu.Lock()
	switch {
	case d.phase != phaseReturning:
	case lostState(err) || err != nil && ctx.Err() != nil:
		o.lose(d) // the server has revoked it, or will
	default:
		o.returned.Add(1)
		o.endDelegation(d, phaseEnded)
	}
	o.mu.Unlock()
	_ = o.closeUnused(ctx, d.f) // if this fails, the server closes the file with the session
}

// endDelegation records the end of a delegation. opens.mu is held.
func (o *opens) endDelegation(d *Delegation, p phase) {
	if d.phase == phaseEnded || d.phase == phaseLost {
		return
	}
	d.phase = p
	if d.f.deleg == d {
		d.f.deleg = nil
		o.delegations--
	}
	close(d.over)
}

// lose records that the server has ended a delegation on its own. opens.mu is held.
func (o *opens) lose(d *Delegation) {
	if d == nil || d.phase == phaseEnded || d.phase == phaseLost {
		return
	}
	o.endDelegation(d, phaseLost)
	o.lost.Add(1)
	if len(o.revoked) < delegationsMax {
		o.revoked = append(o.revoked, d.id)
	}
	if u := o.user(); u != nil {
		o.losses.add(0, func() { u.Lost(d) })
	}
	o.closeLater(d.f)
}

// closeLater closes a file in the background if no caller has it open and it has no delegation.
func (o *opens) closeLater(f *open4) {
	o.chores.add(0, func() {
		ctx, cancel := context.WithTimeout(context.Background(), o.s.conn.giveUp)
		defer cancel()
		_ = o.closeUnused(ctx, f)
	})
}

// closeUnused closes a file at the server if no caller has it open and it has no delegation.
func (o *opens) closeUnused(ctx context.Context, f *open4) error {
	if err := f.mu.lock(ctx); err != nil {
		return err
	}
	defer f.mu.unlock()
	return o.closeIfUnused(ctx, f)
}

// regrant records the answer to the reclaim of an open with the delegation d. Because the open was
// reclaimed, nobody else has changed the file. So if the server does not grant the delegation
// again, the client gives it up, but it is not lost. opens.mu is held.
func (o *opens) regrant(d *Delegation, res *opened4) {
	switch {
	case d.phase != phaseHeld && d.phase != phaseReturning:
	case !res.given || res.write != d.write:
		o.endDelegation(d, phaseEnded)
		o.closeLater(d.f)
	default:
		d.id = res.deleg
		o.redelegated.Add(1)
		if res.recall && d.phase == phaseHeld {
			o.recalled.Add(1)
			o.giveBack(d)
		}
	}
}
