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

// compound is a COMPOUND being served, reused from call to call.
type compound struct {
	s        *Server
	c        *rpc.Call
	mayBlock bool
	now      time.Time

	minor, count, index uint32
	op                  uint32      // the operation being executed
	args                xdr.Decoder // at the beginning of its arguments
	size                uint32      // of the call in bytes
	base                int         // where the reply's results begin
	digest              uint64

	cur, saved     object
	curID, savedID state.Stateid // the current stateid and the one saved with the handle

	cred   blockstore.Cred
	credOf *nfs.ClientRule // by which cred was made

	client    *state.Client // nil outside a session, and in version 4.0 before anything is said of one
	use       state.Use
	executing bool // use has to be finished
	inChange  []lock.File
	cacheThis bool
	limit     int         // of the whole reply in bytes
	replayed  bool        // the reply is one that was given before
	uncached  bool        // it was given before, and not kept
	again     bool        // the compound has to begin again where it may wait
	later     bool        // and after its turn has come
	keep      bool        // the result of the operation is the same when it fails
	noted     bool        // once was asked for an operation
	attempt   attempt     // that operation
	changes   bool        // an operation that is not idempotent was begun
	kept      []byte      // memory for the reply as it is kept
	last      nfs.Parsed  // across calls
	turn      *state.Turn // of the operation being executed, in version 4.0
	weight    uint8       // of the operation in the call's notes
}

// compound serves a COMPOUND (RFC 8881 section 16.2). Where it must not wait it
// serves what never does, and READ, which asks the store not to: if that has to wait
// after all, nothing has been done yet that cannot be taken back.
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
	*k = compound{s: s, cred: blockstore.Cred{Groups: k.cred.Groups[:0]}, kept: k.kept, inChange: k.inChange[:0],
		last: k.last}
	s.pool.Put(k)
	return st
}

// quick reports whether a compound is a SEQUENCE, with or without a READ of a file, or, in
// version 4.0, such a READ.
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
		k.s.moved.Add(1)
		return rpc.Again
	}
	if k.replayed {
		return rpc.Done
	}
	k.c.Meta.Outcome = uint32(st)
	patch(e, k.base, uint32(st))
	patch(e, countAt, k.index)
	if st == nfs.ErrMinorVersMismatch {
		k.s.cfg.Counters.Status(st)
	}
	if k.executing {
		k.finish()
	}
	if k.mayBlock {
		k.s.state.Sweep(k.now)
	}
	return rpc.Done
}

