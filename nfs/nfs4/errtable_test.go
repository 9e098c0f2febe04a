package nfs4

import "github.com/rstored/rstored/nfs"

// Statuses that this server never has.
const (
	errBadiomode          nfs.Status = 10049
	errBadlayout          nfs.Status = 10050
	errBadSessionDigest   nfs.Status = 10051
	errDelegAlreadyWanted nfs.Status = 10056
	errBackChanBusy       nfs.Status = 10057
	errLayouttrylater     nfs.Status = 10058
	errLayoutunavailable  nfs.Status = 10059
	errRecallconflict     nfs.Status = 10061
	errUnknownLayouttype  nfs.Status = 10062
	errPnfsIoHole         nfs.Status = 10075
	errPnfsNoLayout       nfs.Status = 10080
	errDirdelegUnavail    nfs.Status = 10084
	errPartnerNotsupp     nfs.Status = 10088
	errPartnerNoAuth      nfs.Status = 10089
	errOffloadDenied      nfs.Status = 10091
)

// errorsOf40 are the errors that each operation of version 4.0 may return (RFC 7530 section 13.2).
var errorsOf40 = map[uint32][]nfs.Status{
	OpAccess: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpClose: {
		nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadSeqID, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrExpired,
		nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrLocksHeld, nfs.ErrMoved, nfs.ErrNoFileHandle,
		nfs.ErrOldStateID, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
	},
	OpCommit: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink,
	},
	OpCreate: {
		nfs.ErrAcces, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadOwner, nfs.ErrBadType,
		nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved,
		nfs.ErrNameTooLong, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrPerm, nfs.ErrResource, nfs.ErrROFS,
		nfs.ErrServerFault, nfs.ErrStale,
	},
	OpDelegPurge: {
		nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrLeaseMoved, nfs.ErrNotSupp, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStaleClientID,
	},
	OpDelegReturn: {
		nfs.ErrAdminRevoked, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrExpired, nfs.ErrInval, nfs.ErrLeaseMoved,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrStaleStateID,
	},
	OpGetAttr: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpGetFH: {
		nfs.ErrBadHandle, nfs.ErrFHExpired, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpLink: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist,
		nfs.ErrFHExpired, nfs.ErrFileOpen, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMLink, nfs.ErrMoved, nfs.ErrNameTooLong,
		nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrNotSupp, nfs.ErrResource, nfs.ErrROFS,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrWrongSec, nfs.ErrXDev,
	},
	OpLock: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadRange, nfs.ErrBadSeqID, nfs.ErrBadStateID, nfs.ErrBadXDR,
		nfs.ErrDeadlock, nfs.ErrJukebox, nfs.ErrDenied, nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir,
		nfs.ErrLeaseMoved, nfs.ErrLockNotSupp, nfs.ErrLockRange, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNoGrace, nfs.ErrOldStateID,
		nfs.ErrOpenMode, nfs.ErrReclaimBad, nfs.ErrReclaimConflict, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrStaleClientID, nfs.ErrStaleStateID,
	},
	OpLockT: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrBadRange, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDenied, nfs.ErrExpired, nfs.ErrFHExpired,
		nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrLockRange, nfs.ErrMoved, nfs.ErrNoFileHandle,
		nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleClientID,
	},
	OpLockU: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadRange, nfs.ErrBadSeqID, nfs.ErrBadStateID, nfs.ErrBadXDR,
		nfs.ErrJukebox, nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrLockRange,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
	},
	OpLookup: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval,
		nfs.ErrIO, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrResource,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink, nfs.ErrWrongSec,
	},
	OpLookupP: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoEnt, nfs.ErrNoFileHandle,
		nfs.ErrNotDir, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink, nfs.ErrWrongSec,
	},
	OpNVerify: {
		nfs.ErrAcces, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrSame, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpOpen: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadOwner,
		nfs.ErrBadSeqID, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist, nfs.ErrExpired, nfs.ErrFBig,
		nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt,
		nfs.ErrNoFileHandle, nfs.ErrNoGrace, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrPerm,
		nfs.ErrReclaimBad, nfs.ErrReclaimConflict, nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrShareDenied, nfs.ErrStale,
		nfs.ErrStaleClientID, nfs.ErrSymlink, nfs.ErrWrongSec,
	},
	OpOpenAttr: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrFHExpired, nfs.ErrIO, nfs.ErrMoved,
		nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotSupp, nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpOpenConfirm: {
		nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadSeqID, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrExpired, nfs.ErrFHExpired,
		nfs.ErrInval, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrResource,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
	},
	OpOpenDowngrade: {
		nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadSeqID, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrExpired,
		nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrLeaseMoved, nfs.ErrLocksHeld, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOldStateID,
		nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
	},
	OpPutFH: {
		nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrMoved, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrWrongSec,
	},
	OpPutPubFH:  {nfs.ErrJukebox, nfs.ErrServerFault, nfs.ErrWrongSec},
	OpPutRootFH: {nfs.ErrJukebox, nfs.ErrServerFault, nfs.ErrWrongSec},
	OpRead: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrExpired,
		nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrLocked, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
		nfs.ErrSymlink,
	},
	OpReadDir: {
		nfs.ErrAcces, nfs.ErrBadCookie, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrNotSame, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrTooSmall,
	},
	OpReadLink: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpRemove: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrFileOpen, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle,
		nfs.ErrNotDir, nfs.ErrNotEmpty, nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpRename: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist,
		nfs.ErrFHExpired, nfs.ErrFileOpen, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt,
		nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrNotEmpty, nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault,
		nfs.ErrStale, nfs.ErrWrongSec, nfs.ErrXDev,
	},
	OpRenew: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrCBPathDown, nfs.ErrExpired, nfs.ErrLeaseMoved, nfs.ErrResource, nfs.ErrServerFault,
		nfs.ErrStaleClientID,
	},
	OpRestoreFH: {
		nfs.ErrBadHandle, nfs.ErrFHExpired, nfs.ErrMoved, nfs.ErrResource, nfs.ErrRestoreFH, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrWrongSec,
	},
	OpSaveFH: {
		nfs.ErrBadHandle, nfs.ErrFHExpired, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpSecInfo: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval,
		nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrResource, nfs.ErrServerFault,
		nfs.ErrStale,
	},
	OpSetAttr: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadOwner, nfs.ErrBadStateID,
		nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval,
		nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrLocked, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrOldStateID,
		nfs.ErrOpenMode, nfs.ErrPerm, nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
	},
	OpSetClientID: {
		nfs.ErrBadXDR, nfs.ErrClientIDInUse, nfs.ErrJukebox, nfs.ErrInval, nfs.ErrResource, nfs.ErrServerFault,
	},
	OpSetClientIDConfirm: {
		nfs.ErrBadXDR, nfs.ErrClientIDInUse, nfs.ErrJukebox, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStaleClientID,
	},
	OpVerify: {
		nfs.ErrAcces, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSame, nfs.ErrResource, nfs.ErrServerFault,
		nfs.ErrStale,
	},
	OpWrite: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot,
		nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLeaseMoved,
		nfs.ErrLocked, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNXIO, nfs.ErrOldStateID, nfs.ErrOpenMode,
		nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID, nfs.ErrSymlink,
	},
	OpReleaseLockOwner: {
		nfs.ErrBadXDR, nfs.ErrExpired, nfs.ErrLeaseMoved, nfs.ErrLocksHeld, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStaleClientID,
	},
	OpIllegal: {nfs.ErrBadXDR, nfs.ErrOpIllegal},
}

