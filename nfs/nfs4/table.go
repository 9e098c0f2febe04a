package nfs4

import "github.com/rstored/rstored/nfs"

// flags say where an operation may stand in a compound, and whether it changes anything. admit
// checks them before the handler runs, so that handlers need not.
type flags uint8

const (
	// alone: needs no session, and is the only operation then (RFC 8881 section 2.10.6.4). It may
	// also follow a SEQUENCE, except BIND_CONN_TO_SESSION, which must always be alone.
	alone flags = 1 << iota
	// needsHandle: there must be a current file handle. needsSaved: there must be a saved one. The
	// object may still be one of the pseudo file system, or of the wrong type: the handler checks
	// that.
	needsHandle
	needsSaved
	// changing: not idempotent. admit makes sure before that the result fits into the reply. finish
	// caches the reply, if it fits, even if the client did not ask for that.
	changing
	// minor0: an operation of version 4.0 alone. Later versions have it in their XDR, and answer
	// NOTSUPP.
	minor0
)

// operation is a row of the table. A row without a name is no operation in any version: OP_ILLEGAL.
// So is one whose minor version is above that of the compound (RFC 8881 section 18.52).
type operation struct {
	name  string
	minor uint8 // the first minor version that has it
	flags flags
	// result is the most that a changing operation appends, in bytes, behind its number and status. It
	// is 0 for others: step measures their results and cuts them off.
	result int
	// do executes it. nil is NOTSUPP: pNFS, named attributes, and DELEGPURGE, for which delegations
	// would have to survive a restart of the client.
	do func(*compound) nfs.Status
}

func (o *operation) is(f flags) bool { return o.flags&f != 0 }

// The longest results of changing operations, in bytes. A change must not be made if its result
// cannot be returned. So admit refuses the operation in advance (REP_TOO_BIG, REP_TOO_BIG_TO_CACHE,
// in version 4.0 RESOURCE). If a number here is too small, a change can happen whose result is cut
// off. If it is too great, admit refuses operations whose results would fit.
//
//	OPEN     stateid, change_info4, rflags, attributes set, open_delegation4
//	COPY     callback ID (array of 0 or 1), count, committed, verifier, consecutive, synchronous
//	CREATE   change_info4, attributes set
//	LOCK     stateid, or LOCK4denied: offset, length, type, owner
const (
	resStateid = 16
	resOpen    = resStateid + changeInfoLen + 4 + bitmapLen + delegResult
	resCopy    = 4 + resStateid + 8 + 4 + VerifierLen + 4 + 4
	resCreate  = changeInfoLen + bitmapLen
	resLock    = resStateid // a LOCK4denied is longer, but nothing was changed then
)

// table has a row for every operation, by its number. init fills it in: the handlers refer to the
// table, so an initializer would be a cycle. Nothing changes it afterwards, so goroutines read it
// without a lock.
var table [numOps]operation

