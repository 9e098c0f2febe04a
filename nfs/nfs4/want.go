package nfs4

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// wantDelegation is WANT_DELEGATION (RFC 8881 section 18.49): a delegation without an open. It is
// checked like an OPEN of the same mode, as the client may open the file without asking then. Wants
// are not remembered: the delegation is there now or not, and CB_PUSH_DELEG is never sent.
func wantDelegation(k *compound) nfs.Status {
	d := &k.c.Args
	want, claim := d.Uint32()&^state.Both, d.Uint32()
	kind := uint32(0)
	switch claim {
	case ClaimPrevious:
		kind = d.Uint32()
	case ClaimFH, claimDelegPrevFH:
	default:
		return nfs.ErrBadXDR
	}
	switch {
	case k.bad():
		return nfs.ErrBadXDR
	case want&^(wantMask|wantSignals) != 0, want&wantMask > wantCancel, want&wantMask&^WantNoDeleg == 0:
		return nfs.ErrInval
	case claim == claimDelegPrevFH:
		return nfs.ErrNotSupp
	case k.cur.x == nil:
		return nfs.ErrWrongType
	}
	if want &= wantMask; want == wantCancel {
		k.encodeNoDelegation(whyWantCancelled)
		return nfs.OK
	}
	a, err := k.cur.x.FS.GetAttr(k.who(&k.cur), k.cur.h)
	switch {
	case err != nil:
		return nfs.StatusOf(err)
	case a.Type == blockstore.TypeDir:
		return nfs.ErrWrongType
	case a.Type != blockstore.TypeReg && want == wantWrite:
		k.encodeNoDelegation(whyNoWriteOfType)
		return nfs.OK
	case a.Type != blockstore.TypeReg:
		k.encodeNoDelegation(whyNotOfType)
		return nfs.OK
	}
	f := state.Delegate{File: k.file(), Write: want == wantWrite, Origin: k.origin(), Change: changeOf(&a)}
	if claim == ClaimPrevious {
		if kind != delegRead && kind != delegWrite {
			return nfs.ErrInval
		}
		f.Write, f.Reclaim = kind == delegWrite, true
	}
	switch st := k.mayHave(&a, f.Write); st {
	case nfs.OK:
	case nfs.ErrROFS:
		k.encodeNoDelegation(whyNoWriteOfType)
		return nfs.OK
	case nfs.ErrAcces, nfs.ErrPerm:
		k.encodeNoDelegation(uint32(state.WhyResource)) // there is no status for it
		return nfs.OK
	default:
		return st
	}
	got, why, failed := k.client.Want(k.now, &f)
	if failed != nil {
		return nfs.StatusOf(failed)
	}
	if why == state.Given && !k.lease(&f, got.ID) {
		why = state.WhyContention
	}
	k.relieve(&got)
	if why != state.Given {
		k.encodeNoDelegation(uint32(why))
		return nfs.OK
	}
	k.encodeDelegation(&got)
	return nfs.OK
}

// mayHave checks that the caller may do with the current file what a delegation is for.
func (k *compound) mayHave(a *blockstore.Attr, write bool) nfs.Status {
	f := opening{file: k.cur, attr: *a}
	access := uint32(state.Read)
	if write {
		access = state.Write
	}
	return k.mayOpen(&f, &openArgs{access: access, claim: ClaimFH})
}

// getDirDelegation is GET_DIR_DELEGATION (section 18.39). No directory is ever delegated. The
// operation succeeds with GDD4_UNAVAIL: NOTSUPP would do as well, but the RFC has this answer for
// it.
func getDirDelegation(k *compound) nfs.Status {
	d := &k.c.Args
	d.Bool() // signal when there is
	DecodeBitmap(d)
	for range 2 {
		d.Skip(8 + 4)
	}
	DecodeBitmap(d)
	DecodeBitmap(d)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if k.cur.x != nil {
		a, err := k.cur.x.FS.GetAttr(k.who(&k.cur), k.cur.h)
		if err != nil {
			return nfs.StatusOf(err)
		}
		if a.Type != blockstore.TypeDir {
			return nfs.ErrNotDir
		}
	}
	const unavailable = 1
	k.c.Res.Uint32(unavailable)
	k.c.Res.Bool(false) // no callback will tell when that changes
	return nfs.OK
}

// relieve asks clients to return delegations, if there is hardly room for more.
func (k *compound) relieve(got *state.Delegated) {
	if !got.Crowded {
		return
	}
	for _, r := range k.s.state.Relief(k.now, k.client) {
		k.s.recallAny(&r)
	}
}

// relieving is CB_RECALL_ANY (section 20.6): the client chooses which delegations it returns, until
// it has no more than keep. It knows best which it does not use.
type relieving struct{ keep int }

func (*relieving) op() uint32            { return opCBRecallAny }
func (*relieving) refers() *state.Origin { return nil }

func (r *relieving) encode(_ *Server, e *xdr.Encoder) {
	e.Uint32(uint32(r.keep))
	BitmapOf(recallAnyRead, recallAnyWrite).Encode(e)
}

// answered implements request. A client that returns nothing gets no more delegations.
func (*relieving) answered(*Server, bool, nfs.Status, *xdr.Decoder) {}

func (s *Server) recallAny(r *state.Relief) {
	if s.callAny(r.Client, 1, &relieving{keep: r.Most}) {
		s.relieved.Add(1)
	}
}
