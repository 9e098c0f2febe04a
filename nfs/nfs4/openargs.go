package nfs4

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Discriminators and flags of OPEN (RFC 8881 section 18.16.1, RFC 7530 section 16.16.1).
const (
	// opentype4.
	OpenNoCreate = 0
	OpenCreate   = 1

	// createmode4. EXCLUSIVE4_1 exists from version 4.1 on: it is EXCLUSIVE4 with attributes.
	CreateUnchecked   = 0
	CreateGuarded     = 1
	createExclusive   = 2
	CreateExclusive41 = 3

	// open_claim_type4. Version 4.0 has the first four; openTurn answers BADXDR to the others
	// there. Both claims of CLAIM_DELEGATE_PREV are NOTSUPP: delegations do not survive the
	// client's own restart here, and DELEGPURGE is NOTSUPP too.
	ClaimNull        = 0
	ClaimPrevious    = 1
	claimDelegCur    = 2
	claimDelegPrev   = 3
	ClaimFH          = 4
	claimDelegCurFH  = 5
	claimDelegPrevFH = 6

	// rflags of the result:
	//
	//	LOCKTYPE_POSIX       the server splits and merges the ranges of a lock-owner, as fcntl(2) does
	//	MAY_NOTIFY_LOCK      the server sends CB_NOTIFY_LOCK, so the client seldom has to poll
	//	NO_OPEN_STATEID      there is a delegation and no open (RFC 9754 section 4)
	//	PRESERVE_UNLINKED    never set: a client that sees it removes an open file instead of
	//	                     renaming it, but a pin of the file can fail (pin.go)
	resultLocktype  = 4
	resultNoOpen    = 0x10
	resultMayNotify = 0x20
)

// encodeOpenArguments appends open_arguments (RFC 9754 section 3), by which the server announces
// what OPEN supports:
//
//	bitmap4 share_access | bitmap4 share_deny | bitmap4 wants | bitmap4 claims | bitmap4 createmodes
//
// Of what is newer than RFC 7862, a client uses only what is in them. A want is a bit by its place
// in share_access if it is a signal or newer than RFC 8881. The older wants are numbers in bits 8
// to 15 of share_access, and the number is the bit here.
func encodeOpenArguments(e *xdr.Encoder, _ *subject) {
	const all = 1<<4 - 1
	for _, bits := range [...]uint32{
		all &^ 1, // READ, WRITE, BOTH
		all,      // NONE, READ, WRITE, BOTH
		1<<(wantAny>>8) | 1<<(WantNoDeleg>>8) | 1<<(wantCancel>>8) | wantTimes | wantXor,
		1<<ClaimNull | 1<<ClaimPrevious | 1<<claimDelegCur | 1<<ClaimFH | 1<<claimDelegCurFH,
		all, // UNCHECKED, GUARDED, EXCLUSIVE, EXCLUSIVE4_1
	} {
		e.Uint32(1)
		e.Uint32(bits)
	}
}

// openArgs is an OPEN4args:
//
//	seqid         uint32              version 4.0 only, ignored in a session
//	share_access  uint32              bits 0-1 access, 8-15 want, 16 and 17 signals, 20 times, 21 XOR
//	share_deny    uint32              0 to 3
//	owner         uint64, opaque<>    client ID (version 4.0 only) and open-owner
//	opentype      NOCREATE            -
//	              CREATE              createmode:
//	                                    UNCHECKED4, GUARDED4  fattr4
//	                                    EXCLUSIVE4            verifier
//	                                    EXCLUSIVE4_1          verifier, fattr4
//	claim         NULL                name
//	              PREVIOUS            delegation type
//	              DELEGATE_CUR        stateid of the delegation, name
//	              DELEGATE_PREV       name
//	              FH                  -
//	              DELEG_CUR_FH        stateid of the delegation
//	              DELEG_PREV_FH       -
//
// Its byte slices alias the call's receive buffers and are valid until the handler returns. Package
// state copies the owner when it makes an open. name is a copy.
type openArgs struct {
	access, deny, want uint32 // want: share_access without its two lowest bits
	owner              []byte // at most OwnerMax bytes
	create             bool
	mode               uint32            // createmode4, if create
	verf               [VerifierLen]byte // of the two exclusive modes
	set                attrSet
	attrs              Bitmap     // the attributes in set, which the result repeats
	fault              nfs.Status // status for attributes that decode and cannot be set
	claim              uint32
	name               string // empty for the claims by file handle
	deleg              uint32 // ClaimPrevious: the type of the delegation
	seq                uint32 // version 4.0: the open-owner's seqid
	client             uint64 // version 4.0: the client ID in the owner
	// fromOwner is a copy of the decoder, placed behind the client ID. The journal hashes the
	// arguments from there on, because a client has another client ID after a restart of the
	// server.
	fromOwner xdr.Decoder
	delegID   state.Stateid // of the delegation by which the client has opened the file locally
}

// decodeOpen reads an OPEN4args. An unknown discriminator is an error of the decoder, and BADXDR
// for the client: the length of an unknown arm is unknown, so the next operation could not be
// found.
//
// decodeOpen checks lengths and discriminators alone. openFile checks values, after the turn of the
// open-owner was taken: in version 4.0 INVAL uses up a seqid of the owner and BADXDR does not (RFC
// 7530 section 9.1.7).
func (k *compound) decodeOpen() (a openArgs) {
	d := &k.c.Args
	a.seq = d.Uint32()
	access := d.Uint32()
	a.access, a.want = access&state.Both, access&^state.Both
	a.deny = d.Uint32()
	// In a session the client ID is the session's, and this one is ignored (RFC 8881 section
	// 18.16.3).
	a.client = d.Uint64()
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
			// The server lists these attributes in suppattr_exclcreat (RFC 8881 section 5.8.1.14).
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
