package client

import (
	"context"
	"errors"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// list returns the files that the server should have open.
func (o *opens) list() (list []*open4) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.byFile {
		if f.open {
			list = append(list, f)
		}
	}
	return list
}

// reclaim reclaims the opens and locks from before the server's restart (RFC 8881 section 8.4.2.1).
// If the server refuses one, reopen opens the file anew.
func (o *opens) reclaim(ctx context.Context, x *live) error {
	for _, f := range o.list() {
		err := o.openAgain(ctx, x, f, true)
		if err == nil {
			o.s.reclaimed.Add(1)
			err = o.reclaimLocks(ctx, x, f)
		} else if errors.As(err, new(nfs.Status)) {
			o.mu.Lock()
			o.lose(f.deleg)
			o.mu.Unlock()
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// openAgain opens a file in the new session x with the access that it had. With reclaim it reclaims
// the open and its delegation. Otherwise it opens the file anew.
func (o *opens) openAgain(ctx context.Context, x *live, f *open4, reclaim bool) error {
	o.mu.Lock()
	old, access, deny := f.id, f.access, f.deny
	ctx = WithCred(ctx, f.cred)
	d, claim, want := f.deleg, claimFH, uint32(nfs4.WantNoDeleg)
	if reclaim {
		claim = claimPrevious(d.kind())
		if d != nil {
			want = 0
		}
	}
	o.mu.Unlock()
	var res opened4
	q := openCompound(f.h, access|want, deny, claim, &res)
	if err := o.s.during(ctx, x, q); err != nil && q.executed < 2 {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if f.open && f.id == old {
		f.id = res.id
	}
	if reclaim && d != nil {
		o.regrant(d, &res)
	}
	return nil
}

// reopen opens the files anew that could not be reclaimed: the server has no grace period, or did
// not know the client. The locks of such a file are lost. If the server refuses the OPEN too, the
// next READ or WRITE of the file fails.
func (o *opens) reopen(ctx context.Context, x *live) {
	for _, f := range o.list() {
		o.mu.Lock()
		id, unused := f.id, f.refs == 0 && f.deleg == nil
		o.mu.Unlock()
		if unused {
			continue // it is about to be closed
		}
		if st, err := o.test(ctx, x, []state.Stateid{id}); err == nil && st[0] == nfs.OK {
			continue
		}
		o.mu.Lock()
		f.loseLocks()
		o.mu.Unlock()
		_ = o.openAgain(ctx, x, f, false)
	}
}

// closeAll closes every file that is still open, at the end of the client.
func (o *opens) closeAll(ctx context.Context, x *live) {
	o.mu.Lock()
	if !o.stopped {
		o.stopped = true
		close(o.stop)
	}
	o.mu.Unlock()
	for _, f := range o.list() {
		ops := []op4{putFH(f.h)}
		o.mu.Lock()
		if d := f.deleg; d != nil {
			id := d.id
			ops = append(ops, op4{num: nfs4.OpDelegReturn, args: func(e *xdr.Encoder) { nfs4.EncodeStateid(e, id) }})
			o.endDelegation(d, phaseEnded)
		}
		ops = append(ops, closeOp(f.id))
		f.open = false
		o.mu.Unlock()
		if o.s.changeDuring(ctx, x, ops...) != nil && ctx.Err() != nil {
			return
		}
	}
}
