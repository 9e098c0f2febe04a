package nfs

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/blockstore"
)

// Status is the status of a result: nfsstat3 (RFC 1813 section 2.6) and nfsstat4 (RFC 8881 section
// 15, RFC 7862 section 11). Where both have a status, its number is the same. As an error, a Status
// matches the error of package blockstore that it stands for (errors.Is).
type Status uint32

// Statuses.
const (
	OK             Status = 0
	ErrPerm        Status = 1
	ErrNoEnt       Status = 2
	ErrIO          Status = 5
	ErrNXIO        Status = 6
	ErrAcces       Status = 13
	ErrExist       Status = 17
	ErrXDev        Status = 18
	ErrNoDev       Status = 19
	ErrNotDir      Status = 20
	ErrIsDir       Status = 21
	ErrInval       Status = 22
	ErrFBig        Status = 27
	ErrNoSpc       Status = 28
	ErrROFS        Status = 30
	ErrMLink       Status = 31
	ErrNameTooLong Status = 63
	ErrNotEmpty    Status = 66
	ErrDQuot       Status = 69
	ErrStale       Status = 70
	ErrRemote      Status = 71
	ErrBadHandle   Status = 10001
	ErrNotSync     Status = 10002
	ErrBadCookie   Status = 10003
	ErrNotSupp     Status = 10004
	ErrTooSmall    Status = 10005
	ErrServerFault Status = 10006
	ErrBadType     Status = 10007
	ErrJukebox     Status = 10008 // NFS4ERR_DELAY
)

// Statuses of version 4 alone.
const (
	ErrSame              Status = 10009
	ErrDenied            Status = 10010
	ErrExpired           Status = 10011
	ErrLocked            Status = 10012
	ErrGrace             Status = 10013
	ErrFHExpired         Status = 10014
	ErrShareDenied       Status = 10015
	ErrWrongSec          Status = 10016
	ErrClientIDInUse     Status = 10017
	ErrResource          Status = 10018
	ErrMoved             Status = 10019
	ErrNoFileHandle      Status = 10020
	ErrMinorVersMismatch Status = 10021
	ErrStaleClientID     Status = 10022
	ErrStaleStateID      Status = 10023
	ErrOldStateID        Status = 10024
	ErrBadStateID        Status = 10025
	ErrBadSeqID          Status = 10026
	ErrNotSame           Status = 10027
	ErrLockRange         Status = 10028
	ErrSymlink           Status = 10029
	ErrRestoreFH         Status = 10030
	ErrLeaseMoved        Status = 10031
	ErrAttrNotSupp       Status = 10032
	ErrNoGrace           Status = 10033
	ErrReclaimBad        Status = 10034
	ErrReclaimConflict   Status = 10035
	ErrBadXDR            Status = 10036
	ErrLocksHeld         Status = 10037
	ErrOpenMode          Status = 10038
	ErrBadOwner          Status = 10039
	ErrBadChar           Status = 10040
	ErrBadName           Status = 10041
	ErrBadRange          Status = 10042
	ErrLockNotSupp       Status = 10043
	ErrOpIllegal         Status = 10044
	ErrDeadlock          Status = 10045
	ErrFileOpen          Status = 10046
	ErrAdminRevoked      Status = 10047
	ErrCBPathDown        Status = 10048
	ErrBadSession        Status = 10052
	ErrBadSlot           Status = 10053
	ErrCompleteAlready   Status = 10054
	ErrConnNotBound      Status = 10055
	ErrSeqMisordered     Status = 10063
	ErrSequencePos       Status = 10064
	ErrReqTooBig         Status = 10065
	ErrRepTooBig         Status = 10066
	ErrRepTooBigToCache  Status = 10067
	ErrRetryUncachedRep  Status = 10068
	ErrUnsafeCompound    Status = 10069
	ErrTooManyOps        Status = 10070
	ErrOpNotInSession    Status = 10071
	ErrHashAlgUnsupp     Status = 10072
	ErrClientIDBusy      Status = 10074
	ErrSeqFalseRetry     Status = 10076
	ErrBadHighSlot       Status = 10077
	ErrDeadSession       Status = 10078
	ErrEncrAlgUnsupp     Status = 10079
	ErrNotOnlyOp         Status = 10081
	ErrWrongCred         Status = 10082
	ErrWrongType         Status = 10083
	ErrDelegRevoked      Status = 10087
	ErrPartnerNotSupp    Status = 10088
	ErrPartnerNoAuth     Status = 10089
	ErrUnionNotSupp      Status = 10090
	ErrOffloadDenied     Status = 10091
	ErrOffloadNoReqs     Status = 10094
	ErrNoXattr           Status = 10095
	ErrXattr2Big         Status = 10096
)

