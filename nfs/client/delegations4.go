package client

import (
	"context"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A file with a delegation stays open at the server when the last caller here closes it, so that
// the next open needs no call. It is closed after its delegation has been returned.
//
//	OPEN, WANT_ANY  --->  delegation  --->  open, close, open ... without a call
//	CB_RECALL       --->  Recalled: the user writes back  --->  DELEGRETURN, CLOSE
//	the server restarts   OPEN, CLAIM_PREVIOUS with the type of the delegation

const (
	// delegationsMax bounds the delegations of a client. Above it the client returns the
	// delegations that were unused for the longest time.
	delegationsMax = 1000
	// delegationIdle is how long a file is closed before its delegation is returned.
	delegationIdle = time.Minute
	// earlyMax bounds the early recalls, see granting.
	earlyMax = 256

	// wantAny is OPEN4_SHARE_ACCESS_WANT_ANY_DELEG: the type that suits the access.
	wantAny = 0x0300
)

// want returns what an OPEN of a file asks for: a delegation if the client has a user of
// delegations. An open for writing alone asks for none: others usually read the file next, and
// would have to wait for a recall. opens.mu is held. f is nil for a file that is created.
func (o *opens) want(f *open4, access uint32) uint32 {
	if o.user() == nil || access == ShareWrite || f != nil && f.deleg != nil {
		return nfs4.WantNoDeleg
	}
	if x := o.s.current(); x == nil || !x.back {
		return nfs4.WantNoDeleg
	}
	return wantAny
}

func (o *opens) user() DelegationUser {
	if u := o.s.conn.calls.user.Load(); u != nil {
		return *u
	}
	return nil
}

// granting begins an OPEN that may get a delegation, and returns the function that ends the OPEN. A
// CB_RECALL can overtake the reply of the OPEN (RFC 8881 section 2.10.6.3). So the client remembers
// recalls of unknown delegations until no OPEN is in flight. Then it returns those delegations that
// are still unknown.
func (o *opens) granting() (end func()) {
	o.mu.Lock()
	o.grants++
	o.mu.Unlock()
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.grants--; o.grants > 0 {
			return
		}
		for _, r := range o.early {
			o.returnUnknown(r.h, r.id)
		}
		o.early = nil
	}
}

// earlyRecall is a recall of a delegation that the client does not know yet.
type earlyRecall struct {
	h  Handle
	id state.Stateid
}

// returnUnknown returns a delegation under which the client caches nothing. It reports false if too
// many wait to be returned. The server then recalls the delegation, perhaps once more.
func (o *opens) returnUnknown(h Handle, id state.Stateid) bool {
	return o.chores.add(earlyMax, func() {
		ctx, cancel := context.WithTimeout(context.Background(), o.s.conn.giveUp)
		defer cancel()
		o.returnUnused(ctx, h, id)
	})
}

// returnUnused returns a delegation of a file of which the client caches nothing.
func (o *opens) returnUnused(ctx context.Context, h Handle, id state.Stateid) {
	err := o.s.change(ctx, putFH(h), delegReturnOp(func() state.Stateid { return id }))
	if lostState(err) {
		_ = o.s.change(ctx, freeStateidOp(id)) // the server has revoked it, or does not know it
	}
}

// delegReturnOp is a DELEGRETURN (RFC 8881 section 18.6).
func delegReturnOp(id func() state.Stateid) op4 {
	return op4{num: nfs4.OpDelegReturn, args: func(e *xdr.Encoder) { nfs4.EncodeStateid(e, id()) }}
}

// grant records the delegation that an OPEN of f has returned, if any. opens.mu is held.
func (o *opens) grant(f *open4, res *opened4, who *permit) {
	if d := f.deleg; d != nil {
		if res.given && res.deleg.Other != d.id.Other {
			o.returnUnknown(f.h, res.deleg)
		}
		d.permit(who)
		return
	}
	if !res.given {
		return
	}
	if o.user() == nil || o.stopped {
		o.returnUnknown(f.h, res.deleg)
		return
	}
	d := &Delegation{
		o: o, f: f, write: res.write, change: res.attrs.change, size: res.attrs.attr.Size, id: res.deleg,
		used: clock.Now(), over: make(chan struct{}),
	}
	f.deleg = d
	o.delegations++
	o.granted.Add(1)
	d.permit(who)
	early := slices.IndexFunc(o.early, func(r earlyRecall) bool { return r.id.Other == d.id.Other })
	if early >= 0 {
		o.early = slices.Delete(o.early, early, early+1)
	}
	unknown := res.write && res.attrs.has != ofDelegated // there is no answer to a CB_GETATTR
	if early >= 0 || res.recall || unknown {
		o.recalled.Add(1)
		o.giveBack(d)
	}
	if o.delegations > delegationsMax {
		o.shrink(delegationsMax*15/16, nfs4.BitmapOf(kindRead, kindWrite))
	}
}

// permit records that a user may open the file. opens.mu is held.
func (d *Delegation) permit(p *permit) {
	if p == nil {
		return
	}
	if d.permits == nil || len(d.permits) >= permitsMax {
		d.permits = make(map[permit]struct{})
	}
	d.permits[*p] = struct{}{}
}

