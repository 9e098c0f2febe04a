package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Access and denial of an open (share_access, share_deny).
const (
	ShareRead  = state.Read
	ShareWrite = state.Write
	ShareBoth  = state.Both
)

// open4 is a file that the client has open, as one open of one open-owner however
// many have it open here. What is not said otherwise is guarded by opens.mu.
type open4 struct {
	h Handle
	// turn is held by who opens it or closes it at the server.
	turn chan struct{}
	refs int // that want it open, those in the queue for turn included

	access, deny uint32
	id           state.Stateid // with seqid 0: the newest
	held         bool          // the server has it
	locks        []*locks4
}

// opens are the files that a client has open. They are opened by their handles, so
// that there is one entry for each file from the beginning.
type opens struct {
	s *session4

	mu      sync.Mutex
	byFile  map[string]*open4
	keeping bool          // a goroutine renews the lease
	lockers uint64        // numbers the lock-owners
	stop    chan struct{} // closed at the end of the client
	stopped bool
}

func newOpens(s *session4) *opens {
	return &opens{s: s, byFile: make(map[string]*open4), stop: make(chan struct{})}
}

// openOwner is the owner of the opens in the table. Files that are made have other
// owners, one for each slot, and are closed in the compound that makes them.
const openOwner = "files"

// openOp is an OPEN without creating.
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
	given bool // a delegation that nobody wanted
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

func putFH(h Handle) op4 {
	return op4{num: nfs4.OpPutFH, args: func(e *xdr.Encoder) { e.Opaque(h) }}
}

func closeOp(id state.Stateid) op4 {
	return op4{nfs4.OpClose, func(e *xdr.Encoder) {
		e.Uint32(0) // seqid
		nfs4.EncodeStateid(e, id)
	}, func(d *xdr.Decoder) { nfs4.DecodeStateid(d) }}
}

// openCompound opens a file by its handle.
func openCompound(h Handle, access, deny uint32, claim func(*xdr.Encoder), res *opened4) *compound4 {
	return &compound4{cache: true, ops: []op4{putFH(h), openOp(access, deny, claim, res)}}
}

// hold has a file open until release.
func (o *opens) hold(ctx context.Context, h Handle, access, deny uint32) error {
	o.mu.Lock()
	f := o.byFile[string(h)]
	if f == nil {
		f = &open4{h: copyHandle(h), turn: make(chan struct{}, 1)}
		o.byFile[string(h)] = f
	}
	f.refs++
	o.mu.Unlock()
	err := o.widen(ctx, f, access, deny)
	if err != nil {
		_ = o.drop(ctx, f) // it was not opened here
	}
	return err
}

// begin waits until nobody else opens or closes the file at the server; follow with end.
func (f *open4) begin(ctx context.Context) error {
	select {
	case f.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *open4) end() { <-f.turn }

// widen makes sure that the server has a file open in this way.
func (o *opens) widen(ctx context.Context, f *open4, access, deny uint32) error {
	if err := f.begin(ctx); err != nil {
		return err
	}
	defer f.end()
	o.mu.Lock()
	enough := f.held && access&^f.access == 0 && deny&^f.deny == 0
	if f.held {
		access, deny = access|f.access, deny|f.deny
	}
	o.mu.Unlock()
	if enough {
		return nil
	}
	return o.open(ctx, f, access, deny)
}

// open opens a file at the server. Call with turn held.
func (o *opens) open(ctx context.Context, f *open4, access, deny uint32) error {
	var res opened4
	if err := o.s.do(ctx, openCompound(f.h, access, deny, claimFH, &res)); err != nil {
		return err
	}
	o.mu.Lock()
	f.held, f.id, f.access, f.deny = true, res.id, access, deny
	if !o.keeping && !o.stopped {
		o.keeping = true
		go o.keep()
	}
	o.mu.Unlock()
	if res.given {
		o.giveBack(ctx, f.h, res.deleg)
	}
	return nil
}

// giveBack returns a delegation.
func (o *opens) giveBack(ctx context.Context, h Handle, id state.Stateid) {
	_ = o.s.do(ctx, &compound4{cache: true, ops: []op4{putFH(h), {
		num: nfs4.OpDelegReturn, args: func(e *xdr.Encoder) { nfs4.EncodeStateid(e, id) },
	}}})
}

// release undoes a hold.
func (o *opens) release(ctx context.Context, h Handle) error {
	o.mu.Lock()
	f := o.byFile[string(h)]
	o.mu.Unlock()
	if f == nil {
		return nil
	}
	return o.drop(ctx, f)
}

// drop undoes one reference; the last one closes the file.
func (o *opens) drop(ctx context.Context, f *open4) error {
	f.turn <- struct{}{}
	defer func() { <-f.turn }()
	o.mu.Lock()
	f.refs--
	last := f.refs == 0
	held := f.held
	id := f.id
	if last {
		// Who comes now makes another entry, and its OPEN is not sent before this
		// CLOSE has been answered only if it waits for it: so it is left in the table
		// until then.
		f.held = false
	}
	o.mu.Unlock()
	if !last {
		return nil
	}
	var err error
	if held {
		err = o.close(ctx, f.h, id)
	}
	o.mu.Lock()
	if f.refs == 0 && o.byFile[string(f.h)] == f {
		delete(o.byFile, string(f.h))
	}
	o.mu.Unlock()
	return err
}

// close closes a file at the server. One that the server has lost is closed.
func (o *opens) close(ctx context.Context, h Handle, id state.Stateid) error {
	err := o.s.do(ctx, &compound4{cache: true, ops: []op4{putFH(h), closeOp(id)}})
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

// stateid is what a READ or WRITE of a file is sent with: the open, if there is one
// that allows it, or the anonymous one.
func (o *opens) stateid(h Handle, access uint32) (id state.Stateid, f *open4) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f = o.byFile[string(h)]
	if f == nil || !f.held || access&^f.access != 0 {
		return state.Anonymous, nil
	}
	return f.id, f
}

// restore opens a file again whose open the server has lost, unless somebody has
// done so already.
func (o *opens) restore(ctx context.Context, f *open4, lost state.Stateid) error {
	if err := f.begin(ctx); err != nil {
		return err
	}
	defer f.end()
	o.mu.Lock()
	stale := f.held && f.id == lost
	access, deny := f.access, f.deny
	if stale {
		f.gone()
	}
	o.mu.Unlock()
	if !stale {
		return nil
	}
	return o.open(ctx, f, access, deny)
}

// held are the files that the server should have open.
func (o *opens) held() (list []*open4) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.byFile {
		if f.held {
			list = append(list, f)
		}
	}
	return list
}

