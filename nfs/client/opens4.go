package client

import (
	"context"
	"errors"
	"sync"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Access and denial of an open (share_access, share_deny).
const (
	ShareRead  = state.Read
	ShareWrite = state.Write
	ShareBoth  = state.Both
)

// open4 is a file that the client has open. It is one open of one open-owner, however many callers
// here have it open. opens.mu guards what is not said otherwise.
type open4 struct {
	h Handle
	// mu is held while the file is opened or closed at the server.
	mu   ctxMutex
	refs int // callers that want it open, those that wait for mu included

	cred         *rpc.Cred // of the last OPEN; recovery opens the file as this user; nil: the client's
	access, deny uint32
	id           state.Stateid // with seqid 0, which stands for the newest (RFC 8881 section 8.2.2)
	open         bool          // the server has it open
	locks        []*locks4
}

// opens are the files that a client has open, by their handles. The client opens files by handle
// (CLAIM_FH), so a file has one entry before its OPEN is sent.
type opens struct {
	s *session4

	mu       sync.Mutex
	byFile   map[string]*open4
	renewing bool          // a goroutine renews the lease
	lockers  uint64        // numbers the lock-owners
	stop     chan struct{} // closed at the end of the client
	stopped  bool
}

func newOpens(s *session4) *opens {
	return &opens{s: s, byFile: make(map[string]*open4), stop: make(chan struct{})}
}

// openOwner is the open-owner of the opens in the table. A file that the client creates has an
// open-owner of its own, and is closed in the compound that creates it.
const openOwner = "files"

// openOp is an OPEN that creates nothing (RFC 8881 section 18.16).
func openOp(access, deny uint32, claim func(*xdr.Encoder), res *opened4) op4 {
	return op4{nfs4.OpOpen, func(e *xdr.Encoder) {
		e.Uint32(0) // seqid
		e.Uint32(access | nfs4.WantNoDeleg)
		e.Uint32(deny)
		e.Uint64(0) // client ID
		e.String(openOwner)
		e.Uint32(nfs4.OpenNoCreate)
		claim(e)
	}, res.decode}
}

func claimFH(e *xdr.Encoder) { e.Uint32(nfs4.ClaimFH) }

func claimPrevious(e *xdr.Encoder) {
	e.Uint32(nfs4.ClaimPrevious)
	e.Uint32(nfs4.DelegNone)
}

// opened4 is an OPEN4resok.
type opened4 struct {
	id    state.Stateid
	deleg state.Stateid
	given bool // the server granted a delegation, although the client wants none
}

// Words of open_delegation4, and of the nfsace4 in it.
const (
	delegRead       = 1
	delegWrite      = 2
	limitSize       = 1
	limitBlocks     = 2
	whyContention   = 1
	whyResource     = 2
	whoMax          = nfs4.OwnerMax
	changeInfoBytes = 4 + 8 + 8
)

func (o *opened4) decode(d *xdr.Decoder) {
	*o = opened4{id: nfs4.DecodeStateid(d)}
	d.Skip(changeInfoBytes)
	d.Uint32() // flags
	nfs4.DecodeBitmap(d)
	switch how := d.Uint32(); how {
	case nfs4.DelegNone:
	case nfs4.DelegNoneExt:
		switch d.Uint32() {
		case whyContention, whyResource:
			d.Bool() // the server will say when it changes
		}
	case delegRead, delegWrite:
		o.given, o.deleg = true, nfs4.DecodeStateid(d)
		d.Bool() // being recalled
		if how == delegWrite {
			switch d.Uint32() {
			case limitSize, limitBlocks:
				d.Skip(8)
			default:
				d.Fail(errResults)
			}
		}
		d.Skip(4 + 4 + 4) // type, flags and mask of an nfsace4
		d.Opaque(whoMax)
	default:
		d.Fail(errResults)
	}
	o.id.Seq = 0
}

// openCompound opens a file by its handle.
func openCompound(h Handle, access, deny uint32, claim func(*xdr.Encoder), res *opened4) *compound4 {
	return &compound4{cache: true, ops: []op4{putFH(h), openOp(access, deny, claim, res)}}
}

// acquire has a file open until release. sent says that the server has executed an OPEN, and so
// has checked the permission of the caller.
func (o *opens) acquire(ctx context.Context, h Handle, access, deny uint32) (sent bool, err error) {
	f := o.refer(h)
	sent, err = o.widen(ctx, f, access, deny)
	if err != nil {
		_ = o.drop(ctx, f) // the error of the OPEN is the one to report
	}
	return sent, err
}

// refer returns the entry of a file, with one more reference. It makes the entry if there is none.
func (o *opens) refer(h Handle) *open4 {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.byFile[string(h)]
	if f == nil {
		f = &open4{h: copyHandle(h), mu: newCtxMutex()}
		o.byFile[string(h)] = f
	}
	f.refs++
	return f
}

// widen makes sure that the server has a file open with this access and denial, or more. An OPEN by
// the same owner adds to what the open has (RFC 8881 section 9.9).
func (o *opens) widen(ctx context.Context, f *open4, access, deny uint32) (sent bool, err error) {
	if err := f.mu.lock(ctx); err != nil {
		return false, err
	}
	defer f.mu.unlock()
	o.mu.Lock()
	enough := f.open && access&^f.access == 0 && deny&^f.deny == 0
	if f.open {
		access, deny = access|f.access, deny|f.deny
	}
	o.mu.Unlock()
	if enough {
		return false, nil
	}
	return true, o.open(ctx, f, access, deny)
}

// open opens a file at the server. f.mu is held.
func (o *opens) open(ctx context.Context, f *open4, access, deny uint32) error {
	var res opened4
	if err := o.s.do(ctx, openCompound(f.h, access, deny, claimFH, &res)); err != nil {
		return err
	}
	o.mu.Lock()
	f.open, f.id, f.access, f.deny, f.cred = true, res.id, access, deny, credOf(ctx, nil)
	o.renewLater()
	o.mu.Unlock()
	if res.given {
		o.returnDelegation(ctx, f.h, res.deleg)
	}
	return nil
}

// returnDelegation returns a delegation that the server granted although none was wanted.
func (o *opens) returnDelegation(ctx context.Context, h Handle, id state.Stateid) {
	_ = o.s.change(ctx, putFH(h), op4{
		num: nfs4.OpDelegReturn, args: func(e *xdr.Encoder) { nfs4.EncodeStateid(e, id) },
	})
}

// release ends one acquire.
func (o *opens) release(ctx context.Context, h Handle) error {
	o.mu.Lock()
	f := o.byFile[string(h)]
	o.mu.Unlock()
	if f == nil {
		return nil
	}
	return o.drop(ctx, f)
}

// drop takes one reference away. The last one closes the file.
func (o *opens) drop(ctx context.Context, f *open4) error {
	f.mu <- struct{}{} // the reference goes even if ctx has ended
	defer f.mu.unlock()
	o.mu.Lock()
	f.refs--
	if f.refs > 0 {
		o.mu.Unlock()
		return nil
	}
	// The entry stays in the table until the CLOSE is answered: a caller that opens the file meanwhile
	// waits for f.mu, so that its OPEN does not overtake the CLOSE.
	open, id := f.open, f.id
	f.open = false
	o.mu.Unlock()
	var err error
	if open {
		err = o.close(ctx, f.h, id)
	}
	o.mu.Lock()
	if f.refs == 0 && o.byFile[string(f.h)] == f {
		delete(o.byFile, string(f.h))
	}
	o.mu.Unlock()
	return err
}

// close closes a file at the server. A file whose state the server has lost is closed already.
func (o *opens) close(ctx context.Context, h Handle, id state.Stateid) error {
	err := o.s.change(ctx, putFH(h), closeOp(id))
	if lostState(err) {
		return nil
	}
	return err
}

// lostState reports whether the server does not know a stateid any more.
func lostState(err error) bool {
	switch err {
	case nfs.ErrBadStateID, nfs.ErrStaleStateID, nfs.ErrExpired, nfs.ErrAdminRevoked, nfs.ErrOldStateID:
		return true
	}
	return false
}

// stateid returns the stateid for a READ or WRITE of a file: that of the open f if there is one
// with this access, else the anonymous one (RFC 8881 section 8.2.3).
func (o *opens) stateid(h Handle, access uint32) (id state.Stateid, f *open4) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f = o.byFile[string(h)]
	if f == nil || !f.open || access&^f.access != 0 {
		return state.Anonymous, nil
	}
	return f.id, f
}