// permitted reports whether the server has let a user open a file with this access, or more, under
// the delegation that the client still has. A change of the permissions by another client would
// recall the delegation.
func (o *opens) permitted(h Handle, p permit) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.byFile[string(h)]
	if f == nil || f.deleg == nil || !f.deleg.valid() {
		return false
	}
	for _, access := range []uint32{p.access, ShareBoth} {
		if _, ok := f.deleg.permits[permit{p.who, access}]; ok {
			return true
		}
	}
	return false
}

// permit records that the server has let a user open a file that is open.
func (o *opens) permit(h Handle, p permit) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f := o.byFile[string(h)]; f != nil && f.deleg != nil {
		f.deleg.permit(&p)
	}
}

// forbid forgets the permissions of a file, because this client changes them.
func (o *opens) forbid(h Handle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f := o.byFile[string(h)]; f != nil && f.deleg != nil {
		f.deleg.permits = nil
	}
}

// recall is CB_RECALL.
func (o *opens) recall(h Handle, id state.Stateid) nfs.Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.byFile[string(h)]
	switch {
	case f != nil && f.deleg != nil && f.deleg.id.Other == id.Other:
		if f.deleg.phase == phaseHeld {
			o.recalled.Add(1)
		}
		o.giveBack(f.deleg)
	case o.grants == 0:
		// Nothing is cached under a delegation that the client does not know: the OPEN was given up.
		if !o.returnUnknown(copyHandle(h), id) {
			return nfs.ErrJukebox
		}
	case len(o.early) >= earlyMax:
		return nfs.ErrJukebox
	default:
		o.early = append(o.early, earlyRecall{copyHandle(h), id})
	}
	return nfs.OK
}

// callbackAttr is CB_GETATTR. If the client has changed the file, it reports a change attribute
// that differs from the one it got with the delegation (RFC 8881 section 10.4.3). Linux's server
// compares the size too, so the size has to be the current one if all changes were sent.
func (o *opens) callbackAttr(h Handle) (change, size uint64, st nfs.Status) {
	u := o.user()
	o.mu.Lock()
	f := o.byFile[string(h)]
	var d *Delegation
	if f != nil {
		d = f.deleg
	}
	o.mu.Unlock()
	if u == nil || d == nil || !d.write {
		return 0, 0, nfs.ErrBadHandle
	}
	size, changed := u.Changed(d)
	if changed {
		return d.change + 1, size, nfs.OK
	}
	return d.change, size, nfs.OK
}

// Kinds of objects of CB_RECALL_ANY (RFC 8881 section 20.6).
const (
	kindRead  = 0 // RCA4_TYPE_MASK_RDATA_DLG
	kindWrite = 1
)

// recallAny is CB_RECALL_ANY.
func (o *opens) recallAny(keep uint32, kinds nfs4.Bitmap) nfs.Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shrink(int(min(keep, delegationsMax)), kinds)
	return nfs.OK
}

// shrink returns delegations of some kinds until at most keep of them are left. It begins with
// closed files. Of these it takes the longest unused ones first. opens.mu is held.
func (o *opens) shrink(keep int, kinds nfs4.Bitmap) {
	var list []*Delegation
	for _, f := range o.byFile {
		if d := f.deleg; d != nil && d.phase == phaseHeld &&
			(d.write && kinds.Has(kindWrite) || !d.write && kinds.Has(kindRead)) {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b *Delegation) int {
		if closed := a.f.refs == 0; closed != (b.f.refs == 0) {
			if closed {
				return -1
			}
			return 1
		}
		return a.used.Compare(b.used)
	})
	for _, d := range list[:max(0, len(list)-keep)] {
		o.giveBack(d)
	}
}

// giveIdle returns the delegations of files that were closed long ago. opens.mu is held.
func (o *opens) giveIdle() {
	now := clock.Now()
	for _, f := range o.byFile {
		if d := f.deleg; d != nil && f.refs == 0 && now.Sub(d.used) > delegationIdle {
			o.giveBack(d)
		}
	}
}

// giveBack starts to return a delegation, unless the client is returning it already. opens.mu is
// held.
func (o *opens) giveBack(d *Delegation) {
	if d.phase != phaseHeld {
		return
	}
	d.phase = phaseReturning
	go o.returning(d)
}

// kind returns the open_delegation_type4 of a delegation. d can be nil.
func (d *Delegation) kind() uint32 {
	switch {
	case d == nil:
		return nfs4.DelegNone
	case d.write:
		return delegWrite
	}
	return delegRead
}

// count adds the counts of delegations and waits for locks.
func (o *opens) count(s *Stats) {
	o.mu.Lock()
	s.Delegations = o.delegations
	o.mu.Unlock()
	s.Delegated, s.Recalled, s.Returned = o.granted.Load(), o.recalled.Load(), o.returned.Load()
	s.Redelegated, s.LostDelegations, s.Notified = o.redelegated.Load(), o.lost.Load(), o.notified.Load()
}