// statusRow has the name of a status and the error of a store that it stands for.
type statusRow struct {
	status Status
	name   string
	err    error // nil: no error of a store
}

// statuses has all statuses. StatusOf takes the first row that matches.
var statuses = [...]statusRow{
	{OK, "OK", nil},
	{ErrNoEnt, "NOENT", blockstore.ErrNotExist},
	{ErrExist, "EXIST", blockstore.ErrExist},
	{ErrAcces, "ACCES", blockstore.ErrAccess},
	{ErrJukebox, "JUKEBOX", blockstore.ErrJukebox},
	{ErrStale, "STALE", blockstore.ErrStale},
	{ErrPerm, "PERM", blockstore.ErrPerm},
	{ErrIO, "IO", blockstore.ErrIO},
	{ErrNXIO, "NXIO", blockstore.ErrNXIO},
	{ErrXDev, "XDEV", blockstore.ErrXDev},
	{ErrNoDev, "NODEV", blockstore.ErrNoDev},
	{ErrNotDir, "NOTDIR", blockstore.ErrNotDir},
	{ErrIsDir, "ISDIR", blockstore.ErrIsDir},
	{ErrInval, "INVAL", blockstore.ErrInval},
	{ErrFBig, "FBIG", blockstore.ErrFBig},
	{ErrNoSpc, "NOSPC", blockstore.ErrNoSpace},
	{ErrROFS, "ROFS", blockstore.ErrROFS},
	{ErrMLink, "MLINK", blockstore.ErrMLink},
	{ErrNameTooLong, "NAMETOOLONG", blockstore.ErrNameTooLong},
	{ErrNotEmpty, "NOTEMPTY", blockstore.ErrNotEmpty},
	{ErrDQuot, "DQUOT", blockstore.ErrQuota},
	{ErrRemote, "REMOTE", nil},
	{ErrBadHandle, "BADHANDLE", blockstore.ErrBadHandle},
	{ErrNotSync, "NOT_SYNC", blockstore.ErrNotSync},
	{ErrBadCookie, "BAD_COOKIE", blockstore.ErrBadCookie},
	{ErrNotSupp, "NOTSUPP", blockstore.ErrNotSupp},
	{ErrTooSmall, "TOOSMALL", nil},
	{ErrServerFault, "SERVERFAULT", nil},
	{ErrBadType, "BADTYPE", blockstore.ErrBadType},

	{ErrSame, "SAME", nil},
	{ErrDenied, "DENIED", nil},
	{ErrExpired, "EXPIRED", nil},
	{ErrLocked, "LOCKED", nil},
	{ErrGrace, "GRACE", nil},
	{ErrFHExpired, "FHEXPIRED", nil},
	{ErrShareDenied, "SHARE_DENIED", nil},
	{ErrWrongSec, "WRONGSEC", nil},
	{ErrClientIDInUse, "CLID_INUSE", nil},
	{ErrResource, "RESOURCE", nil},
	{ErrMoved, "MOVED", nil},
	{ErrNoFileHandle, "NOFILEHANDLE", nil},
	{ErrMinorVersMismatch, "MINOR_VERS_MISMATCH", nil},
	{ErrStaleClientID, "STALE_CLIENTID", nil},
	{ErrStaleStateID, "STALE_STATEID", nil},
	{ErrOldStateID, "OLD_STATEID", nil},
	{ErrBadStateID, "BAD_STATEID", nil},
	{ErrBadSeqID, "BAD_SEQID", nil},
	{ErrNotSame, "NOT_SAME", nil},
	{ErrLockRange, "LOCK_RANGE", nil},
	{ErrSymlink, "SYMLINK", nil},
	{ErrRestoreFH, "RESTOREFH", nil},
	{ErrLeaseMoved, "LEASE_MOVED", nil},
	{ErrAttrNotSupp, "ATTRNOTSUPP", nil},
	{ErrNoGrace, "NO_GRACE", nil},
	{ErrReclaimBad, "RECLAIM_BAD", nil},
	{ErrReclaimConflict, "RECLAIM_CONFLICT", nil},
	{ErrBadXDR, "BADXDR", nil},
	{ErrLocksHeld, "LOCKS_HELD", nil},
	{ErrOpenMode, "OPENMODE", nil},
	{ErrBadOwner, "BADOWNER", nil},
	{ErrBadChar, "BADCHAR", nil},
	{ErrBadName, "BADNAME", nil},
	{ErrBadRange, "BAD_RANGE", nil},
	{ErrLockNotSupp, "LOCK_NOTSUPP", nil},
	{ErrOpIllegal, "OP_ILLEGAL", nil},
	{ErrDeadlock, "DEADLOCK", nil},
	{ErrFileOpen, "FILE_OPEN", nil},
	{ErrAdminRevoked, "ADMIN_REVOKED", nil},
	{ErrCBPathDown, "CB_PATH_DOWN", nil},
	{ErrBadSession, "BADSESSION", nil},
	{ErrBadSlot, "BADSLOT", nil},
	{ErrCompleteAlready, "COMPLETE_ALREADY", nil},
	{ErrConnNotBound, "CONN_NOT_BOUND_TO_SESSION", nil},
	{ErrSeqMisordered, "SEQ_MISORDERED", nil},
	{ErrSequencePos, "SEQUENCE_POS", nil},
	{ErrReqTooBig, "REQ_TOO_BIG", nil},
	{ErrRepTooBig, "REP_TOO_BIG", nil},
	{ErrRepTooBigToCache, "REP_TOO_BIG_TO_CACHE", nil},
	{ErrRetryUncachedRep, "RETRY_UNCACHED_REP", nil},
	{ErrUnsafeCompound, "UNSAFE_COMPOUND", nil},
	{ErrTooManyOps, "TOO_MANY_OPS", nil},
	{ErrOpNotInSession, "OP_NOT_IN_SESSION", nil},
	{ErrHashAlgUnsupp, "HASH_ALG_UNSUPP", nil},
	{ErrClientIDBusy, "CLIENTID_BUSY", nil},
	{ErrSeqFalseRetry, "SEQ_FALSE_RETRY", nil},
	{ErrBadHighSlot, "BAD_HIGH_SLOT", nil},
	{ErrDeadSession, "DEADSESSION", nil},
	{ErrEncrAlgUnsupp, "ENCR_ALG_UNSUPP", nil},
	{ErrNotOnlyOp, "NOT_ONLY_OP", nil},
	{ErrWrongCred, "WRONG_CRED", nil},
	{ErrWrongType, "WRONG_TYPE", nil},
	{ErrDelegRevoked, "DELEG_REVOKED", nil},
	{ErrPartnerNotSupp, "PARTNER_NOTSUPP", nil},
	{ErrPartnerNoAuth, "PARTNER_NO_AUTH", nil},
	{ErrUnionNotSupp, "UNION_NOTSUPP", nil},
	{ErrOffloadDenied, "OFFLOAD_DENIED", nil},
	{ErrOffloadNoReqs, "OFFLOAD_NO_REQS", nil},
	{ErrNoXattr, "NOXATTR", blockstore.ErrNoXattr},
	{ErrXattr2Big, "XATTR2BIG", blockstore.ErrXattrTooBig},
}

