package nfs4

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The identity of a caller is decided in three steps, for each export that a compound enters:
//
//	connection   Admits: address, port, transport, partition   no rule: ACCESS
//	             Protects: TLS                                  WRONGSEC
//	call         Flavors: AUTH_NONE, AUTH_SYS                   WRONGSEC
//	user         Identity: squashing, groups of the host        what the store checks
//
// A file handle proves nothing about its bearer: PUTFH and each step of a LOOKUP into another
// export go through enter. AUTH_SYS proves nothing either. A client that an export admits can act
// as any user that the export does not squash.

// who returns the identity by which the store serves the caller in an object's export. It computes
// the identity once for each rule, as most compounds stay in one export. The Cred belongs to the
// compound, and the next call of who for another export overwrites it. Whatever outlives the call
// must clone the groups.
//
// An object of an export that refuses the call has no rule (see at). No operation reaches the store
// with such an object. If one did, it would use deniedRule.
func (k *compound) who(o *object) *blockstore.Cred {
	rule := o.rule
	if rule == nil {
		rule = &deniedRule
	}
	if k.credOf != rule {
		// enter has looked up groups where that may have to wait.
		rule.Identity(&k.c.Cred, k.s.cfg.Groups, true, &k.cred)
		k.credOf = rule
	}
	return &k.cred
}

// deniedRule is the rule of a client that an export does not admit. With it only the operations of
// allowedIfDenied are executed. Code compares its address, so it must stay a single variable. If
// another operation reached the store in spite of admit, it would do so as the anonymous user and
// for reading alone.
var deniedRule = nfs.ClientRule{RO: true, Squash: nfs.AllSquash, AnonUID: nfs.AnonID, AnonGID: nfs.AnonID}

// allowedIfDenied reports whether an operation is executed with a handle of an export that does not
// admit the client any more. Such a client can still close, unlock and return what it has.
// Otherwise its state would stay until its lease ends.
func allowedIfDenied(op uint32) bool {
	switch op {
	case OpClose, OpLockU, OpDelegReturn, OpOpenDowngrade, OpOpenConfirm, OpSaveFH, OpGetFH:
		return true
	}
	return !table[op].is(needsHandle)
}

// enter finds the rule for the client in an export:
//
//	OK         the rule
//	ACCESS     no rule admits the client
//	WRONGSEC   the flavor of the call, or the protection of the connection, is not the rule's;
//	           cleansUp has an exception
//	DELAY      the name of the client's host is being resolved; or again is set
//
// A wrong flavor must be WRONGSEC and not ACCESS: on WRONGSEC the Linux client asks by SECINFO
// which flavors there are. The groups of a user can come from a name service, which may take
// seconds. On a transport's loop enter sets again instead of waiting, and the DELAY never reaches
// the client.
func (k *compound) enter(x *nfs.Export) (*nfs.ClientRule, nfs.Status) {
	rule, st := x.Admits(&k.c.Peer)
	if st == nfs.ErrAcces {
		k.s.cfg.Counters.DeniedClients.Add(1)
		k.auditRule(x, st)
	}
	switch {
	case rule == nil:
		return nil, st
	case !rule.Protects(&k.c.Peer):
		k.s.cfg.Counters.UnprotectedClients.Add(1)
		k.auditRule(x, nfs.ErrWrongSec)
		return nil, nfs.ErrWrongSec
	case !rule.Flavors.Has(k.c.Cred.Flavor) && !k.cleansUp():
		k.auditRule(x, nfs.ErrWrongSec)
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

// pay counts the compound once against the limits of an export. If the limits are exhausted, the
// compound leaves its worker and begins again later. If it would wait too long, the client gets
// DELAY and repeats the call. Once a compound has changed anything it cannot begin again, so pay
// does not count it from then on.
//
// A compound that touches several exports counts against the first one with a limit: Paid stays set
// when the call begins again, or it would pay for each attempt. The size counted is that of the
// request plus what a READ right behind PUTFH asks for. Further READs of the compound are free.
func (k *compound) pay(x *nfs.Export, rule *nfs.ClientRule) nfs.Status {
	if !x.Limited(rule) || k.c.Paid || k.changes {
		return nfs.OK
	}
	wait, ok := x.Reserve(rule, k.now, k.c.Peer.Addr.Addr(), int(k.size)+readCount(k.c.Args))
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

// pace is rpc.Proc.Pace: it counts a compound that begins with PUTFH, after SEQUENCE in a session,
// before it is served. The transport can then delay the call before it has memory for its data. pay
// counts the others. bulk is the length in bytes of data that the transport has not fetched yet.
// limit names the export's queue; 0 says that no limit applies. Without take nothing is counted:
// the transport only asks for the queue.
//
// pace reads a handle before SEQUENCE has been checked. A forged handle matches no export, so no
// limit applies to it, and the call fails cheaply in resolve.
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
	size += readCount(*d)
	limit, wait, ok = s.cfg.Exports.Pace(s.cfg.Codec, c, fh, size, take, s.cfg.Now())
	if take && wait > 0 && ok {
		s.cfg.Counters.Throttled.Add(1)
	}
	return limit, wait, ok
}

// readCount returns how many bytes of data a READ asks for, if READ is the next operation; else 0.
// READ itself reduces a count above nfs.MaxIO in the same way. d is a copy: the caller's decoder
// does not move.
func readCount(d xdr.Decoder) int {
	if d.Uint32() != OpRead {
		return 0
	}
	d.Skip(resStateid + 8) // stateid and offset
	n := d.Uint32()
	if d.Err() != nil {
		return 0
	}
	return int(min(n, nfs.MaxIO))
}
