package nfs4

import (
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Program is the number of NFS, Version of this version.
const (
	Program = 100003
	Version = 4
)

// Procedures.
const (
	ProcNull     = 0
	ProcCompound = 1
)

// Operations (RFC 8881 section 18, RFC 7862 section 15, RFC 8276 section 8.4).
const (
	OpAccess             = 3
	OpClose              = 4
	OpCommit             = 5
	OpCreate             = 6
	OpDelegPurge         = 7
	OpDelegReturn        = 8
	OpGetAttr            = 9
	OpGetFH              = 10
	OpLink               = 11
	OpLock               = 12
	OpLockT              = 13
	OpLockU              = 14
	OpLookup             = 15
	OpLookupP            = 16
	OpNVerify            = 17
	OpOpen               = 18
	OpOpenAttr           = 19
	OpOpenConfirm        = 20
	OpOpenDowngrade      = 21
	OpPutFH              = 22
	OpPutPubFH           = 23
	OpPutRootFH          = 24
	OpRead               = 25
	OpReadDir            = 26
	OpReadLink           = 27
	OpRemove             = 28
	OpRename             = 29
	OpRenew              = 30
	OpRestoreFH          = 31
	OpSaveFH             = 32
	OpSecInfo            = 33
	OpSetAttr            = 34
	OpSetClientID        = 35
	OpSetClientIDConfirm = 36
	OpVerify             = 37
	OpWrite              = 38
	OpReleaseLockOwner   = 39
	OpBackchannelCtl     = 40
	OpBindConnToSession  = 41
	OpExchangeID         = 42
	OpCreateSession      = 43
	OpDestroySession     = 44
	OpFreeStateID        = 45
	OpGetDirDelegation   = 46
	OpGetDeviceInfo      = 47
	OpGetDeviceList      = 48
	OpLayoutCommit       = 49
	OpLayoutGet          = 50
	OpLayoutReturn       = 51
	OpSecInfoNoName      = 52
	OpSequence           = 53
	OpSetSSV             = 54
	OpTestStateID        = 55
	OpWantDelegation     = 56
	OpDestroyClientID    = 57
	OpReclaimComplete    = 58
	OpAllocate           = 59
	OpCopy               = 60
	OpCopyNotify         = 61
	OpDeallocate         = 62
	OpIOAdvise           = 63
	OpLayoutError        = 64
	OpLayoutStats        = 65
	OpOffloadCancel      = 66
	OpOffloadStatus      = 67
	OpReadPlus           = 68
	OpSeek               = 69
	OpWriteSame          = 70
	OpClone              = 71
	OpGetXattr           = 72
	OpSetXattr           = 73
	OpListXattrs         = 74
	OpRemoveXattr        = 75

	numOps    = 76
	OpIllegal = 10044
)

// Limits of what is decoded, in bytes. Names may be longer than any store takes, so
// that a long one is answered NAMETOOLONG.
const (
	tagMax  = 1024
	nameMax = 4096
	pathMax = 8192
	// OwnerMax is the longest owner string or other short opaque item (NFS4_OPAQUE_LIMIT).
	OwnerMax = 1024
	// FHMax is the longest file handle (NFS4_FHSIZE).
	FHMax = 128
)

// VerifierLen is the length of a verifier4 in bytes.
const VerifierLen = 8

func decodeVerifier(d *xdr.Decoder) (v [VerifierLen]byte) {
	copy(v[:], d.Fixed(VerifierLen))
	return v
}

// DecodeStateid reads a stateid4.
func DecodeStateid(d *xdr.Decoder) (id state.Stateid) {
	id.Seq = d.Uint32()
	copy(id.Other[:], d.Fixed(len(id.Other)))
	return id
}

// EncodeStateid appends a stateid4.
func EncodeStateid(e *xdr.Encoder, id state.Stateid) {
	e.Uint32(id.Seq)
	e.Fixed(id.Other[:])
}

// DecodeSessionID reads a sessionid4.
func DecodeSessionID(d *xdr.Decoder) (id state.SessionID) {
	copy(id[:], d.Fixed(len(id)))
	return id
}

// changeInfo is a change_info4: how a directory's change attribute went.
type changeInfo struct {
	atomic        bool
	before, after uint64
}

func (c changeInfo) encode(e *xdr.Encoder) {
	e.Bool(c.atomic)
	e.Uint64(c.before)
	e.Uint64(c.after)
}

// changeInfoLen is the size of a change_info4.
const changeInfoLen = 4 + 8 + 8
