package nfs4

import (
	"slices"
	"testing"

	"github.com/rstored/rstored/nfs"
)

// opStatus is a status that an operation had.
type opStatus struct {
	op uint32
	st nfs.Status
}

// besides are statuses that the text about an operation asks for and the tables of valid
// errors have forgotten.
var besides = map[opStatus]string{
	{OpOpen, nfs.ErrNotSupp}:               "RFC 8881 section 18.16.3, CLAIM_DELEGATE_PREV",
	{OpExchangeID, nfs.ErrPerm}:            "RFC 8881 section 18.35.4, case 9",
	{OpSeek, nfs.ErrNXIO}:                  "RFC 7862 section 15.11.3",
	{OpAllocate, nfs.ErrLocked}:            "RFC 8881 section 9.1.2",
	{OpDeallocate, nfs.ErrLocked}:          "RFC 8881 section 9.1.2",
	{OpClone, nfs.ErrLocked}:               "RFC 8881 section 9.1.2",
	{OpIOAdvise, nfs.ErrLocked}:            "RFC 8881 section 9.1.2",
	{OpListXattrs, nfs.ErrTooSmall}:        "RFC 8276 section 8.4.3.3",
	{OpListXattrs, nfs.ErrBadXDR}:          "RFC 8881 section 15.1.1.1, as it has arguments",
	{OpCopy, nfs.ErrOffloadNoReqs}:         "RFC 7862 section 15.2.2, COPY4res",
	{OpOffloadCancel, nfs.ErrNoFileHandle}: "RFC 7862 section 15.8.1, CURRENT_FH",
	{OpOffloadStatus, nfs.ErrNoFileHandle}: "RFC 7862 section 15.9.1, CURRENT_FH",
	{OpCopyNotify, nfs.ErrNotSupp}:         "RFC 7862 section 13, OPTIONAL",
	{OpSetXattr, nfs.ErrNotSupp}:           "RFC 8276 section 8.4, OPTIONAL",
	// A symlink in the place of a directory: the tables have SYMLINK for LOOKUP, LOOKUPP and OPEN, and
	// in 4.1 for LINK. Its definition makes no such difference (RFC 8881 section 15.1.2.8), nor does
	// the Linux server in any minor version.
	{OpCreate, nfs.ErrSymlink}:      "the Linux server",
	{OpRemove, nfs.ErrSymlink}:      "the Linux server",
	{OpRename, nfs.ErrSymlink}:      "the Linux server",
	{OpReadDir, nfs.ErrSymlink}:     "the Linux server",
	{OpLink, nfs.ErrSymlink}:        "the Linux server",
	{OpRemoveXattr, nfs.ErrNotSupp}: "RFC 8276 section 8.4, OPTIONAL",
}

// anywhere are those of every operation in a session: the text about sessions makes no
// exceptions, and the tables have gaps.
var anywhere = map[nfs.Status]string{
	nfs.ErrOpNotInSession:   "RFC 8881 section 2.10.6",
	nfs.ErrRetryUncachedRep: "RFC 8881 section 2.10.6.1.3",
	nfs.ErrRepTooBig:        "RFC 8881 section 2.10.6.4",
	nfs.ErrRepTooBigToCache: "RFC 8881 section 2.10.6.4",
}

// valid reports whether an operation of a minor version may return a status.
func valid(minor, op uint32, st nfs.Status) bool {
	if op >= numOps || table[op].name == "" || minor < uint32(table[op].minor) {
		op = OpIllegal
	}
	if st == nfs.OK {
		return op != OpIllegal
	}
	list := errorsOf41
	if minor == 0 {
		list = errorsOf40
	}
	if slices.Contains(list[op], st) {
		return true
	}
	if minor == 0 && st == nfs.ErrResource {
		return true // a compound may be too long at any of its operations
	}
	return besides[opStatus{op, st}] != "" || minor > 0 && anywhere[st] != ""
}

// see is told of every operation that the rig's server executes: no test, and no fuzzer,
// is to see a status that the operation must not have.
func (r *rig) see(minor, op uint32, st nfs.Status) {
	if !valid(minor, op, st) {
		r.t.Errorf("operation %d of version 4.%d returns %v, which is none of its errors", op, minor, st)
	}
	if op >= numOps || table[op].name == "" || minor < uint32(table[op].minor) {
		op = OpIllegal
	}
	r.seenMu.Lock()
	defer r.seenMu.Unlock()
	if r.seen == nil {
		r.seen = make(map[opStatus]bool)
	}
	r.seen[opStatus{op, st}] = true
}

// TestErrorTables: every operation has its row.
func TestErrorTables(t *testing.T) {
	for op := uint32(OpAccess); op < numOps; op++ {
		if len(errorsOf41[op]) == 0 || op < OpBackchannelCtl && len(errorsOf40[op]) == 0 {
			t.Errorf("no errors of operation %d", op)
		}
	}
}
