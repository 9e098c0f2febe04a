package rpcrdma

import (
	"context"
	"net/netip"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/rquota"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// otherCalls are calls of every procedure that is served beside NFS on its connections: of NLM, of
// the status monitor and of rquota. Messages of NLM (_MSG) have an empty reply, and so do answers
// (_RES).
func otherCalls(made []byte) (steps []step) {
	cookie := func(e *xdr.Encoder) { e.Opaque(nil) }
	at := func(e *xdr.Encoder) {
		nlm.EncodeLock(e, &nlm.Lock{Caller: "client", Handle: made, Owner: []byte("owner of a lock"), SVID: 7, Length: 10})
	}
	words := func(w ...uint32) func(e *xdr.Encoder) { return func(e *xdr.Encoder) { e.Uint32s(w...) } }
	add := func(name string, prog, vers, proc uint32, s step, parts ...func(e *xdr.Encoder)) {
		var e xdr.Encoder
		for _, f := range parts {
			f(&e)
		}
		s.name, s.prog, s.vers, s.proc, s.head = name, prog, vers, proc, e.B
		steps = append(steps, s)
	}
	lm := func(name string, proc uint32, parts ...func(e *xdr.Encoder)) {
		empty := proc == nlm.ProcNull || proc >= nlm.ProcTestMsg && proc <= nlm.ProcGrantedRes || proc == nlm.ProcFreeAll
		add(name, nlm.Program, nlm.Version, proc, step{cookie: !empty}, parts...)
	}
	lm("NLM NULL", nlm.ProcNull)
	lm("TEST", nlm.ProcTest, cookie, words(1), at)
	lm("LOCK", nlm.ProcLock, cookie, words(0, 1), at, words(0, 1))
	lm("UNLOCK", nlm.ProcUnlock, cookie, at)
	lm("NM_LOCK", nlm.ProcNMLock, cookie, words(0, 1), at, words(0, 1))
	lm("CANCEL", nlm.ProcCancel, cookie, words(0, 1), at)
	steps[len(steps)-1].status = uint32(nlm.Denied) // nobody waits
	lm("TEST_MSG", nlm.ProcTestMsg, cookie, words(1), at)
	lm("LOCK_MSG", nlm.ProcLockMsg, cookie, words(0, 1), at, words(0, 1))
	lm("CANCEL_MSG", nlm.ProcCancelMsg, cookie, words(0, 1), at)
	lm("UNLOCK_MSG", nlm.ProcUnlockMsg, cookie, at)
	for proc := uint32(nlm.ProcTestRes); proc <= nlm.ProcGrantedRes; proc++ {
		lm("_RES "+string(rune('0'+proc-nlm.ProcTestRes)), proc, cookie, words(0))
	}
	share := func(e *xdr.Encoder) {
		e.String("client")
		e.Opaque(made)
		e.String("owner of a reservation")
		e.Uint32s(0, 1, 0) // deny none, read; not reclaimed
	}
	lm("SHARE", nlm.ProcShare, cookie, share)
	lm("UNSHARE", nlm.ProcUnshare, cookie, share)
	name := func(e *xdr.Encoder) { e.String("client") }
	lm("FREE_ALL", nlm.ProcFreeAll, name, words(1))
	monitor := func(name string, proc, status uint32, parts ...func(e *xdr.Encoder)) {
		add(name, nlm.StatusProgram, nlm.StatusVersion, proc, step{status: status}, parts...)
	}
	monitor("status NULL", nlm.StatusNull, 0)
	monitor("STAT", nlm.StatusStat, 1, name)
	monitor("MON", nlm.StatusMon, 1, name, name, words(0, 0, 0, 0, 0, 0, 0))
	monitor("UNMON", nlm.StatusUnmon, monitorState, name, name, words(0, 0, 0))
	monitor("NOTIFY", nlm.StatusNotify, 0, name, words(1))
	path := func(e *xdr.Encoder) { e.String("/data") }
	for vers := uint32(rquota.Version1); vers <= rquota.Version2; vers++ {
		for proc := uint32(rquota.ProcNull); proc <= rquota.ProcSetActive; proc++ {
			s := step{status: uint32(rquota.NoQuota)}
			switch proc {
			case rquota.ProcNull:
				s.status = 0
			case rquota.ProcSet, rquota.ProcSetActive:
				s.status = uint32(rquota.Perm)
			}
			name := "rquota " + string(rune('0'+vers)) + " " + string(rune('0'+proc))
			id := words(0)
			if vers == rquota.Version2 {
				id = words(rquota.KindUser, 0)
			}
			add(name, rquota.Program, vers, proc, s, path, id)
		}
	}
	return steps
}

// monitorState is the state number of the status monitor.
const monitorState = 5

// otherPrograms are those of otherCalls, over an export table.
func otherPrograms(cfg nfs.Config, shares nfs.Shares) ([]rpc.Program, *nlm.Server) {
	lm := nlm.New(nlm.Config{
		Exports: cfg.Exports, Codec: cfg.Codec, Locks: lock.New(0), Shares: shares, State: monitorState,
		Call: func(context.Context, netip.Addr, uint32, uint32, uint32, func(*xdr.Encoder), func(*xdr.Decoder) error) error {
			return nil
		},
	})
	return append(lm.Programs(), rquota.Programs(cfg, time.Now)...), lm
}