// StatusOf returns the status for an error of a store. If the store would have to wait where it
// must not, the status is JUKEBOX: the client sends the call again. An error that is in no row is
// IO.
func StatusOf(err error) Status {
	if err == nil {
		return OK
	}
	// First, because errors.As allocates: a WRITE over RDMA is tried without waiting for the store.
	if errors.Is(err, blockstore.ErrWouldBlock) {
		return ErrJukebox
	}
	var s Status
	if errors.As(err, &s) {
		return s
	}
	for i := range statuses {
		if r := &statuses[i]; r.err != nil && errors.Is(err, r.err) {
			return r.status
		}
	}
	return ErrIO
}

func (s Status) row() int {
	for i := range statuses {
		if statuses[i].status == s {
			return i
		}
	}
	return -1
}

// String returns the name in RFC 1813, else the one in RFC 8881, without its prefix.
func (s Status) String() string {
	if i := s.row(); i >= 0 {
		return statuses[i].name
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// Error implements error.
func (s Status) Error() string {
	if i := s.row(); i >= 0 && statuses[i].err != nil {
		return statuses[i].err.Error()
	}
	switch s {
	case OK:
		return "success"
	case ErrRemote:
		return "too many levels of remote in path"
	case ErrTooSmall:
		return "the reply does not fit into the size that was asked for"
	case ErrServerFault:
		return "the server failed"
	}
	if i := s.row(); i >= 0 {
		return "NFS status " + statuses[i].name
	}
	return fmt.Sprintf("unknown NFS status %d", uint32(s))
}

// Is makes a status match the store error that it stands for.
func (s Status) Is(target error) bool {
	i := s.row()
	return i >= 0 && statuses[i].err != nil && statuses[i].err == target
}

// Err returns s as an error; OK is nil.
func (s Status) Err() error {
	if s == OK {
		return nil
	}
	return s
}