// errorsOf41 are those of versions 4.1 and 4.2 (RFC 8881 section 15.2, RFC 7862 section
// 11.2, RFC 8276 section 8.4.5). NFS4_OK is not among them.
var errorsOf41 = map[uint32][]nfs.Status{
	OpAccess: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig,
		nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps,
	},
	OpClose: {
		nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrExpired, nfs.ErrFHExpired,
		nfs.ErrLocksHeld, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps,
		nfs.ErrWrongCred,
	},
	OpCommit: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig,
		nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpCreate: {
		nfs.ErrAcces, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadName, nfs.ErrBadOwner, nfs.ErrBadType, nfs.ErrBadXDR,
		nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO, nfs.ErrMLink,
		nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrOpNotInSession, nfs.ErrPerm,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault,
		nfs.ErrStale, nfs.ErrTooManyOps, nfs.ErrUnsafeCompound,
	},
	OpDelegPurge: {
		nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrNotSupp, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrTooManyOps, nfs.ErrWrongCred,
	},
	OpDelegReturn: {
		nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked, nfs.ErrExpired,
		nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrOpNotInSession,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrTooManyOps, nfs.ErrWrongCred,
	},
	OpGetAttr: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig,
		nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpGetFH: {nfs.ErrFHExpired, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOpNotInSession, nfs.ErrStale},
	OpLink: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist,
		nfs.ErrFHExpired, nfs.ErrFileOpen, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrIO, nfs.ErrMLink, nfs.ErrMoved,
		nfs.ErrNameTooLong, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrNotSupp, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongSec, nfs.ErrWrongType, nfs.ErrXDev,
	},
	OpLock: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadRange, nfs.ErrBadStateID, nfs.ErrDeadlock, nfs.ErrDeadSession,
		nfs.ErrJukebox, nfs.ErrDenied, nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrLockNotSupp,
		nfs.ErrLockRange, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNoGrace, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession,
		nfs.ErrReclaimBad, nfs.ErrReclaimConflict, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep,
		nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongCred, nfs.ErrWrongType,
	},
	OpLockT: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrBadRange, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDenied, nfs.ErrFHExpired, nfs.ErrGrace,
		nfs.ErrInval, nfs.ErrIsDir, nfs.ErrLockRange, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrStale, nfs.ErrSymlink,
		nfs.ErrTooManyOps, nfs.ErrWrongCred, nfs.ErrWrongType,
	},
	OpLockU: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadRange, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox,
		nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrLockRange, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOldStateID,
		nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault,
		nfs.ErrStale, nfs.ErrTooManyOps, nfs.ErrWrongCred,
	},
	OpLookup: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval,
		nfs.ErrIO, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrOpNotInSession,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongSec,
	},
	OpLookupP: {
		nfs.ErrAcces, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoEnt, nfs.ErrNoFileHandle,
		nfs.ErrNotDir, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongSec,
	},
	OpNVerify: {
		nfs.ErrAcces, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrSame, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrTooManyOps, errUnknownLayouttype, nfs.ErrWrongType,
	},
	OpOpen: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadName, nfs.ErrBadOwner, nfs.ErrBadXDR,
		nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, errDelegAlreadyWanted, nfs.ErrDelegRevoked, nfs.ErrDQuot, nfs.ErrExist,
		nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrIO, nfs.ErrMoved,
		nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrNoGrace, nfs.ErrOldStateID,
		nfs.ErrOpNotInSession, nfs.ErrPerm, nfs.ErrReclaimBad, nfs.ErrReclaimConflict, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache,
		nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrShareDenied, nfs.ErrStale, nfs.ErrSymlink,
		nfs.ErrTooManyOps, nfs.ErrUnsafeCompound, nfs.ErrWrongSec, nfs.ErrWrongType,
	},
	OpOpenAttr: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrFHExpired, nfs.ErrIO, nfs.ErrMoved,
		nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotSupp, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrTooManyOps, nfs.ErrUnsafeCompound, nfs.ErrWrongType,
	},
	OpOpenConfirm: {nfs.ErrNotSupp},
	OpOpenDowngrade: {
		nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrExpired, nfs.ErrFHExpired,
		nfs.ErrInval, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrTooManyOps, nfs.ErrWrongCred,
	},
	OpPutFH: {
		nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrMoved, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps,
		nfs.ErrWrongSec,
	},
	OpPutPubFH: {
		nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig,
		nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrTooManyOps, nfs.ErrWrongSec,
	},
	OpPutRootFH: {
		nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig,
		nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrTooManyOps, nfs.ErrWrongSec,
	},
	OpRead: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrIO, nfs.ErrLocked, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession, errPnfsIoHole, errPnfsNoLayout,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpReadDir: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrBadCookie, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrNotSame, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooSmall,
		nfs.ErrTooManyOps,
	},
	OpReadLink: {
		nfs.ErrAcces, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle,
		nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault,
		nfs.ErrStale, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpRemove: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrFileOpen, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle,
		nfs.ErrNotDir, nfs.ErrNotEmpty, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig,
		nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps,
	},
	OpRename: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist,
		nfs.ErrFHExpired, nfs.ErrFileOpen, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMLink, nfs.ErrMoved, nfs.ErrNameTooLong,
		nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrNotEmpty, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrTooManyOps, nfs.ErrWrongSec, nfs.ErrXDev,
	},
	OpRenew: {nfs.ErrNotSupp},
	OpRestoreFH: {
		nfs.ErrDeadSession, nfs.ErrFHExpired, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps,
		nfs.ErrWrongSec,
	},
	OpSaveFH: {
		nfs.ErrDeadSession, nfs.ErrFHExpired, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps,
	},
	OpSecInfo: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval,
		nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps,
	},
	OpSetAttr: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadOwner, nfs.ErrBadXDR, nfs.ErrBadStateID,
		nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked, nfs.ErrDQuot, nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired,
		nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrLocked, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrOldStateID,
		nfs.ErrOpenMode, nfs.ErrOpNotInSession, nfs.ErrPerm, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig,
		nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps, errUnknownLayouttype,
		nfs.ErrWrongType,
	},
	OpSetClientID:        {nfs.ErrNotSupp},
	OpSetClientIDConfirm: {nfs.ErrNotSupp},
	OpVerify: {
		nfs.ErrAcces, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSame, nfs.ErrOpNotInSession,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrTooManyOps, errUnknownLayouttype, nfs.ErrWrongType,
	},
	OpWrite: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrDQuot, nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLocked,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession, errPnfsIoHole,
		errPnfsNoLayout, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpReleaseLockOwner: {nfs.ErrNotSupp},
	OpBackchannelCtl: {
		nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrInval, nfs.ErrNoEnt, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrTooManyOps,
	},
	OpBindConnToSession: {
		nfs.ErrBadSession, nfs.ErrBadXDR, errBadSessionDigest, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrInval, nfs.ErrNotOnlyOp,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrTooManyOps,
	},
	OpExchangeID: {
		nfs.ErrBadChar, nfs.ErrBadXDR, nfs.ErrClientIDInUse, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrEncrAlgUnsupp,
		nfs.ErrHashAlgUnsupp, nfs.ErrInval, nfs.ErrNoEnt, nfs.ErrNotOnlyOp, nfs.ErrNotSame, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache,
		nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrTooManyOps,
	},
	OpCreateSession: {
		nfs.ErrBadXDR, nfs.ErrClientIDInUse, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrInval, nfs.ErrNoEnt, nfs.ErrNotOnlyOp,
		nfs.ErrNoSpc, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrSeqMisordered,
		nfs.ErrServerFault, nfs.ErrStaleClientID, nfs.ErrTooSmall, nfs.ErrTooManyOps, nfs.ErrWrongCred,
	},
	OpDestroySession: {
		errBackChanBusy, nfs.ErrBadSession, nfs.ErrBadXDR, nfs.ErrCBPathDown, nfs.ErrConnNotBound, nfs.ErrDeadSession, nfs.ErrJukebox,
		nfs.ErrNotOnlyOp, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault,
		nfs.ErrStaleClientID, nfs.ErrTooManyOps, nfs.ErrWrongCred,
	},
	OpFreeStateID: {
		nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrLocksHeld, nfs.ErrOldStateID,
		nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault,
		nfs.ErrTooManyOps, nfs.ErrWrongCred,
	},
	OpGetDirDelegation: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, errDirdelegUnavail, nfs.ErrFHExpired, nfs.ErrGrace,
		nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrNotSupp, nfs.ErrOpNotInSession,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrTooManyOps,
	},
	OpGetDeviceInfo: {
		nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrInval, nfs.ErrNoEnt, nfs.ErrNotSupp, nfs.ErrOpNotInSession,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrTooSmall,
		nfs.ErrTooManyOps, errUnknownLayouttype,
	},
	OpGetDeviceList: {
		nfs.ErrBadXDR, nfs.ErrBadCookie, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO,
		nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrNotSame, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache,
		nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrTooManyOps, errUnknownLayouttype,
	},
	OpLayoutCommit: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrAttrNotSupp, errBadiomode, errBadlayout, nfs.ErrBadXDR, nfs.ErrDeadSession,
		nfs.ErrJukebox, nfs.ErrDelegRevoked, nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO,
		nfs.ErrIsDir, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrNoGrace, nfs.ErrOpNotInSession, nfs.ErrReclaimBad,
		nfs.ErrReclaimConflict, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink, nfs.ErrTooManyOps, errUnknownLayouttype, nfs.ErrWrongCred,
	},
	OpLayoutGet: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, errBadiomode, errBadlayout, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession,
		nfs.ErrJukebox, nfs.ErrDelegRevoked, nfs.ErrDQuot, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, errLayouttrylater,
		errLayoutunavailable, nfs.ErrLocked, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotSupp, nfs.ErrOldStateID,
		nfs.ErrOpenMode, nfs.ErrOpNotInSession, errRecallconflict, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig,
		nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooSmall, nfs.ErrTooManyOps, errUnknownLayouttype,
		nfs.ErrWrongType,
	},
	OpLayoutReturn: {
		nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked, nfs.ErrExpired,
		nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrNoGrace,
		nfs.ErrOldStateID, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps, errUnknownLayouttype, nfs.ErrWrongCred, nfs.ErrWrongType,
	},
	OpSecInfoNoName: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrMoved, nfs.ErrNoEnt,
		nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrNotSupp, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache,
		nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps,
	},
	OpSequence: {
		nfs.ErrBadSession, nfs.ErrBadSlot, nfs.ErrBadXDR, nfs.ErrBadHighSlot, nfs.ErrConnNotBound, nfs.ErrDeadSession, nfs.ErrJukebox,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrSequencePos, nfs.ErrSeqFalseRetry,
		nfs.ErrSeqMisordered, nfs.ErrTooManyOps,
	},
	OpSetSSV: {
		nfs.ErrBadXDR, errBadSessionDigest, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrInval, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrTooManyOps,
	},
	OpTestStateID: {
		nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache,
		nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrTooManyOps,
	},
	OpWantDelegation: {
		nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, errDelegAlreadyWanted, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval,
		nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrNoGrace, nfs.ErrOpNotInSession, errRecallconflict,
		nfs.ErrReclaimBad, nfs.ErrReclaimConflict, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpDestroyClientID: {
		nfs.ErrBadXDR, nfs.ErrClientIDBusy, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrNotOnlyOp, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStaleClientID, nfs.ErrTooManyOps,
		nfs.ErrWrongCred,
	},
	OpReclaimComplete: {
		nfs.ErrBadXDR, nfs.ErrCompleteAlready, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig,
		nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps, nfs.ErrWrongCred, nfs.ErrWrongType,
	},
	OpAllocate: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrDQuot, nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpCopy: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrDQuot, nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLocked,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNoSpc, errOffloadDenied, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession,
		errPartnerNoAuth, errPartnerNotsupp, errPnfsIoHole, errPnfsNoLayout, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache,
		nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink, nfs.ErrTooManyOps,
		nfs.ErrWrongType,
	},
	OpCopyNotify: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLocked, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession, errPnfsIoHole, errPnfsNoLayout,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpDeallocate: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpIOAdvise: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrOpNotInSession, nfs.ErrRetryUncachedRep, nfs.ErrServerFault,
		nfs.ErrStale, nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpLayoutError: {
		nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked, nfs.ErrExpired,
		nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrNoGrace,
		nfs.ErrOldStateID, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps, errUnknownLayouttype, nfs.ErrWrongCred, nfs.ErrWrongType,
	},
	OpLayoutStats: {
		nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked, nfs.ErrExpired,
		nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrNoGrace,
		nfs.ErrOldStateID, nfs.ErrOpNotInSession, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps, errUnknownLayouttype, nfs.ErrWrongCred, nfs.ErrWrongType,
	},
	OpOffloadCancel: {
		nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrCompleteAlready, nfs.ErrDeadSession, nfs.ErrJukebox,
		nfs.ErrExpired, nfs.ErrGrace, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrOpNotInSession, nfs.ErrServerFault, nfs.ErrTooManyOps,
	},
	OpOffloadStatus: {
		nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrCompleteAlready, nfs.ErrDeadSession, nfs.ErrJukebox,
		nfs.ErrExpired, nfs.ErrGrace, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrOpNotInSession, nfs.ErrServerFault, nfs.ErrTooManyOps,
	},
	OpReadPlus: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLocked, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession, errPartnerNoAuth, errPnfsIoHole,
		errPnfsNoLayout, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault,
		nfs.ErrStale, nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpSeek: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLocked, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession, errPnfsIoHole, errPnfsNoLayout,
		nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrUnionNotSupp, nfs.ErrWrongType,
	},
	OpWriteSame: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrDQuot, nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLocked,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession,
		errPnfsIoHole, errPnfsNoLayout, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep,
		nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpClone: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadXDR, nfs.ErrBadStateID, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDelegRevoked,
		nfs.ErrDQuot, nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrSymlink, nfs.ErrTooManyOps, nfs.ErrWrongType, nfs.ErrXDev,
	},
	OpGetXattr: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved,
		nfs.ErrNameTooLong, nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrNoXattr, nfs.ErrOpNotInSession, nfs.ErrPerm, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps,
		nfs.ErrWrongType,
	},
	OpSetXattr: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist, nfs.ErrFHExpired,
		nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNoXattr,
		nfs.ErrOpNotInSession, nfs.ErrPerm, nfs.ErrRepTooBig, nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep,
		nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps, nfs.ErrWrongType, nfs.ErrXattr2Big,
	},
	OpListXattrs: {
		nfs.ErrAcces, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNameTooLong,
		nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrNoXattr, nfs.ErrOpNotInSession, nfs.ErrPerm, nfs.ErrRepTooBig,
		nfs.ErrRepTooBigToCache, nfs.ErrReqTooBig, nfs.ErrRetryUncachedRep, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps,
		nfs.ErrWrongType,
	},
	OpRemoveXattr: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadXDR, nfs.ErrDeadSession, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist, nfs.ErrInval,
		nfs.ErrIO, nfs.ErrLocked, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNoXattr,
		nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrOpNotInSession, nfs.ErrPerm, nfs.ErrRetryUncachedRep, nfs.ErrROFS,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrTooManyOps, nfs.ErrWrongType,
	},
	OpIllegal: {nfs.ErrBadXDR, nfs.ErrOpIllegal},
}
