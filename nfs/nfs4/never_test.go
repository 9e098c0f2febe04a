package nfs4

import (
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// never are errors that no operation has here, and why.
var never = map[nfs.Status]string{
	nfs.ErrDeadSession:    "a session is there or it is not: BADSESSION",
	nfs.ErrServerFault:    "a fault of the server is answered by RPC",
	nfs.ErrMoved:          "TestMoved has every operation",
	nfs.ErrFHExpired:      "file handles are persistent",
	nfs.ErrWrongCred:      "TestStateProtection",
	nfs.ErrWrongSec:       "the rules of exports know no flavors",
	nfs.ErrAdminRevoked:   "nobody takes state away by hand",
	nfs.ErrExpired:        "who has lost his lease has lost his session: BADSESSION",
	nfs.ErrUnsafeCompound: "nothing is unsafe that POSIX has",
	nfs.ErrFileOpen:       "an open file may lose its name",
	nfs.ErrLockNotSupp:    "locks are there in all stores",
	nfs.ErrBadRange:       "ranges have 64 bits",
	nfs.ErrLockRange:      "locks are split and joined",
	nfs.ErrReclaimBad:     "the journal knows clients, not files",
	nfs.ErrConnNotBound:   "TestStateProtection",
	nfs.ErrHashAlgUnsupp:  "the cipher is refused first",
	errBackChanBusy:       "a session ends whatever is under way",
	nfs.ErrCBPathDown:     "a session ends whatever is under way",
	errBadSessionDigest:   "there is no SSV",
	errDelegAlreadyWanted: "wants are not remembered",
	errUnknownLayouttype:  "there is no pNFS",
	errPnfsIoHole:         "there is no pNFS",
	errPnfsNoLayout:       "there is no pNFS",
	nfs.ErrPartnerNoAuth:  "CB_OFFLOAD has it: a copy from another server is asynchronous",
	nfs.ErrPartnerNotSupp: "the copy is OFFLOAD_DENIED: with this status copy_file_range fails in the Linux client",
	nfs.ErrOffloadDenied:  "TestCopyFromServerRefused",
}

// neverOf are errors that an operation does not have here, and why.
var neverOf = map[opStatus]string{}

func init() {
	of := func(st nfs.Status, why string, ops ...uint32) {
		for _, op := range ops {
			neverOf[opStatus{op, st}] = why
		}
	}
	for op := range errorsOf41 {
		if op != OpSequence {
			of(nfs.ErrTooManyOps, "SEQUENCE says so", op)
			of(nfs.ErrReqTooBig, "SEQUENCE says so", op)
		}
	}
	of(nfs.ErrJukebox, "it asks nobody", OpBackchannelCtl, OpBindConnToSession, OpClose, OpDelegReturn, OpDestroyClientID,
		OpDestroySession,
		OpFreeStateID, OpLockU, OpOpenDowngrade, OpPutFH, OpPutPubFH, OpPutRootFH, OpReclaimComplete, OpSetSSV, OpTestStateID)
	const copies = "a copy that has ended has no stateid any more"
	of(nfs.ErrCompleteAlready, copies, OpOffloadCancel, OpOffloadStatus)
	of(nfs.ErrOldStateID, "the seqid of a copy does not change", OpOffloadCancel, OpOffloadStatus)
	of(nfs.ErrGrace, "copies are not reclaimed", OpOffloadCancel, OpOffloadStatus)
	of(nfs.ErrJukebox, "it asks nobody", OpOffloadCancel, OpOffloadStatus)
	of(nfs.ErrNotSupp, "copies go on after their replies", OpOffloadCancel, OpOffloadStatus)
	of(errDirdelegUnavail, "GDD4_UNAVAIL says so", OpGetDirDelegation)
	of(nfs.ErrGrace, "GDD4_UNAVAIL says so", OpGetDirDelegation)
	of(errRecallconflict, "WND4_CONTENTION says so", OpWantDelegation)
	of(nfs.ErrReclaimConflict, "WND4_CONTENTION says so", OpWantDelegation)
	of(nfs.ErrStale, "it does not look at the file", OpClose, OpDelegReturn, OpLockU, OpOpenDowngrade, OpGetFH, OpSaveFH,
		OpRestoreFH, OpReclaimComplete)
	of(nfs.ErrDelegRevoked, "the file is a directory, or to be written without a delegation", OpOpen)
	of(nfs.ErrOpenMode, "what is open for writing may be read", OpRead, OpReadPlus, OpSeek,
		OpCopyNotify)
	of(nfs.ErrGrace, "a special stateid is refused", OpCopyNotify)
	of(nfs.ErrLocked, "a special stateid is refused", OpCopyNotify)
	of(nfs.ErrNoEnt, "it looks for nothing", OpBackchannelCtl, OpCreateSession)
	of(nfs.ErrNoSpc, "sessions take no space that runs out", OpCreateSession)
	of(nfs.ErrLocksHeld, "the locks go with the open", OpClose)
	of(nfs.ErrNotSupp, "delegations are there", OpDelegReturn)
	of(nfs.ErrInval, "a stateid is good or it is not", OpDelegReturn)
	of(nfs.ErrInval, "its type is asked for first", OpReadLink)
	of(nfs.ErrInval, "its bool is good or it is not", OpReclaimComplete)
	of(nfs.ErrWrongType, "every type has one", OpGetXattr, OpSetXattr, OpListXattrs, OpRemoveXattr)
	of(nfs.ErrWrongType, "every type has attributes", OpGetAttr, OpVerify, OpNVerify)
	of(nfs.ErrWrongType, "INVAL says so", OpSetAttr)
	of(nfs.ErrWrongType, "every type can be linked that is not a directory", OpLink)
	of(nfs.ErrWrongType, "SYMLINK says so, which the Linux client knows", OpOpen)
	of(nfs.ErrWrongType, "its file handle is not looked at", OpReclaimComplete)
	of(nfs.ErrGrace, "it waits for no reclaim", OpGetAttr, OpVerify, OpNVerify, OpLink)
	of(nfs.ErrBadChar, "owners that are no numbers are BADOWNER", OpSetAttr)
	of(nfs.ErrBadChar, "values are compared as they are", OpVerify, OpNVerify)
	of(nfs.ErrBadChar, "an owner is bytes", OpExchangeID)
	of(nfs.ErrAcces, "whoever has the lock may give it up", OpLockU)
	of(nfs.ErrROFS, "what is open may be open for less", OpOpenDowngrade)
	of(nfs.ErrLocked, "it has no stateid", OpRemoveXattr)
	of(nfs.ErrOldStateID, "it has no stateid", OpRemoveXattr)
	of(nfs.ErrOpenMode, "it has no stateid", OpRemoveXattr)
	of(nfs.ErrBadXDR, "its arguments are not looked at", OpSetSSV)
	of(nfs.ErrStaleClientID, "no session is without its client", OpDestroySession)
	of(nfs.ErrRetryUncachedRep, "it is never behind a SEQUENCE that is retried", OpBindConnToSession, OpCreateSession,
		OpDestroyClientID, OpDestroySession, OpExchangeID)
	of(nfs.ErrRepTooBig, "its result is short, and first", OpBindConnToSession, OpCreateSession, OpDestroyClientID,
		OpDestroySession, OpExchangeID, OpSequence)
	of(nfs.ErrRepTooBigToCache, "its result is short, and first", OpBindConnToSession, OpCreateSession, OpDestroyClientID,
		OpDestroySession, OpExchangeID, OpSequence)
	of(nfs.ErrRepTooBig, "it makes do with the room there is", OpReadDir, OpListXattrs)
	of(nfs.ErrRepTooBigToCache, "it makes do with the room there is", OpReadDir, OpListXattrs)
	of(nfs.ErrRepTooBig, "it never succeeds", OpSetSSV)
	of(nfs.ErrRepTooBigToCache, "it never succeeds", OpSetSSV)
	of(nfs.ErrNotSame, "BAD_COOKIE says so", OpReadDir)
}

// special makes what is not like anything else.
func special(t *testing.T, seen map[opStatus]string) {
	for what, f := range map[string]func(w *world, x *sess){
		"SEQUENCE": func(w *world, x *sess) {
			w.compound(2, op(OpSequence, state.SessionID{1}, uint32(1), uint32(0), uint32(0), false)).fails(OpSequence,
				nfs.ErrBadSession)
			w.compound(2, op(OpSequence, x.id, uint32(1), uint32(99), uint32(99), false)).fails(OpSequence, nfs.ErrBadSlot)
			w.compound(2, op(OpSequence, x.id, uint32(1), uint32(1), uint32(99), false)).fails(OpSequence, nfs.ErrBadHighSlot)
			w.compound(2, op(OpSequence, x.id, uint32(1), uint32(1), uint32(1), uint32(2))).fails(OpSequence, nfs.ErrBadXDR)
			w.compound(2, op(OpSequence, x.id, uint32(9), uint32(1), uint32(1), false)).fails(OpSequence, nfs.ErrSeqMisordered)
			x.do(x.sequence(1, 0)).fails(OpSequence, nfs.ErrSequencePos)
			w.compound(2, x.sequence(x.seq, 0), op(OpPutRootFH)).fails(OpSequence, nfs.ErrSeqFalseRetry)
			many := make([]args, 17)
			for i := range many {
				many[i] = op(OpPutRootFH)
			}
			w.compound(2, append([]args{x.sequence(x.seq+1, 0)}, many...)...).fails(OpSequence, nfs.ErrTooManyOps)
			small := w.sessionOf(2, "small", channelArgs(1024, 4096, 0, 8, 2))
			w.compound(2, small.sequence(small.seq+1, 0), op(OpLookup, strings.Repeat("n", 1500))).fails(OpSequence,
				nfs.ErrReqTooBig)
			u, _, st := w.s.state.Sequence(w.now,
				&state.Request{Session: x.id, From: w.from(), Sequence: 1, Slot: 3, Minor: 2, Digest: 5})
			if st != nfs.OK {
				t.Fatal(st)
			}
			w.compound(2, x.sequence(1, 3)).fails(OpSequence, nfs.ErrJukebox) // the slot is busy with another request
			u.Cancel()
			// The SEQUENCE of a retry is fine; what follows it is not.
			w.see(2, OpSequence, nfs.ErrRetryUncachedRep)
		},
		"LOCK": func(w *world, x *sess) {
			f, g, y := x.file("f"), x.file("g"), w.session(2, "other")
			xf, xg, yf, yg := w.locker(x, f, "x"), w.locker(x, g, "x"), w.locker(y, f, "y"), w.locker(y, g, "y")
			xf.wants(LockWrite, nfs.OK)
			yg.wants(LockWrite, nfs.OK)
			xg.wants(lockWriteWait, nfs.ErrDenied)
			yf.wants(lockWriteWait, nfs.ErrDeadlock)
		},
		"WANT_DELEGATION": func(w *world, x *sess) {
			for _, c := range []struct {
				want, claim uint32
				st          nfs.Status
			}{{0, ClaimFH, nfs.ErrInval}, {wantRead, claimDelegPrevFH, nfs.ErrNotSupp}} {
				x.do(op(OpPutFH, w.fhs["file"]), op(OpWantDelegation, c.want, c.claim)).ok(OpPutFH).fails(OpWantDelegation, c.st)
			}
			x.do(op(OpPutFH, w.fhs["file"]), op(OpWantDelegation, wantRead, ClaimPrevious,
				delegRead)).ok(OpPutFH).fails(OpWantDelegation, nfs.ErrNoGrace)
		},
		"EXCHANGE_ID": func(w *world, _ *sess) {
			for _, c := range []struct {
				a    args
				want nfs.Status
			}{
				{op(OpExchangeID, [8]byte{}, "x", uint32(0), uint32(9)), nfs.ErrBadXDR},
				{exchangeArgs("one", 1, 0x80000000), nfs.ErrInval},
				{exchangeArgs("none", 1, exchUpdate), nfs.ErrNoEnt},
				{exchangeArgs("one", 2, exchUpdate), nfs.ErrNotSame},
				{op(OpExchangeID, [8]byte{}, "x", uint32(0), uint32(protectSSV)), nfs.ErrEncrAlgUnsupp},
			} {
				w.compound(2, c.a).fails(OpExchangeID, c.want)
			}
			w.compound(2, exchangeArgs("x", 1, 0), op(OpPutRootFH)).fails(OpExchangeID, nfs.ErrNotOnlyOp)
			w.uid = 5
			w.compound(2, exchangeArgs("one", 1, 0)).fails(OpExchangeID, nfs.ErrClientIDInUse)
			w.uid = 0
			full := state.New(state.Config{Boot: 7, Clients: 1})
			w.s.state, full = full, w.s.state
			w.compound(2, exchangeArgs("a", 1, 0)).ok(OpExchangeID)
			w.compound(2, exchangeArgs("b", 1, 0)).fails(OpExchangeID, nfs.ErrJukebox)
			w.s.state = full
		},
		"CREATE_SESSION": func(w *world, _ *sess) {
			create := func(id uint64, seq, flags uint32, fore args, rest ...any) args {
				return op(OpCreateSession, append([]any{id, seq, flags, fore, channelArgs(0, 0, 0, 0, 0), uint32(0)}, rest...)...)
			}
			good := channelArgs(4096, 4096, 0, 8, 1)
			id, seq, _ := w.exchange("new", 1)
			w.compound(2, create(id, seq, 0, good, uint32(1), uint32(77))).fails(OpCreateSession, nfs.ErrBadXDR)
			w.compound(2, create(id, seq, 8, good, uint32(0))).fails(OpCreateSession, nfs.ErrInval)
			w.compound(2, create(id, seq, 0, channelArgs(9, 9, 0, 1, 1), uint32(0))).fails(OpCreateSession, nfs.ErrTooSmall)
			w.compound(2, create(id, seq+5, 0, good, uint32(0))).fails(OpCreateSession, nfs.ErrSeqMisordered)
			w.compound(2, create(id+99, seq, 0, good, uint32(0))).fails(OpCreateSession, nfs.ErrStaleClientID)
			w.compound(2, create(id, seq, 0, good, uint32(0)), op(OpPutRootFH)).fails(OpCreateSession, nfs.ErrNotOnlyOp)
			w.uid = 5
			w.compound(2, create(id, seq, 0, good, uint32(0))).fails(OpCreateSession, nfs.ErrClientIDInUse)
			w.uid = 0
			for range 64 {
				w.compound(2, create(id, seq, 0, good, uint32(0))).ok(OpCreateSession)
				seq++
			}
			w.compound(2, create(id, seq, 0, good, uint32(0))).fails(OpCreateSession, nfs.ErrJukebox)
		},
		"sessions": func(w *world, x *sess) {
			w.compound(2, op(OpBindConnToSession, state.SessionID{1}, uint32(1), false)).fails(OpBindConnToSession,
				nfs.ErrBadSession)
			w.compound(2, op(OpBindConnToSession, x.id, uint32(1), uint32(7))).fails(OpBindConnToSession, nfs.ErrBadXDR)
			w.compound(2, op(OpBindConnToSession, x.id, uint32(5), false)).fails(OpBindConnToSession, nfs.ErrInval)
			x.do(op(OpBindConnToSession, x.id, uint32(1), false)).fails(OpBindConnToSession, nfs.ErrNotOnlyOp)
			x.do(op(OpBackchannelCtl, uint32(1), uint32(1), uint32(6), uint32(1), "a", "b")).fails(OpBackchannelCtl,
				nfs.ErrInval)
			w.compound(2, op(OpDestroySession, state.SessionID{1})).fails(OpDestroySession, nfs.ErrBadSession)
			w.compound(2, part(uint32(OpDestroySession), uint32(1))).fails(OpDestroySession, nfs.ErrBadXDR)
			x.do(op(OpDestroySession, x.id), op(OpPutRootFH)).fails(OpDestroySession, nfs.ErrNotOnlyOp)
			w.compound(2, op(OpDestroyClientID, x.client)).fails(OpDestroyClientID, nfs.ErrClientIDBusy)
			w.compound(2, op(OpDestroyClientID, uint64(1))).fails(OpDestroyClientID, nfs.ErrStaleClientID)
			w.compound(2, op(OpDestroyClientID, uint32(1))).fails(OpDestroyClientID, nfs.ErrBadXDR)
			w.compound(2, op(OpDestroyClientID, uint64(1)), op(OpPutRootFH)).fails(OpDestroyClientID, nfs.ErrNotOnlyOp)
			x.do(op(OpReclaimComplete, true)).fails(OpReclaimComplete, nfs.ErrNoFileHandle)
			_, h, err := w.codec.Parse(w.fhs["file"])
			if err != nil {
				t.Fatal(err)
			}
			x.do(op(OpPutFH, w.codec.Append(nil, 99, &h))).fails(OpPutFH, nfs.ErrStale)
			x.do(op(9999)).fails(OpIllegal, nfs.ErrOpIllegal)
			x.do(part()).fails(OpIllegal, nfs.ErrBadXDR)
		},
		"attributes": func(w *world, x *sess) {
			dir, file := op(OpPutFH, w.fhs["dir"]), op(OpPutFH, w.fhs["file"])
			for want, a := range map[nfs.Status]args{
				nfs.ErrAttrNotSupp: attrs(BitmapOf(14), uint32(0)),
				nfs.ErrBadOwner:    attrs(BitmapOf(AttrOwner), "somebody@example.org"),
			} {
				x.do(dir, op(OpCreate, uint32(2), "n", a)).ok(OpPutFH).fails(OpCreate, want)
				x.do(dir, openCreateOp(1, "o", "n", CreateGuarded, a)).ok(OpPutFH).fails(OpOpen, want)
				x.do(file, op(OpSetAttr, state.Anonymous, a)).ok(OpPutFH)
			}
			x.do(dir, op(OpCreate, uint32(1), "n", attrs(Bitmap{}))).ok(OpPutFH).fails(OpCreate, nfs.ErrBadType)
			x.do(file, op(OpVerify, attrs(BitmapOf(14), uint32(0)))).ok(OpPutFH).fails(OpVerify, nfs.ErrAttrNotSupp)
			x.do(file, op(OpNVerify, attrs(BitmapOf(14), uint32(0)))).ok(OpPutFH).fails(OpNVerify, nfs.ErrAttrNotSupp)
			x.do(file, op(OpNVerify, attrs(BitmapOf(AttrSize), uint64(9)))).ok(OpPutFH).fails(OpNVerify, nfs.ErrSame)
			x.do(dir, op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), writeOnly)).ok(OpPutFH).fails(OpReadDir,
				nfs.ErrInval)
			w.faults.Set() // no more
			x.do(file, op(OpSeek, state.Anonymous, uint64(0), uint32(2))).ok(OpPutFH).fails(OpSeek, nfs.ErrUnionNotSupp)
		},
		"opens and locks": func(w *world, x *sess) {
			dir, file := op(OpPutFH, w.fhs["dir"]), op(OpPutFH, w.fhs["file"])
			claim := func(kind uint32, rest ...any) args {
				return op(OpOpen, append([]any{uint32(0), uint32(1), uint32(0), uint64(0), "o", uint32(0), kind}, rest...)...)
			}
			x.do(file, claim(ClaimPrevious, uint32(0))).ok(OpPutFH).fails(OpOpen, nfs.ErrNoGrace)
			x.do(file, claim(claimDelegCurFH, w.ids["of nothing"])).ok(OpPutFH).fails(OpOpen, nfs.ErrBadStateID)
			x.do(file, claim(claimDelegCurFH, w.ids["old"])).ok(OpPutFH).fails(OpOpen, nfs.ErrOldStateID)
			w.y.do(dir, openOp(1, 2, "denier", "file")).ok(OpPutFH).fails(OpOpen, nfs.ErrShareDenied)
			lock := func(id state.Stateid, reclaim bool) args {
				return op(OpLock, LockWrite, reclaim, uint64(100), uint64(1), true, uint32(0), id, uint32(0), uint64(0), "p")
			}
			x.do(file, lock(w.ids["open"], false)).ok(OpPutFH).fails2(OpLock, nfs.ErrDenied, 8+8+4+8+4+8)
			x.do(file, lock(w.ids["open"], true)).ok(OpPutFH).fails(OpLock, nfs.ErrNoGrace)
			x.do(file, op(OpLockT, LockWrite, uint64(100), uint64(1), uint64(0), "p")).ok(OpPutFH).fails2(OpLockT,
				nfs.ErrDenied, 8+8+4+8+4+8)
			x.do(file, op(OpLockU, LockWrite, uint32(0), w.ids["lock"], uint64(1), uint64(0))).ok(OpPutFH).fails(OpLockU,
				nfs.ErrInval)
		},
		"reclaims": func(w *world, _ *sess) {
			// Somebody reclaims what stands against what another one has reclaimed.
			file := op(OpPutFH, w.fhs["file"])
			w.start(8)
			reclaimer := func(owner string) *sess {
				id, seq, _ := w.exchange(owner, 1)
				p := w.compound(2, op(OpCreateSession, id, seq, uint32(0), channelArgs(4096, 4096, 512, 8, 1),
					channelArgs(0, 0, 0, 0, 0), uint32(0), uint32(0))).ok(OpCreateSession)
				return &sess{r: w.rig, minor: 2, client: id, id: DecodeSessionID(p.Decoder)}
			}
			a, b := reclaimer("one"), reclaimer("two")
			open := func(access, deny uint32) args {
				return op(OpOpen, uint32(0), access, deny, uint64(0), "o", uint32(0), uint32(ClaimPrevious), uint32(0))
			}
			lock := func(id state.Stateid) args {
				return op(OpLock, LockWrite, true, uint64(7), uint64(1), true, uint32(0), id, uint32(0), uint64(0), "p")
			}
			aID, _, _ := a.do(file, open(3, 0)).ok(OpPutFH).ok(OpOpen).opened()
			bID, _, _ := b.do(file, open(3, 0)).ok(OpPutFH).ok(OpOpen).opened()
			a.do(file, lock(aID)).ok(OpPutFH).ok(OpLock)
			b.do(file, lock(bID)).ok(OpPutFH).fails(OpLock, nfs.ErrReclaimConflict)
			b.do(file, open(1, 3)).ok(OpPutFH).fails(OpOpen, nfs.ErrReclaimConflict)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			f(w, w.x)
			for k := range w.seen {
				seen[k] = what
			}
		})
	}
}