// reclaim gets back what was open before the server's restart (RFC 8881 section
// 8.4.2.1). What cannot be had so is left to reopen.
func (o *opens) reclaim(ctx context.Context, x *live) error {
	for _, f := range o.held() {
		o.mu.Lock()
		old, access, deny := f.id, f.access, f.deny
		o.mu.Unlock()
		var res opened4
		err := o.s.within(ctx, x, openCompound(f.h, access, deny, claimPrevious, &res))
		if err == nil {
			o.mu.Lock()
			if f.held && f.id == old {
				f.id = res.id
			}
			o.mu.Unlock()
			o.s.reclaimed.Add(1)
			if err := o.reclaimLocks(ctx, x, f); err != nil {
				return err
			}
			continue
		}
		if !errors.As(err, new(nfs.Status)) {
			return err
		}
	}
	return nil
}

// reopen opens anew what could not be reclaimed, because the server has no grace
// period or did not know the client. Where that is refused, those who have the file
// open find out by their next call.
func (o *opens) reopen(ctx context.Context, x *live) {
	for _, f := range o.held() {
		o.mu.Lock()
		old, access, deny := f.id, f.access, f.deny
		o.mu.Unlock()
		if o.known(ctx, x, old) {
			continue
		}
		o.mu.Lock()
		f.gone()
		o.mu.Unlock()
		var res opened4
		if o.s.within(ctx, x, openCompound(f.h, access, deny, claimFH, &res)) != nil {
			continue
		}
		o.mu.Lock()
		if f.held && f.id == old {
			f.id = res.id
		}
		o.mu.Unlock()
	}
}

// known reports whether the server knows a stateid.
func (o *opens) known(ctx context.Context, x *live, id state.Stateid) bool {
	st, err := o.test(ctx, x, []state.Stateid{id})
	return err == nil && st[0] == nfs.OK
}

// closeAll closes what its users have not, at the end of the client.
func (o *opens) closeAll(ctx context.Context, x *live) {
	o.mu.Lock()
	if !o.stopped {
		o.stopped = true
		close(o.stop)
	}
	o.mu.Unlock()
	for _, f := range o.held() {
		o.mu.Lock()
		id := f.id
		f.held = false
		o.mu.Unlock()
		if o.s.within(ctx, x, &compound4{cache: true, ops: []op4{putFH(f.h), closeOp(id)}}) != nil && ctx.Err() != nil {
			return
		}
	}
}

// leasePart is the part of the lease after which it is renewed.
const leasePart = 3

// keep renews the lease while files are open.
func (o *opens) keep() {
	for {
		lease := 30 * time.Second
		if x := o.s.current(); x != nil && x.lease > 0 {
			lease = x.lease
		}
		t := time.NewTimer(lease / leasePart)
		select {
		case <-t.C:
		case <-o.stop:
			t.Stop()
			return
		}
		o.mu.Lock()
		if len(o.byFile) == 0 {
			o.keeping = false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), lease)
		_ = o.s.renew(ctx) // a server that cannot be reached may be there next time
		cancel()
	}
}
