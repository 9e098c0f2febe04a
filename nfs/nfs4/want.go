package nfs4

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// wantDelegation is WANT_DELEGATION (RFC 8881 section 18.49): a delegation without an open. Its
// arguments and its result:
//
//	want    uint32                   as share_access of OPEN; the two lowest bits are ignored
//	claim   PREVIOUS                 delegation type, a reclaim
//	        FH                       -
//	        DELEG_PREV_FH            -, NOTSUPP
//	result  open_delegation4         NONE_EXT with the reason, if there is none
//
// The operation is checked like an OPEN of the same mode, because with the delegation the client
// may open the file without a call. The server does not store wants: it grants the delegation now
// or never, and does not send CB_PUSH_DELEG or CB_RECALLABLE_OBJ_AVAIL.
//
// A want of no preference, or of no delegation, is INVAL. If the file cannot be delegated, the
// operation succeeds with the reason, except for a directory, which is WRONG_TYPE.
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
		k.encodeNoDelegation(whyWantCancelled) // there is no stored want to cancel
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
		// WANT_DELEGATION may not return ACCESS (RFC 8881 section 15.2).
		k.encodeNoDelegation(uint32(state.WhyResource))
		return nfs.OK
	default:
		return st
	}
	// Want fails with GRACE, NO_GRACE or EXPIRED, as an OPEN would.
	got, why, failed := k.client.Want(k.now, &f)
	if failed != nil {
		return nfs.StatusOf(failed)
	}
	if why == state.Given && !k.lease(&f, got.ID) {
		why = state.WhyContention
	}
	k.recallAnyIfCrowded(&got)
	if why != state.Given {
		k.encodeNoDelegation(uint32(why))
		return nfs.OK
	}
	k.curID = got.ID // an operation that returns a stateid sets the current one (section 16.2.3.1.2)
	k.encodeDelegation(&got)
	return nfs.OK
}

// mayHave checks that the caller may open the current file for the mode of a delegation. CLAIM_FH
// makes mayOpen accept the owner of the file whatever its mode says.
func (k *compound) mayHave(a *blockstore.Attr, write bool) nfs.Status {
	f := opening{file: k.cur, attr: *a}
	access := uint32(state.Read)
	if write {
		access = state.Write
	}
	return k.mayOpen(&f, &openArgs{access: access, claim: ClaimFH})
}

// recallAnyIfCrowded sends CB_RECALL_ANY if a bound of delegations is nearly reached: from 7/8 of
// the bound of one client, or of the whole server, on. Package state chooses the clients: this one,
// and the one with most delegations. It calls the same client at most every 10 seconds.
func (k *compound) recallAnyIfCrowded(got *state.Delegated) {
	if !got.Crowded {
		return
	}
	for _, r := range k.s.state.RecallAny(k.now, k.client) {
		k.s.recallAny(&r)
	}
}

// relieving is CB_RECALL_ANY (RFC 8881 section 20.6): objects_to_keep, type mask. The client
// returns delegations of its choice until it has no more than keep, because it knows which of them
// it does not use. The callback is for delegations of every kind and refers to no request.
type relieving struct{ keep int }

func (*relieving) op() uint32            { return opCBRecallAny }
func (*relieving) refers() *state.Origin { return nil }

func (r *relieving) encode(_ *Server, e *xdr.Encoder) {
	e.Uint32(uint32(r.keep))
	BitmapOf(recallAnyRead, recallAnyWrite, recallAnyDir).Encode(e)
}

// answered implements request. The status does not matter: a client that returns nothing gets no
// more delegations when it has reached its bound, and nothing else happens to it.
func (*relieving) answered(*Server, bool, nfs.Status, *xdr.Decoder) {}

// recallAny sends a CB_RECALL_ANY by any backchannel of the client. If there is none, nothing is
// sent: recallAnyIfCrowded tries again with a later delegation.
func (s *Server) recallAny(r *state.RecallAny) {
	if s.callAny(r.Client, 1, &relieving{keep: r.Most}) {
		s.recallAnys.Add(1)
	}
}
