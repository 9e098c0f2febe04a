package nfs4

import (
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The numbers and the small data types of the protocol: RFC 7531 (version 4.0), RFC 5662 (4.1) and
// RFC 7863 (4.2) have their XDR.

// Program is the ONC RPC program number of NFS, and Version is the version that this package
// serves. All minor versions share them. The minor version is a word of the COMPOUND.
const (
	Program = 100003
	Version = 4
)

// Procedures.
const (
	ProcNull     = 0
	ProcCompound = 1
)

// Operations (RFC 8881 section 18, RFC 7862 section 15, RFC 8276 section 8.4):
//
//	3..39    version 4.0; 20, 30, 35, 36 and 39 are of 4.0 alone
//	40..58   version 4.1
//	59..71   version 4.2
//	72..75   extended attributes, an extension of 4.2
//	10044    OP_ILLEGAL: the number in the reply to an unknown operation
//
// The numbers 0 to 2 belong to no operation. Their rows in the table are empty, so a client that
// sends one gets OP_ILLEGAL.
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

// Limits of decoded items, in bytes. A longer item is BADXDR, and the compound ends there. A longer
// tag is GARBAGE_ARGS, because the reply has to begin with the tag. nameMax and pathMax are longer
// than any store accepts: a name that is only a little too long reaches the store and gets the more
// useful NAMETOOLONG. pathMax bounds the text of a symlink. tagMax is the server's own limit: the
// RFC has none, and the reply repeats the tag.
const (
	tagMax  = 1024
	nameMax = 4096
	pathMax = 8192
	// OwnerMax is the longest owner string or other short opaque item (NFS4_OPAQUE_LIMIT). An
	// owner that the server stores is charged to the client's memory.
	OwnerMax = 1024
	// FHMax is the longest file handle (NFS4_FHSIZE). Handles of this server are at most
	// nfs.HandleMax bytes long: a longer one decodes, and is BADHANDLE.
	FHMax = 128
)

// VerifierLen is the length of a verifier4 in bytes. It serves the start of a client (EXCHANGE_ID,
// SETCLIENTID), an exclusive create, a directory listing, and the write verifier.
const VerifierLen = 8

// decodeVerifier reads a verifier4. After a decoding error the result is zero. The caller checks
// the decoder before it uses the verifier.
func decodeVerifier(d *xdr.Decoder) (v [VerifierLen]byte) {
	copy(v[:], d.Fixed(VerifierLen))
	return v
}

// DecodeStateid reads a stateid4 (RFC 8881 section 8.2.2). Clients treat other as opaque. The
// server makes it of three words:
//
//	 0       4       8        12       16
//	+-------+-------+--------+--------+
//	| seqid | start | client | number |
//	+-------+-------+--------+--------+
//	        |<------- other --------->|
//
// start is Config.Boot, client the low half of the client ID, number a state of that client. The
// words are no secret: a forged stateid may name another client's state. Package state compares the
// client word with the client of the session, and in version 4.0 the identity of the caller.
func DecodeStateid(d *xdr.Decoder) (id state.Stateid) {
	id.Seq = d.Uint32()
	copy(id.Other[:], d.Fixed(len(id.Other)))
	return id
}

// EncodeStateid appends a stateid4 of resStateid bytes.
func EncodeStateid(e *xdr.Encoder, id state.Stateid) {
	e.Uint32(id.Seq)
	e.Fixed(id.Other[:])
}

// DecodeSessionID reads a sessionid4, of 16 bytes. Its content is random apart from the server's
// start, so that a client cannot guess the session of another one.
func DecodeSessionID(d *xdr.Decoder) (id state.SessionID) {
	copy(id[:], d.Fixed(len(id)))
	return id
}

// changeInfo is a change_info4 (RFC 8881 section 3.3.3): the change attribute of a directory before
// and after an operation.
//
//	atomic: bool (4) | before (8) | after (8)
//
// If atomic is true, and before equals the attribute in its cache, a client keeps its cached
// entries. Otherwise it discards them. So atomic must be false if another change could lie between
// the two.
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
