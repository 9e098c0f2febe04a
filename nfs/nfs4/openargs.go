package nfs4

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Words of OPEN.
const (
	OpenNoCreate = 0
	OpenCreate   = 1

	CreateUnchecked   = 0
	CreateGuarded     = 1
	createExclusive   = 2
	CreateExclusive41 = 3

	ClaimNull        = 0
	ClaimPrevious    = 1
	claimDelegCur    = 2
	claimDelegPrev   = 3
	ClaimFH          = 4
	claimDelegCurFH  = 5
	claimDelegPrevFH = 6
	resultLocktype   = 4 // OPEN4_RESULT_LOCKTYPE_POSIX
)

// openArgs is an OPEN4args. Its byte slices alias the call.
type openArgs struct {
	access, deny, want uint32
	owner              []byte
	create             bool
	mode               uint32
	verf               [VerifierLen]byte
	set                attrSet
	attrs              Bitmap
	fault              nfs.Status // of the attributes
	claim              uint32
	name               string
	deleg              uint32 // ClaimPrevious: the type of the delegation
	seq                uint32 // of version 4.0, as what follows
	client             uint64
	fromOwner          xdr.Decoder   // the arguments from the owner on
	delegID            state.Stateid // of that by which the file is open already
}

// decodeOpen reads an OPEN4args. A union with an unknown discriminator is an error of the decoder:
// where it ends is not known.
func (k *compound) decodeOpen() (a openArgs) {
	d := &k.c.Args
	a.seq = d.Uint32()
	access := d.Uint32()
	a.access, a.want = access&state.Both, access&^state.Both
	a.deny = d.Uint32()
	a.client = d.Uint64() // in a session, that of the session counts
	a.fromOwner = *d
	a.owner = d.Opaque(OwnerMax)
	switch d.Uint32() {
	case OpenNoCreate:
	case OpenCreate:
		a.create = true
		switch a.mode = d.Uint32(); a.mode {
		case CreateUnchecked, CreateGuarded:
			a.set, a.attrs, a.fault = k.decodeSetAttr(settableNew)
		case createExclusive:
			a.verf = decodeVerifier(d)
		case CreateExclusive41:
			a.verf = decodeVerifier(d)
			a.set, a.attrs, a.fault = k.decodeSetAttr(settableExcl)
		default:
			d.Fail(xdr.ErrValue)
		}
	default:
		d.Fail(xdr.ErrValue)
	}
	switch a.claim = d.Uint32(); a.claim {
	case ClaimNull, claimDelegPrev:
		a.name = d.String(nameMax)
	case ClaimPrevious:
		a.deleg = d.Uint32()
	case claimDelegCur:
		a.delegID = k.stateid(DecodeStateid(d))
		a.name = d.String(nameMax)
	case claimDelegCurFH:
		a.delegID = k.stateid(DecodeStateid(d))
	case ClaimFH, claimDelegPrevFH:
	default:
		d.Fail(xdr.ErrValue)
	}
	return a
}
