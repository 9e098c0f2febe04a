package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
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

// open4 is a file that the client has open. All callers here share one open of one open-owner.
// opens.mu guards the fields whose comments name no other lock.
type open4 struct {
	h Handle
	// mu is held while the file is opened or closed at the server.
	mu   ctxMutex
	refs int // callers that want it open; those that wait for mu count too

	cred         *rpc.Cred // of the last OPEN; recovery opens the file as this user; nil: the client's
	access, deny uint32
	id           state.Stateid // with seqid 0, which stands for the newest (RFC 8881 section 8.2.2)
	open         bool          // the server has it open
	locks        []*locks4
	notifies     bool        // the server sends CB_NOTIFY_LOCK
	deleg        *Delegation // nil: there is none
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
	waiters  map[chan struct{}]waiterKey // of locks, see lockFree

	delegations int             // in byFile
	grants      int             // OPENs in flight that may get one
	early       []earlyRecall   // see granting
	revoked     []state.Stateid // of lost delegations, until FREE_STATEID
	chores      chores          // returns delegations and closes files
	losses      chores          // calls DelegationUser.Lost

	// leaseUntil is when the lease expires, in nanoseconds of package clock.
	leaseUntil atomic.Int64
	// Counts of delegations. redelegated were reclaimed after a restart of the server.
	granted, recalled, returned, lost, redelegated atomic.Uint64
	notified                                       atomic.Uint64 // locks that the server said to be free
}

func newOpens(s *session4) *opens {
	return &opens{
		s: s, byFile: make(map[string]*open4), waiters: make(map[chan struct{}]waiterKey), stop: make(chan struct{}),
		chores: chores{most: choresMax}, losses: chores{most: 1},
	}
}

// choresMax bounds the goroutines of opens.chores.
const choresMax = 8

// openOwner is the open-owner of the opens in the table. A file that the client creates has an
// open-owner of its own, and is closed in the compound that creates it.
const openOwner = "files"

// openOp is an OPEN that creates nothing (RFC 8881 section 18.16). access also has the delegation
// that the client wants.
func openOp(access, deny uint32, claim func(*xdr.Encoder), res *opened4) op4 {
	return op4{nfs4.OpOpen, func(e *xdr.Encoder) {
		e.Uint32(0) // seqid
		e.Uint32(access)
		e.Uint32(deny)
		e.Uint64(0) // client ID
		e.String(openOwner)
		e.Uint32(nfs4.OpenNoCreate)
		claim(e)
	}, res.decode}
}

func claimFH(e *xdr.Encoder) { e.Uint32(nfs4.ClaimFH) }

// claimPrevious reclaims an open, with a delegation of a type.
func claimPrevious(deleg uint32) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		e.Uint32(nfs4.ClaimPrevious)
		e.Uint32(deleg)
	}
}

// opened4 is an OPEN4resok.
type opened4 struct {
	id    state.Stateid
	deleg state.Stateid
	given bool // the server granted a delegation, deleg
	write bool // it is for writing
	// recall says that the server wants the delegation back already. notifies says that it sends
	// CB_NOTIFY_LOCK.
	recall, notifies bool
	attrs            attrs4 // of the file, if the client wants a delegation
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
	mayNotifyLock   = 0x20 // OPEN4_RESULT_MAY_NOTIFY_LOCK
)

// ofDelegated are the attributes in the answer to CB_GETATTR.
var ofDelegated = nfs4.BitmapOf(nfs4.AttrChange, nfs4.AttrSize)

func (o *opened4) decode(d *xdr.Decoder) {
	*o = opened4{id: nfs4.DecodeStateid(d)}
	d.Skip(changeInfoBytes)
	o.notifies = d.Uint32()&mayNotifyLock != 0
	nfs4.DecodeBitmap(d)
	switch how := d.Uint32(); how {
	case nfs4.DelegNone:
	case nfs4.DelegNoneExt:
		switch d.Uint32() {
		case whyContention, whyResource:
			d.Bool() // the server says when it could grant one
		}
	case delegRead, delegWrite:
		o.given, o.write, o.deleg = true, how == delegWrite, nfs4.DecodeStateid(d)
		o.recall = d.Bool()
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
	q := &compound4{cache: true, ops: []op4{putFH(h), openOp(access, deny, claim, res)}}
	if access&nfs4.WantNoDeleg == 0 {
		q.ops = append(q.ops, res.attrs.get(ofDelegated))
	}
	return q
}

// acquire opens a file until release. sent says that the server has executed an OPEN, and so has
// checked the permission of the caller.
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

// widen makes sure that the server has a file open with at least this access and denial. An OPEN by
// the same owner adds to the access and denial of its open (RFC 8881 section 9.9).
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
	defer o.granting()()
	o.mu.Lock()
	want := o.want(f, access)
	o.mu.Unlock()
	q := openCompound(f.h, access|want, deny, claimFH, &res)
	if err := o.s.do(ctx, q); err != nil && (q.executed < 2 || !errors.As(err, new(nfs.Status))) {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	f.open, f.id, f.access, f.deny, f.cred = true, res.id, access, deny, credOf(ctx, nil)
	f.notifies = res.notifies
	o.grant(f, &res, &permit{whoIs(credOf(ctx, o.s.cred)), access})
	o.renewLater()
	return nil
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
	if f.deleg != nil {
		f.deleg.used = clock.Now()
	}
	o.mu.Unlock()
	return o.closeIfUnused(ctx, f)
}

// closeIfUnused closes a file at the server if nobody here has it open and it has no delegation.
// f.mu is held.
func (o *opens) closeIfUnused(ctx context.Context, f *open4) error {
	o.mu.Lock()
	if f.refs > 0 || f.deleg != nil && f.open {
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
	case nfs.ErrBadStateID, nfs.ErrStaleStateID, nfs.ErrExpired, nfs.ErrAdminRevoked, nfs.ErrDelegRevoked,
		nfs.ErrOldStateID:
		return true
	}
	return false
}

// restore opens a file again after the server has lost its open. lost is the stateid of the lost
// open. restore does nothing if another call has opened the file again already.
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