func init() {
	const h = needsHandle
	table = [numOps]operation{
		OpAccess:             {"ACCESS", 0, h, 0, access},
		OpClose:              {"CLOSE", 0, h | changing, resStateid, closeFile},
		OpCommit:             {"COMMIT", 0, h, 0, commit},
		OpCreate:             {"CREATE", 0, h | changing, resCreate, create},
		OpDelegPurge:         {"DELEGPURGE", 0, 0, 0, nil},
		OpDelegReturn:        {"DELEGRETURN", 0, h | changing, 0, delegReturn},
		OpGetAttr:            {"GETATTR", 0, h, 0, getAttr},
		OpGetFH:              {"GETFH", 0, h, 0, getFH},
		OpLink:               {"LINK", 0, h | needsSaved | changing, changeInfoLen, link},
		OpLock:               {"LOCK", 0, h | changing, resLock, lockRange},
		OpLockT:              {"LOCKT", 0, h, 0, lockTest},
		OpLockU:              {"LOCKU", 0, h | changing, resStateid, unlock},
		OpLookup:             {"LOOKUP", 0, h, 0, lookup},
		OpLookupP:            {"LOOKUPP", 0, h, 0, lookupParent},
		OpNVerify:            {"NVERIFY", 0, h, 0, nverify},
		OpOpen:               {"OPEN", 0, h | changing, resOpen, open},
		OpOpenAttr:           {"OPENATTR", 0, h, 0, nil},
		OpOpenConfirm:        {"OPEN_CONFIRM", 0, h | minor0, 0, openConfirm},
		OpOpenDowngrade:      {"OPEN_DOWNGRADE", 0, h | changing, resStateid, openDowngrade},
		OpPutFH:              {"PUTFH", 0, 0, 0, putFH},
		OpPutPubFH:           {"PUTPUBFH", 0, 0, 0, putRootFH},
		OpPutRootFH:          {"PUTROOTFH", 0, 0, 0, putRootFH},
		OpRead:               {"READ", 0, h, 0, read},
		OpReadDir:            {"READDIR", 0, h, 0, readDir},
		OpReadLink:           {"READLINK", 0, h, 0, readLink},
		OpRemove:             {"REMOVE", 0, h | changing, changeInfoLen, remove},
		OpRename:             {"RENAME", 0, h | needsSaved | changing, 2 * changeInfoLen, rename},
		OpRenew:              {"RENEW", 0, minor0, 0, renew},
		OpRestoreFH:          {"RESTOREFH", 0, needsSaved, 0, restoreFH},
		OpSaveFH:             {"SAVEFH", 0, h, 0, saveFH},
		OpSecInfo:            {"SECINFO", 0, h, 0, secInfo},
		OpSetAttr:            {"SETATTR", 0, h | changing, bitmapLen, setAttr},
		OpSetClientID:        {"SETCLIENTID", 0, minor0, 0, setClientID},
		OpSetClientIDConfirm: {"SETCLIENTID_CONFIRM", 0, minor0, 0, confirmClientID},
		OpVerify:             {"VERIFY", 0, h, 0, verify},
		OpWrite:              {"WRITE", 0, h | changing, 4 + 4 + VerifierLen, write},
		OpReleaseLockOwner:   {"RELEASE_LOCKOWNER", 0, minor0, 0, releaseLockOwner},
		OpBackchannelCtl:     {"BACKCHANNEL_CTL", 1, 0, 0, backchannelCtl},
		OpBindConnToSession:  {"BIND_CONN_TO_SESSION", 1, alone, 0, bindConn},
		OpExchangeID:         {"EXCHANGE_ID", 1, alone, 0, exchangeID},
		OpCreateSession:      {"CREATE_SESSION", 1, alone, 0, createSession},
		OpDestroySession:     {"DESTROY_SESSION", 1, alone, 0, destroySession},
		OpFreeStateID:        {"FREE_STATEID", 1, changing, 0, freeStateid},
		OpGetDirDelegation:   {"GET_DIR_DELEGATION", 1, h | changing, dirDelegResult, getDirDelegation},
		OpGetDeviceInfo:      {"GETDEVICEINFO", 1, 0, 0, nil},
		OpGetDeviceList:      {"GETDEVICELIST", 1, h, 0, nil},
		OpLayoutCommit:       {"LAYOUTCOMMIT", 1, h, 0, nil},
		OpLayoutGet:          {"LAYOUTGET", 1, h, 0, nil},
		OpLayoutReturn:       {"LAYOUTRETURN", 1, 0, 0, nil},
		OpSecInfoNoName:      {"SECINFO_NO_NAME", 1, h, 0, secInfoNoName},
		OpSequence:           {"SEQUENCE", 1, 0, 0, sequence},
		OpSetSSV:             {"SET_SSV", 1, 0, 0, setSSV},
		OpTestStateID:        {"TEST_STATEID", 1, 0, 0, testStateid},
		OpWantDelegation:     {"WANT_DELEGATION", 1, h | changing, delegResult, wantDelegation},
		OpDestroyClientID:    {"DESTROY_CLIENTID", 1, alone, 0, destroyClientID},
		OpReclaimComplete:    {"RECLAIM_COMPLETE", 1, changing, 0, reclaimComplete},
		OpAllocate:           {"ALLOCATE", 2, h | changing, 0, allocate},
		OpCopy:               {"COPY", 2, h | needsSaved | changing, resCopy, copyFile},
		OpCopyNotify:         {"COPY_NOTIFY", 2, h | changing, resCopyNotify, copyNotify},
		OpDeallocate:         {"DEALLOCATE", 2, h | changing, 0, deallocate},
		OpIOAdvise:           {"IO_ADVISE", 2, h, 0, ioAdvise},
		OpLayoutError:        {"LAYOUTERROR", 2, h, 0, nil},
		OpLayoutStats:        {"LAYOUTSTATS", 2, h, 0, nil},
		OpOffloadCancel:      {"OFFLOAD_CANCEL", 2, h | changing, 0, offloadCancel},
		OpOffloadStatus:      {"OFFLOAD_STATUS", 2, h, 0, offloadStatus},
		OpReadPlus:           {"READ_PLUS", 2, h, 0, readPlus},
		OpSeek:               {"SEEK", 2, h, 0, seek},
		OpWriteSame:          {"WRITE_SAME", 2, h | changing, resWriteSame, writeSame},
		OpClone:              {"CLONE", 2, h | needsSaved | changing, 0, clone},
		OpGetXattr:           {"GETXATTR", 2, h, 0, getXattr},
		OpSetXattr:           {"SETXATTR", 2, h | changing, changeInfoLen, setXattr},
		OpListXattrs:         {"LISTXATTRS", 2, h, 0, listXattrs},
		OpRemoveXattr:        {"REMOVEXATTR", 2, h | changing, changeInfoLen, removeXattr},
	}
}