// restore opens a file again after the server has lost its open, whose stateid was lost. It does
// nothing if another call has done so already.
func (o *opens) restore(ctx context.Context, f *open4, lost state.Stateid) error {
	if err := f.mu.lock(ctx); err != nil {
		return err
	}
	defer f.mu.unlock()
	o.mu.Lock()
	stale := f.open && f.id == lost
	access, deny := f.access, f.deny
	ctx = WithCred(ctx, f.cred)
	if stale {
		f.loseLocks()
	}
	o.mu.Unlock()
	if !stale {
		return nil
	}
	return o.open(ctx, f, access, deny)
}

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

// reclaim reclaims the opens and locks from before the server's restart (RFC 8881 section
// 8.4.2.1). What the server refuses is left to reopen.
func (o *opens) reclaim(ctx context.Context, x *live) error {
	for _, f := range o.list() {
		err := o.openAgain(ctx, x, f, claimPrevious)
		if err == nil {
			o.s.reclaimed.Add(1)
			err = o.reclaimLocks(ctx, x, f)
		} else if errors.As(err, new(nfs.Status)) {
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// openAgain opens a file in the new session x as it was open before.
func (o *opens) openAgain(ctx context.Context, x *live, f *open4, claim func(*xdr.Encoder)) error {
	o.mu.Lock()
	old, access, deny := f.id, f.access, f.deny
	ctx = WithCred(ctx, f.cred)
	o.mu.Unlock()
	var res opened4
	if err := o.s.during(ctx, x, openCompound(f.h, access, deny, claim, &res)); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if f.open && f.id == old {
		f.id = res.id
	}
	return nil
}

// reopen opens anew what could not be reclaimed, because the server has no grace period or did not
// know the client. The locks of such a file are lost. If the server refuses the OPEN too, the next
// READ or WRITE of the file fails.
func (o *opens) reopen(ctx context.Context, x *live) {
	for _, f := range o.list() {
		o.mu.Lock()
		id := f.id
		o.mu.Unlock()
		if st, err := o.test(ctx, x, []state.Stateid{id}); err == nil && st[0] == nfs.OK {
			continue
		}
		o.mu.Lock()
		f.loseLocks()
		o.mu.Unlock()
		_ = o.openAgain(ctx, x, f, claimFH)
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
		o.mu.Lock()
		id := f.id
		f.open = false
		o.mu.Unlock()
		if o.s.changeDuring(ctx, x, putFH(f.h), closeOp(id)) != nil && ctx.Err() != nil {
			return
		}
	}
}
