package nfs4

import (
	"time"
	"unicode/utf8"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// minorMax is the highest minor version that is served.
const minorMax = 2

// compound is a COMPOUND being served, by one goroutine. Server.pool reuses the compound and its
// buffers, so nothing may refer to it after Server.compound has returned. What outlives the call,
// such as an asynchronous COPY, copies what it needs.
type compound struct {
	s        *Server
	c        *rpc.Call
	mayBlock bool // on a worker; false on a transport's loop, which must not wait
	now      time.Time

	minor, count, index uint32
	op                  uint32      // the operation being executed
	args                xdr.Decoder // at the beginning of its arguments
	size                uint32      // of the call in bytes
	base                int         // where the reply's results begin
	digest              uint64      // tells this request from another in its slot

	// The current and the saved file handle, each with its stateid (RFC 8881 section 16.2.3.1).
	cur, saved     object
	curID, savedID state.Stateid

	cred   blockstore.Cred // of the caller in the last export that who was called for
	credOf *nfs.ClientRule // the rule by which cred was made

	// client is nil until SEQUENCE, and in version 4.0 until an operation names its client.
	client    *state.Client
	use       state.Use // of the session's slot
	executing bool      // use must end: by finish, or by Cancel if nothing was done
	cacheThis bool      // sa_cachethis
	limit     int       // of the whole reply in bytes
	replayed  bool      // the reply came from the slot's cache
	uncached  bool      // the call is a retry whose reply the slot did not cache
	again     bool      // the compound has to begin again on a worker
	later     bool      // with again: after the time that was given to Call.Defer

	cleaning   bool        // see cleansUp
	noticedAs  bool        // cred is that of another client for this operation; see noticed
	keepResult bool        // the result of the operation stays in the reply although it failed
	inChange   []lock.File // files of which no delegation is granted until the operation ends
	turn       *state.Turn // of the operation's owner, in version 4.0
	noted      bool        // the compound has used the journal
	attempt    attempt     // for this operation
	changes    bool        // an operation that is not idempotent has begun
	weight     uint8       // of the operation in CallMeta; see weights

	sub      subject    // see compound.subject
	cacheBuf []byte     // buffer for the cached reply, reused
	last     nfs.Parsed // the file handle of the call before
}

// compound serves a COMPOUND (RFC 8881 section 16.2, RFC 7530 section 15.2). On a transport's loop
// it serves only what quick admits. A READ asks the store not to wait there. If it has to wait,
// Cancel frees the slot, and the whole compound begins again on a worker: SEQUENCE and PUTFH have
// changed nothing. At the end the compound drops its pointers, so that the pool retains no call, no
// client and no store.
func (s *Server) compound(c *rpc.Call, mayBlock bool) rpc.Status {
	if !mayBlock && !quick(c.Args) {
		return rpc.Again
	}
	k := s.pool.Get().(*compound)
	k.c, k.mayBlock, k.now = c, mayBlock, s.cfg.Now()
	st := k.serve()
	if st == rpc.Garbage {
		s.cfg.Counters.Garbage.Add(1)
	}
	c.Meta.Store += time.Duration(k.cred.Spent)
	if k.cur.x != nil {
		c.Meta.Export = k.cur.x.ID
	}
	*k = compound{
		s: s, cred: blockstore.Cred{Groups: k.cred.Groups[:0]}, cacheBuf: k.cacheBuf, inChange: k.inChange[:0],
		last: k.last,
	}
	s.pool.Put(k)
	return st
}

// quick reports whether a loop may begin the compound: SEQUENCE alone, or PUTFH and READ, after
// SEQUENCE in a session. It only looks at the arguments, which may be anything. If the count is 0
// although a SEQUENCE follows, n wraps around and the compound is not quick.
func quick(d xdr.Decoder) bool {
	d.Opaque(tagMax)
	minor, n := d.Uint32(), d.Uint32()
	if minor > 0 {
		if d.Uint32() != OpSequence {
			return false
		}
		d.Skip(sequenceLen)
		n--
	}
	switch {
	case n == 0 && minor > 0:
	case n != 2:
		return false
	default:
		if d.Uint32() != OpPutFH {
			return false
		}
		d.Opaque(FHMax)
		if d.Uint32() != OpRead {
			return false
		}
	}
	return d.Err() == nil
}

// serve decodes the arguments and encodes the results (RFC 8881 sections 16.2.1 and 16.2.2):
//
//	tag<> | minorversion | count | (op, arguments) ...
//	status | tag<> | count | (op, status, result) ...
//
// status is that of the last operation in the reply. The count of the arguments is not checked
// against their length: the first operation that is missing fails to decode, and ends the loop. A
// header that does not decode is GARBAGE_ARGS, because the reply has to repeat the tag. An
// unknown minor version has no results at all (section 15.1.3.2).
func (k *compound) serve() rpc.Status {
	d, e := &k.c.Args, &k.c.Res
	k.size = uint32(d.Offset() + d.Remaining())
	whole := *d
	k.base = len(e.B)
	tag := d.Opaque(tagMax)
	k.minor, k.count = d.Uint32(), d.Uint32()
	if d.Err() != nil {
		return rpc.Garbage
	}
	e.Uint32(0) // the status, known at the end
	e.Opaque(tag)
	countAt := len(e.B)
	e.Uint32(0)
	var st nfs.Status
	switch {
	case !k.s.servesMinor(k.minor):
		st = nfs.ErrMinorVersMismatch
	case !utf8.Valid(tag):
		st = nfs.ErrInval
	default:
		if k.minor > 0 {
			k.digest = digest(whole, &k.c.Cred)
		}
		k.limit = messageMax // of a session's, if there is one
		st = k.run()
	}
	if k.again {
		if k.executing {
			k.use.Cancel()
		}
		if k.later {
			return rpc.Later
		}
		k.s.toWorkers.Add(1)
		return rpc.Again
	}
	if k.replayed {
		return rpc.Done
	}
	k.c.Meta.Outcome = uint32(st)
	patch(e, k.base, uint32(st))
	patch(e, countAt, k.index)
	if st == nfs.ErrMinorVersMismatch {
		k.unservedMinor()
	}
	if k.executing {
		k.finish()
	}
	if k.mayBlock {
		k.s.state.Sweep(k.now)
	}
	return rpc.Done
}

// run executes the operations up to the first that fails (RFC 8881 section 16.2.3). Those before it
// stay executed: a COMPOUND is no transaction.
func (k *compound) run() (st nfs.Status) {
	defer func() {
		// A panic ends the call. Slot, turn and files are released: otherwise the client could
		// never use them again.
		if r := recover(); r != nil {
			k.endChanges()
			k.endTurn(nfs.ErrResource, nil)
			if k.executing {
				k.use.Finish(nil)
			}
			panic(r)
		}
	}()
	for k.index < k.count && st == nfs.OK {
		op := k.c.Args.Uint32()
		if st = k.step(op); k.again || k.replayed {
			return st
		}
		k.index++
		k.s.cfg.Counters.Status(st)
		if k.s.observe != nil {
			k.s.observe(k.minor, op, st)
		}
	}
	return st
}

// step executes one operation and appends its nfs_resop4: number, status, result. If the arguments
// of the previous operation did not decode, the place of this one is not known. Its reply then has
// the number of OP_ILLEGAL and the status BADXDR. An unknown number is also answered as OP_ILLEGAL
// (RFC 8881 section 18.52).
//
// The result must fit into the session's limit. admit has refused a changing operation whose
// longest result might not fit. For the others, step measures the result that was appended, and
// cuts it off if it is too long.
func (k *compound) step(op uint32) nfs.Status {
	d, e := &k.c.Args, &k.c.Res
	if d.Err() != nil {
		e.Uint32(OpIllegal)
		e.Uint32(uint32(nfs.ErrBadXDR))
		return nfs.ErrBadXDR
	}
	var row *operation
	if op < numOps && table[op].name != "" && k.minor >= uint32(table[op].minor) {
		row = &table[op]
		k.s.ops[op].Add(1)
		if w := weights[op]; w > k.weight {
			k.weight, k.c.Meta.Op = w, op
		}
		e.Uint32(op)
	} else {
		k.s.illegal.Add(1)
		e.Uint32(OpIllegal)
	}
	e.Uint32(0)
	at := len(e.B)
	k.keepResult, k.op, k.args = false, op, *d
	st := k.admit(row, op)
	if st == nfs.OK {
		st = k.minorStatus(row.do(k))
		k.endOp()
		if k.again || k.replayed {
			return st
		}
	}
	if st == nfs.OK || k.keepResult {
		if over := k.tooBig(0); over != nfs.OK {
			k.keepResult, st = false, over
			if op == OpSequence {
				k.use.Cancel()
				k.executing = false
			}
		}
	}
	if st != nfs.OK && !k.keepResult {
		e.Truncate(at)
		if op == OpSetAttr {
			e.Uint32(0) // its result has a Bitmap whatever the status
		}
	}
	patch(e, at-4, uint32(st))
	k.endTurn(st, e.B[at:])
	return st
}

// admit decides whether an operation may be executed where it stands (RFC 8881 sections 2.10.6.4
// and 18.46.3). The first check that fails decides which of several errors a client sees:
//
//	behind a SEQUENCE whose reply was not cached     RETRY_UNCACHED_REP
//	unknown number                                   OP_ILLEGAL
//	4.0: operation number opsMax or later            RESOURCE
//	4.1: first, and needs a session                  OP_NOT_IN_SESSION
//	     first, needs none, but is not alone         NOT_ONLY_OP
//	     SEQUENCE that is not first                  SEQUENCE_POS
//	not implemented, or of version 4.0 in a session  NOTSUPP
//	no current file handle                           NOFILEHANDLE
//	export denied to the client, or cleansUp         ACCESS
//	file of another server, but for a COPY           STALE
//	export that is on other servers                  MOVED
//	no saved file handle                             NOFILEHANDLE; RESTOREFH of 4.0: RESTOREFH
//	a change whose result would not fit              see tooBig
func (k *compound) admit(row *operation, op uint32) nfs.Status {
	switch {
	case k.uncached:
		return nfs.ErrRetryUncachedRep
	case row == nil:
		return nfs.ErrOpIllegal
	case k.minor == 0:
		if k.index >= opsMax {
			return nfs.ErrResource
		}
	case k.index == 0 && op != OpSequence && !row.is(alone):
		return nfs.ErrOpNotInSession
	case k.index == 0 && op != OpSequence && k.count > 1:
		return nfs.ErrNotOnlyOp
	case k.index > 0 && op == OpSequence:
		return nfs.ErrSequencePos
	case k.index > 0 && op == OpBindConnToSession:
		return nfs.ErrNotOnlyOp
	}
	switch {
	case row.do == nil, row.is(minor0) && k.minor > 0:
		return nfs.ErrNotSupp
	case row.is(needsHandle) && !k.cur.set():
		return nfs.ErrNoFileHandle
	case k.cleaning && !allowedIfDenied(op) && op != OpGetAttr,
		k.cur.rule == &deniedRule && !allowedIfDenied(op),
		k.saved.rule == &deniedRule && row.is(needsSaved) && op != OpRestoreFH:
		return nfs.ErrAcces
	case k.foreign(row, op):
		return nfs.ErrStale
	case k.cur.moved() && !allowedIfMoved(op), k.saved.moved() && row.is(needsSaved) && op != OpRestoreFH:
		return nfs.ErrMoved
	case op == OpRestoreFH && k.minor == 0 && !k.saved.set():
		return nfs.ErrRestoreFH
	case row.is(needsSaved) && !k.saved.set():
		return nfs.ErrNoFileHandle
	}
	if row.is(changing) {
		k.changes = true
		if st := k.tooBig(row.result); st != nfs.OK {
			return st
		}
	}
	return nfs.OK
}

// tooBig returns the status if the reply with n more bytes is longer than the session's
// ca_maxresponsesize, or than ca_maxresponsesize_cached if it is to be cached (RFC 8881 section
// 2.10.6.4); else OK. In version 4.0 the bound is messageMax, the server's own.
func (k *compound) tooBig(n int) nfs.Status {
	n += k.c.Res.Len()
	switch {
	case k.minor == 0 && n > k.limit:
		return nfs.ErrResource
	case k.minor == 0, k.client == nil:
		return nfs.OK
	case n > int(k.use.Session.Fore.MaxResponse):
		return nfs.ErrRepTooBig
	case n > k.limit:
		return nfs.ErrRepTooBigToCache
	}
	return nfs.OK
}

// room returns how many bytes the reply may still grow. READ and READDIR shorten their results to
// it.
func (k *compound) room() int { return max(k.limit-k.c.Res.Len(), 0) }

// bad reports whether the arguments did not decode.
func (k *compound) bad() bool { return k.c.Args.Err() != nil }

// setCurrent makes o the current file handle. A new file handle has no current stateid yet (RFC
// 8881 section 16.2.3.1.2).
func (k *compound) setCurrent(o object) {
	k.cur, k.curID = o, state.Anonymous
}

// stateid returns the stateid that an argument stands for: the special one with other zero and
// seqid one is the current stateid (RFC 8881 section 8.2.3). Version 4.0 has none.
func (k *compound) stateid(id state.Stateid) state.Stateid {
	if id == state.Current && k.minor > 0 {
		return k.curID
	}
	return id
}

// minorStatus translates the status of a handler, which is one of version 4.1, for version 4.0 (RFC
// 7530 section 13.2). Version 4.0 has no WRONG_TYPE, and no SYMLINK for LOCK and LOCKT: both become
// INVAL.
func (k *compound) minorStatus(st nfs.Status) nfs.Status {
	if k.minor == 0 && (st == nfs.ErrWrongType || st == nfs.ErrSymlink && (k.op == OpLock || k.op == OpLockT)) {
		return nfs.ErrInval
	}
	return st
}

// badState translates a status of package state for the minor version. Only version 4.0 has
// STALE_STATEID (RFC 8881 section 15.1.16.5): in a session a stateid of an earlier start of the
// server is BAD_STATEID.
func (k *compound) badState(st nfs.Status) nfs.Status {
	if st == nfs.ErrStaleStateID && k.minor > 0 {
		return nfs.ErrBadStateID
	}
	return st
}
