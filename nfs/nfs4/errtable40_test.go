package nfs4

import "github.com/rstored/rstored/nfs"

// errorsOf40 are the errors that each operation of version 4.0 may return (RFC 7530 section 13.2).
var errorsOf40 = map[uint32][]nfs.Status{
	OpAccess: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO,
		nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpClose: {
		nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadSeqID, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox,
		nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrLocksHeld, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
	},
	OpCommit: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO,
		nfs.ErrIsDir, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrSymlink,
	},
	OpCreate: {
		nfs.ErrAcces, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadOwner, nfs.ErrBadType,
		nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved,
		nfs.ErrNameTooLong, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrPerm, nfs.ErrResource, nfs.ErrROFS,
		nfs.ErrServerFault, nfs.ErrStale,
	},
	OpDelegPurge: {
		nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrLeaseMoved, nfs.ErrNotSupp, nfs.ErrResource, nfs.ErrServerFault,
		nfs.ErrStaleClientID,
	},
	OpDelegReturn: {
		nfs.ErrAdminRevoked, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrExpired, nfs.ErrInval,
		nfs.ErrLeaseMoved, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrOldStateID, nfs.ErrResource,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
	},
	OpGetAttr: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval,
		nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpGetFH: {
		nfs.ErrBadHandle, nfs.ErrFHExpired, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrServerFault,
		nfs.ErrStale,
	},
	OpLink: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot,
		nfs.ErrExist, nfs.ErrFHExpired, nfs.ErrFileOpen, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMLink, nfs.ErrMoved,
		nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrNotSupp, nfs.ErrResource,
		nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrWrongSec, nfs.ErrXDev,
	},
	OpLock: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadRange, nfs.ErrBadSeqID, nfs.ErrBadStateID,
		nfs.ErrBadXDR, nfs.ErrDeadlock, nfs.ErrJukebox, nfs.ErrDenied, nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrGrace,
		nfs.ErrInval, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrLockNotSupp, nfs.ErrLockRange, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrNoGrace, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrReclaimBad, nfs.ErrReclaimConflict,
		nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleClientID, nfs.ErrStaleStateID,
	},
	OpLockT: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrBadRange, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDenied, nfs.ErrExpired,
		nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrLockRange, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleClientID,
	},
	OpLockU: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadRange, nfs.ErrBadSeqID, nfs.ErrBadStateID,
		nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIsDir,
		nfs.ErrLeaseMoved, nfs.ErrLockRange, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrResource,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
	},
	OpLookup: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNotDir,
		nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink, nfs.ErrWrongSec,
	},
	OpLookupP: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoEnt,
		nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrSymlink,
		nfs.ErrWrongSec,
	},
	OpNVerify: {
		nfs.ErrAcces, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrSame, nfs.ErrServerFault,
		nfs.ErrStale,
	},
	OpOpen: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName,
		nfs.ErrBadOwner, nfs.ErrBadSeqID, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExist,
		nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMoved,
		nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNoGrace, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrNotSupp,
		nfs.ErrOldStateID, nfs.ErrPerm, nfs.ErrReclaimBad, nfs.ErrReclaimConflict, nfs.ErrResource, nfs.ErrROFS,
		nfs.ErrServerFault, nfs.ErrShareDenied, nfs.ErrStale, nfs.ErrStaleClientID, nfs.ErrSymlink, nfs.ErrWrongSec,
	},
	OpOpenAttr: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrFHExpired, nfs.ErrIO,
		nfs.ErrMoved, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotSupp, nfs.ErrResource, nfs.ErrROFS,
		nfs.ErrServerFault, nfs.ErrStale,
	},
	OpOpenConfirm: {
		nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadSeqID, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrExpired,
		nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrOldStateID,
		nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
	},
	OpOpenDowngrade: {
		nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadSeqID, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox,
		nfs.ErrExpired, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrLeaseMoved, nfs.ErrLocksHeld, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrStaleStateID,
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
		nfs.ErrNoFileHandle, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrStaleStateID, nfs.ErrSymlink,
	},
	OpReadDir: {
		nfs.ErrAcces, nfs.ErrBadCookie, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval,
		nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrNotSame, nfs.ErrResource, nfs.ErrServerFault,
		nfs.ErrStale, nfs.ErrTooSmall,
	},
	OpReadLink: {
		nfs.ErrAcces, nfs.ErrBadHandle, nfs.ErrJukebox, nfs.ErrFHExpired, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrNotSupp, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpRemove: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrFileOpen, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt,
		nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrNotEmpty, nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale,
	},
	OpRename: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot,
		nfs.ErrExist, nfs.ErrFHExpired, nfs.ErrFileOpen, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved,
		nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNotDir, nfs.ErrNotEmpty, nfs.ErrResource,
		nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrWrongSec, nfs.ErrXDev,
	},
	OpRenew: {
		nfs.ErrAcces, nfs.ErrBadXDR, nfs.ErrCBPathDown, nfs.ErrExpired, nfs.ErrLeaseMoved, nfs.ErrResource,
		nfs.ErrServerFault, nfs.ErrStaleClientID,
	},
	OpRestoreFH: {
		nfs.ErrBadHandle, nfs.ErrFHExpired, nfs.ErrMoved, nfs.ErrResource, nfs.ErrRestoreFH, nfs.ErrServerFault, nfs.ErrStale,
		nfs.ErrWrongSec,
	},
	OpSaveFH: {
		nfs.ErrBadHandle, nfs.ErrFHExpired, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrResource, nfs.ErrServerFault,
		nfs.ErrStale,
	},
	OpSecInfo: {
		nfs.ErrAcces, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadName, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrInval, nfs.ErrMoved, nfs.ErrNameTooLong, nfs.ErrNoEnt, nfs.ErrNoFileHandle, nfs.ErrNotDir, nfs.ErrResource,
		nfs.ErrServerFault, nfs.ErrStale,
	},
	OpSetAttr: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadOwner,
		nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot, nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired,
		nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLeaseMoved, nfs.ErrLocked, nfs.ErrMoved,
		nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrOldStateID, nfs.ErrOpenMode, nfs.ErrPerm, nfs.ErrResource, nfs.ErrROFS,
		nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID,
	},
	OpSetClientID: {
		nfs.ErrBadXDR, nfs.ErrClientIDInUse, nfs.ErrJukebox, nfs.ErrInval, nfs.ErrResource, nfs.ErrServerFault,
	},
	OpSetClientIDConfirm: {
		nfs.ErrBadXDR, nfs.ErrClientIDInUse, nfs.ErrJukebox, nfs.ErrResource, nfs.ErrServerFault, nfs.ErrStaleClientID,
	},
	OpVerify: {
		nfs.ErrAcces, nfs.ErrAttrNotSupp, nfs.ErrBadChar, nfs.ErrBadHandle, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrFHExpired,
		nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNotSame, nfs.ErrResource,
		nfs.ErrServerFault, nfs.ErrStale,
	},
	OpWrite: {
		nfs.ErrAcces, nfs.ErrAdminRevoked, nfs.ErrBadHandle, nfs.ErrBadStateID, nfs.ErrBadXDR, nfs.ErrJukebox, nfs.ErrDQuot,
		nfs.ErrExpired, nfs.ErrFBig, nfs.ErrFHExpired, nfs.ErrGrace, nfs.ErrInval, nfs.ErrIO, nfs.ErrIsDir, nfs.ErrLeaseMoved,
		nfs.ErrLocked, nfs.ErrMoved, nfs.ErrNoFileHandle, nfs.ErrNoSpc, nfs.ErrNXIO, nfs.ErrOldStateID, nfs.ErrOpenMode,
		nfs.ErrResource, nfs.ErrROFS, nfs.ErrServerFault, nfs.ErrStale, nfs.ErrStaleStateID, nfs.ErrSymlink,
	},
	OpReleaseLockOwner: {
		nfs.ErrBadXDR, nfs.ErrExpired, nfs.ErrLeaseMoved, nfs.ErrLocksHeld, nfs.ErrResource, nfs.ErrServerFault,
		nfs.ErrStaleClientID,
	},
	OpIllegal: {nfs.ErrBadXDR, nfs.ErrOpIllegal},
}
