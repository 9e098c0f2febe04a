package nlm

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Program is the RPC program number of NLM, and Version is its version for NFS version 3.
const (
	Program = 100021
	Version = 4
)

// Procedures. Each of TEST to GRANTED has three forms: a call with a result (TEST), a call without
// a result (TEST_MSG), and the call in the other direction that answers it (TEST_RES).
const (
	ProcNull       = 0
	ProcTest       = 1
	ProcLock       = 2
	ProcCancel     = 3
	ProcUnlock     = 4
	ProcGranted    = 5
	ProcTestMsg    = 6
	ProcLockMsg    = 7
	ProcCancelMsg  = 8
	ProcUnlockMsg  = 9
	ProcGrantedMsg = 10
	ProcTestRes    = 11
	ProcLockRes    = 12
	ProcCancelRes  = 13
	ProcUnlockRes  = 14
	ProcGrantedRes = 15
	ProcShare      = 20
	ProcUnshare    = 21
	ProcNMLock     = 22
	ProcFreeAll    = 23

	numProcs = 24
)

// Stat is the outcome of a procedure (nlm4_stats).
type Stat uint32

// Outcomes.
const (
	Granted       Stat = 0
	Denied        Stat = 1
	DeniedNoLocks Stat = 2
	Blocked       Stat = 3
	DeniedGrace   Stat = 4
	Deadlock      Stat = 5
	ReadOnly      Stat = 6
	StaleHandle   Stat = 7
	TooBig        Stat = 8
	Failed        Stat = 9
)

// stringMax bounds names and opaque objects in bytes (LM_MAXSTRLEN, SM_MAXSTRLEN).
const stringMax = 1024

// Lock is an nlm4_lock:
//
//	caller_name<> | fh<> | oh<> | svid (4) | l_offset (8) | l_len (8)
type Lock struct {
	Caller string // the name that the client gives itself
	Handle []byte
	Owner  []byte // opaque; with SVID it identifies a process
	SVID   int32  // process number on the client
	Offset uint64
	Length uint64 // 0: to the end of the file, however it grows
}

// EncodeLock appends an nlm4_lock.
func EncodeLock(e *xdr.Encoder, l *Lock) {
	e.String(l.Caller)
	e.Opaque(l.Handle)
	e.Opaque(l.Owner)
	e.Uint32(uint32(l.SVID))
	e.Uint64(l.Offset)
	e.Uint64(l.Length)
}

// DecodeLock reads an nlm4_lock. Its slices alias the decoder's input.
func DecodeLock(d *xdr.Decoder) (l Lock) {
	l.Caller = d.String(stringMax)
	l.Handle = d.Opaque(nfs.HandleMax)
	l.Owner = d.Opaque(stringMax)
	l.SVID = int32(d.Uint32())
	l.Offset, l.Length = d.Uint64(), d.Uint64()
	return l
}

// last returns the last byte of the range. ok is false if the range ends beyond 64 bits.
func (l *Lock) last() (end uint64, ok bool) {
	if l.Length == 0 || l.Offset+l.Length-1 == lock.ToEnd {
		return lock.ToEnd, true
	}
	end = l.Offset + l.Length - 1
	return end, end >= l.Offset
}

// ownerID returns the lock.Owner.ID of a lock; holder is the inverse.
//
//	svid (4, big-endian) | oh
func (l *Lock) ownerID() string {
	return string(append(binary.BigEndian.AppendUint32(nil, uint32(l.SVID)), l.Owner...))
}

// holder returns process number and owner of a lock in the table. A lock of another protocol has
// the process number 0.
func holder(o *lock.Owner) (svid uint32, owner string) {
	addr, _, _ := strings.Cut(o.Client, " ")
	if _, err := netip.ParseAddr(addr); err != nil || len(o.ID) < 4 {
		return 0, o.ID[:min(len(o.ID), stringMax)]
	}
	return binary.BigEndian.Uint32([]byte(o.ID)), o.ID[4:]
}

// encodeHolder appends an nlm4_holder:
//
//	exclusive | svid | oh<> | l_offset (8) | l_len (8)
func encodeHolder(e *xdr.Encoder, h *lock.Lock) {
	svid, owner := holder(&h.Owner)
	e.Bool(h.Exclusive)
	e.Uint32(svid)
	e.String(owner)
	e.Uint64(h.Start)
	if h.End == lock.ToEnd {
		e.Uint64(0)
	} else {
		e.Uint64(h.End - h.Start + 1)
	}
}

// StatusProgram is the RPC program number of the status monitor, and StatusVersion is its version.
const (
	StatusProgram = 100024
	StatusVersion = 1
)

// Procedures of the status monitor.
const (
	StatusNull   = 0
	StatusStat   = 1
	StatusMon    = 2
	StatusUnmon  = 3
	StatusNotify = 6

	numStatusProcs = 7
)