// run executes the operations up to the first that fails.
func (k *compound) run() (st nfs.Status) {
	defer func() {
		// A panic on the way ends the call; the slot must not stay taken.
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

// step executes one operation and appends its nfs_resop4.
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
	k.keep, k.op, k.args = false, op, *d
	st := k.admit(row, op)
	if st == nfs.OK {
		st = k.minorStatus(row.do(k))
		k.endChanges()
		if k.again || k.replayed {
			return st
		}
	}
	if st == nfs.OK || k.keep {
		if over := k.tooBig(0); over != nfs.OK {
			k.keep, st = false, over
			if op == OpSequence {
				k.use.Cancel()
				k.executing = false
			}
		}
	}
	if st != nfs.OK && !k.keep {
		e.Truncate(at)
		if op == OpSetAttr {
			e.Uint32(0) // its result has a Bitmap whatever the status
		}
	}
	patch(e, at-4, uint32(st))
	k.endTurn(st, e.B[at:])
	return st
}

// admit decides whether an operation may be executed where it stands.
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
	case k.cur.rule == &nobodysRule && !forNobody(op), k.saved.rule == &nobodysRule && row.is(needsSaved) && op != OpRestoreFH:
		return nfs.ErrAcces
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

// forNobody reports whether an operation is executed with the handle of an export that the
// client may not use any more: one that needs no handle, or gives up what it had.
func forNobody(op uint32) bool {
	switch op {
	case OpClose, OpLockU, OpDelegReturn, OpOpenDowngrade, OpOpenConfirm, OpSaveFH, OpGetFH:
		return true
	}
	return !table[op].is(needsHandle)
}

// tooBig says whether the reply is longer than the session, or version 4.0, allows with n
// more bytes.
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

// room is how many bytes the reply may still grow.
func (k *compound) room() int { return max(k.limit-k.c.Res.Len(), 0) }

// bad reports whether the arguments did not decode.
func (k *compound) bad() bool { return k.c.Args.Err() != nil }

// who is the identity that the caller has in an export.
func (k *compound) who(o *object) *blockstore.Cred {
	if k.credOf != o.rule {
		// Where it must not wait for the groups it is looked up before; see enter.
		o.rule.Identity(&k.c.Cred, k.s.cfg.Groups, true, &k.cred)
		k.credOf = o.rule
	}
	return &k.cred
}

// nobodysRule is that of a client that an export is not for.
var nobodysRule = nfs.ClientRule{RO: true, Squash: nfs.AllSquash, AnonUID: nfs.AnonID, AnonGID: nfs.AnonID}

// enter finds the rule for the client in an export: OK, ErrAcces if there is none, ErrWrongSec if
// its calls are of a wrong flavor or its connection lacks TLS, ErrJukebox if it has to come again.
func (k *compound) enter(x *nfs.Export) (*nfs.ClientRule, nfs.Status) {
	rule, st := x.Admits(&k.c.Peer)
	if st == nfs.ErrAcces {
		k.deny(x.Pseudo, st)
	}
	switch {
	case rule == nil:
		return nil, st
	case !rule.Protects(&k.c.Peer):
		k.s.cfg.Counters.UnprotectedClients.Add(1)
		k.auditDenied(x.Pseudo, nfs.ErrWrongSec)
		return nil, nfs.ErrWrongSec
	case !rule.Flavors.Has(k.c.Cred.Flavor):
		k.auditDenied(x.Pseudo, nfs.ErrWrongSec)
		return nil, nfs.ErrWrongSec
	}
	if k.credOf != rule && rule.ManageGIDs {
		k.credOf = nil
		if !rule.Identity(&k.c.Cred, k.s.cfg.Groups, k.mayBlock, &k.cred) {
			k.again = true
			return nil, nfs.ErrJukebox
		}
		k.credOf = rule
	}
	return rule, nfs.OK
}

// pay counts the compound against what the client may do in an export, once. Who has to wait
// for that begins again when it is his turn, and holds no worker meanwhile.
func (k *compound) pay(x *nfs.Export, rule *nfs.ClientRule) nfs.Status {
	if !x.Limited(rule) || k.c.Paid || k.changes {
		return nfs.OK
	}
	data := int(k.size)
	next := k.c.Args
	if next.Uint32() == OpRead {
		const fixed = 16 + 8 // stateid and offset
		next.Skip(fixed)
		if n := next.Uint32(); next.Err() == nil {
			data += int(min(n, nfs.MaxIO))
		}
	}
	wait, ok := x.Reserve(rule, k.now, k.c.Peer.Addr.Addr(), data)
	if ok {
		k.c.Paid = true
		if wait <= 0 {
			return nfs.OK
		}
		ok = k.c.Defer(wait)
	}
	if !ok {
		k.s.cfg.Counters.ThrottledAway.Add(1)
		return nfs.ErrJukebox
	}
	k.s.cfg.Counters.Throttled.Add(1)
	k.again, k.later = true, true
	return nfs.ErrJukebox
}

// pace counts a compound that begins, behind SEQUENCE, with PUTFH before it is served. Others are
// counted by pay.
func (s *Server) pace(c *rpc.Call, bulk int, take bool) (limit uint32, wait time.Duration, ok bool) {
	d := &c.Args
	size := d.Offset() + d.Remaining() + bulk
	d.Opaque(tagMax)
	minor := d.Uint32()
	d.Uint32()
	op := d.Uint32()
	if minor > 0 && op == OpSequence {
		d.Skip(sequenceLen)
		op = d.Uint32()
	}
	if op != OpPutFH {
		return 0, 0, true
	}
	fh := d.Opaque(FHMax)
	if d.Err() != nil {
		return 0, 0, true
	}
	if d.Uint32() == OpRead {
		const fixed = 16 + 8 // stateid and offset
		d.Skip(fixed)
		if n := d.Uint32(); d.Err() == nil {
			size += int(min(n, nfs.MaxIO))
		}
	}
	limit, wait, ok = s.cfg.Exports.Pace(s.cfg.Codec, c, fh, size, take, s.cfg.Now())
	if take && wait > 0 && ok {
		s.cfg.Counters.Throttled.Add(1)
	}
	return limit, wait, ok
}

// setCurrent makes o the current file handle; there is no stateid for it yet.
func (k *compound) setCurrent(o object) {
	k.cur, k.curID = o, state.Anonymous
}

// stateid is the stateid that an argument stands for.
func (k *compound) stateid(id state.Stateid) state.Stateid {
	if id == state.Current && k.minor > 0 {
		return k.curID
	}
	return id
}

// minorStatus is a handler's status as version 4.0 has it for the operation (RFC 7530 section
// 13.2). A handler returns those of later versions.
func (k *compound) minorStatus(st nfs.Status) nfs.Status {
	if k.minor == 0 && (st == nfs.ErrWrongType || st == nfs.ErrSymlink && (k.op == OpLock || k.op == OpLockT)) {
		return nfs.ErrInval
	}
	return st
}

// badState is a state's status as an operation of this minor version may return it:
// in a session a stateid of an earlier start of the server is just a bad one (RFC
// 8881 section 15.1.5.5).
func (k *compound) badState(st nfs.Status) nfs.Status {
	if st == nfs.ErrStaleStateID && k.minor > 0 {
		return nfs.ErrBadStateID
	}
	return st
}
