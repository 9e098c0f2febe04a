package nlm

import (
	"bytes"
	"errors"
	"net/netip"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// purpose is what a procedure wants with a file. It decides which rights the caller needs.
type purpose uint8

const (
	// toFree ends a lock or a request. It needs no right, because a user may have lost the right after
	// the lock was taken.
	toFree purpose = iota
	toRead
	toWrite
	// toDeny denies others to read. It needs the right to write.
	toDeny
)

// needs returns the rights of which a caller needs one, unless the caller owns the file.
func (p purpose) needs() uint32 {
	if p == toDeny {
		return blockstore.AccessModify
	}
	return blockstore.AccessRead | blockstore.AccessModify
}

func purposeOf(write bool) purpose {
	if write {
		return toWrite
	}
	return toRead
}

// locate finds the file and the owner of a lock. It checks that the caller has the rights for the
// purpose.
func (s *Server) locate(c *rpc.Call, l *Lock, why purpose) (f lock.File, o lock.Owner, st Stat) {
	id, h, err := s.cfg.Codec.Parse(l.Handle)
	if err != nil {
		return f, o, StaleHandle
	}
	x := s.cfg.Exports.ByID(id)
	if x == nil {
		return f, o, StaleHandle
	}
	rule, admits := x.Admits(&c.Peer)
	if admits != nfs.OK || !rule.InsecureLocks && !rule.Flavors.Has(c.Cred.Flavor) {
		return f, o, Failed
	}
	if why >= toWrite && (x.ReadOnly || rule.RO) {
		return f, o, ReadOnly
	}
	a, err := x.FS.GetAttr(nil, h)
	switch {
	case errors.Is(err, blockstore.ErrStale), errors.Is(err, blockstore.ErrBadHandle),
		errors.Is(err, blockstore.ErrNotExist):
		return f, o, StaleHandle
	case err != nil || a.Type != blockstore.TypeReg:
		return f, o, Failed
	case why != toFree && !rule.InsecureLocks && !s.mayLock(x, rule, c, h, &a, why.needs()):
		return f, o, Failed
	}
	who := clientOf(c, l.Caller)
	return lock.File{Export: id, Handle: h}, lock.Owner{Client: who.key(), ID: l.ownerID()}, Granted
}

// mayLock reports whether the caller owns a file, or has one of rights on it. Without this check
// any user of a client could lock others out of their files. With locks on the host that includes
// the programs of the host.
func (s *Server) mayLock(
	x *nfs.Export, rule *nfs.ClientRule, c *rpc.Call, h blockstore.Handle, a *blockstore.Attr, rights uint32,
) bool {
	var who blockstore.Cred
	if !rule.Identity(&c.Cred, s.cfg.Groups, true, &who) {
		return false
	}
	if who.Owns(a) {
		return true
	}
	got, _, err := x.FS.Access(&who, h, rights)
	return err == nil && got != 0
}

// request holds the arguments of TEST, LOCK, CANCEL or UNLOCK. Its slices are copies: the transport
// reuses the memory of the call after the reply, and a lock that waits outlives the call.
type request struct {
	cookie           []byte
	block, exclusive bool
	lock             Lock

	file lock.File
	want lock.Lock // in the terms of the lock table
}

// decode reads the arguments that these procedures have in common: cookie, one bool for each of
// flags, and the lock. LOCK has two more words behind them.
//
//	LOCK     cookie<> | block | exclusive | nlm4_lock | reclaim | state
//	TEST     cookie<> | exclusive | nlm4_lock
//	CANCEL   cookie<> | block | exclusive | nlm4_lock
//	UNLOCK   cookie<> | nlm4_lock
func (r *request) decode(d *xdr.Decoder, flags ...*bool) {
	r.cookie = bytes.Clone(d.Opaque(stringMax))
	for _, f := range flags {
		*f = d.Bool()
	}
	r.lock = DecodeLock(d)
	r.lock.Handle, r.lock.Owner = bytes.Clone(r.lock.Handle), bytes.Clone(r.lock.Owner)
}

// resolve finds the file and the owner. The procedure continues only if the result is Granted.
func (s *Server) resolve(c *rpc.Call, r *request, why purpose) (st Stat) {
	end, ok := r.lock.last()
	if !ok {
		return TooBig
	}
	r.want = lock.Lock{Start: r.lock.Offset, End: end, Exclusive: r.exclusive}
	r.file, r.want.Owner, st = s.locate(c, &r.lock, why)
	return st
}

// result encodes the answer of most procedures: cookie and outcome. The answer to a _MSG is encoded
// after the call has ended. So cookie must not alias the call.
func result(cookie []byte, st Stat) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		e.Opaque(cookie)
		e.Uint32(uint32(st))
	}
}

func (s *Server) test(c *rpc.Call) (func(*xdr.Encoder), bool) {
	var r request
	r.decode(&c.Args, &r.exclusive)
	if c.Args.Err() != nil {
		return nil, false
	}
	st := s.resolve(c, &r, toRead)
	switch {
	case st != Granted:
	case s.wait(false), s.cfg.Delegations != nil && !s.cfg.Delegations.Free(r.file, true, true):
		st = DeniedGrace
	default:
		if holder, free := s.conflict(r.file, r.want, s.cfg.Locks.Probe); !free {
			return func(e *xdr.Encoder) {
				result(r.cookie, Denied)(e)
				encodeHolder(e, &holder)
			}, true
		}
	}
	return result(r.cookie, st), true
}

// lock is LOCK, and also NM_LOCK, which a client without a status monitor sends. monitored is true
// for LOCK: after a restart the server has to send SM_NOTIFY to the client.
func (s *Server) lock(c *rpc.Call, monitored bool) (func(*xdr.Encoder), bool) {
	var r request
	r.decode(&c.Args, &r.block, &r.exclusive)
	reclaim := c.Args.Bool()
	c.Args.Uint32() // the state number of the client's status monitor
	if c.Args.Err() != nil {
		return nil, false
	}
	st := s.resolve(c, &r, purposeOf(r.exclusive))
	if st == Granted && s.wait(reclaim) {
		st = DeniedGrace
	}
	if st == Granted && s.cfg.Delegations != nil && !reclaim {
		begun, ok := s.cfg.Delegations.BeginChange(r.file)
		if begun {
			defer s.cfg.Delegations.EndChange(r.file)
		}
		if !ok {
			st = DeniedGrace // the delegation is being recalled: the client calls again
		}
	}
	who := clientOf(c, r.lock.Caller)
	if st == Granted && monitored && !s.remember(who) {
		st = DeniedNoLocks
	}
	if st == Granted {
		s.conflict(r.file, r.want, s.cfg.Locks.Test)
		st = s.take(&r, who, reclaim)
	}
	return result(r.cookie, st), true
}

// clientOf returns the client of a call, under the name that it gives itself.
func clientOf(c *rpc.Call, name string) Client {
	return Client{Name: name, Addr: c.Peer.Addr.Addr().Unmap(), Server: c.Peer.Local.Addr().Unmap()}
}

// take takes a lock, or puts the request into the queue.
func (s *Server) take(r *request, who Client, reclaim bool) Stat {
	var taken bool
	var err error
	switch {
	case reclaim:
		_, taken, err = s.cfg.Locks.Reclaim(r.file, r.want)
	case r.block:
		q := waiting{who, r.cookie, r.lock}
		w := &lock.Waiter{Lock: r.want, Note: q.encode()}
		w.Granted = func() { s.notifyGranted(&grant{q, r.file, &w.Lock}) }
		taken, err = s.cfg.Locks.Wait(r.file, w)
	default:
		_, taken, err = s.cfg.Locks.Lock(r.file, r.want)
	}
	switch {
	case errors.Is(err, lock.ErrDeadlock):
		return Deadlock
	case errors.Is(err, lock.ErrBusy):
		return DeniedGrace // the client asks again
	case err != nil:
		return DeniedNoLocks
	case taken:
		return Granted
	case r.block && !reclaim:
		s.poll()
		return Blocked
	}
	return Denied
}

func (s *Server) cancel(c *rpc.Call) (func(*xdr.Encoder), bool) {
	var r request
	r.decode(&c.Args, &r.block, &r.exclusive)
	if c.Args.Err() != nil {
		return nil, false
	}
	st := s.resolve(c, &r, toFree)
	switch {
	case st != Granted:
	case s.grace():
		st = DeniedGrace
	case !s.cfg.Locks.Cancel(r.file, r.want):
		st = Denied // the lock was granted meanwhile; the client sends UNLOCK
	}
	return result(r.cookie, st), true
}

func (s *Server) unlock(c *rpc.Call) (func(*xdr.Encoder), bool) {
	var r request
	r.decode(&c.Args)
	if c.Args.Err() != nil {
		return nil, false
	}
	st := s.resolve(c, &r, toFree)
	switch {
	case st != Granted:
	case s.grace():
		st = DeniedGrace
	default:
		s.cfg.Locks.Unlock(r.file, r.want.Owner, r.want.Start, r.want.End)
	}
	return result(r.cookie, st), true
}

// decodeShare reads an nlm4_shareargs:
//
//	cookie<> | caller_name<> | fh<> | oh<> | mode | access | reclaim
//
// mode is what others are denied. There is no svid, so the owner is oh alone.
func (s *Server) decodeShare(c *rpc.Call) (cookie []byte, l Lock, mode, access uint32, reclaim bool) {
	d := &c.Args
	cookie = d.Opaque(stringMax)
	l.Caller, l.Handle, l.Owner = d.String(stringMax), d.Opaque(nfs.HandleMax), d.Opaque(stringMax)
	mode, access = d.Uint32(), d.Uint32()
	return cookie, l, mode, access, d.Bool()
}

// share is SHARE: a share reservation as in DOS. It is denied if access overlaps with the mode of
// another reservation, or mode with the access of another one. Both are bits: 1 for reading, 2 for
// writing.
func (s *Server) share(c *rpc.Call) rpc.Status {
	cookie, l, mode, access, reclaim := s.decodeShare(c)
	if c.Args.Err() != nil {
		return rpc.Garbage
	}
	why := purposeOf(access&2 != 0)
	if mode&1 != 0 {
		why = toDeny
	}
	f, o, st := s.locate(c, &l, why)
	who := clientOf(c, l.Caller)
	switch {
	case st != Granted:
	case s.wait(reclaim):
		st = DeniedGrace
	case !s.remember(who):
		st = DeniedNoLocks
	default:
		st = s.reserve(f, o, who.Addr, mode, access)
	}
	result(cookie, st)(&c.Res)
	c.Res.Uint32(0) // sequence
	return rpc.Done
}

// reserve enters a share reservation. The table of reservations is that of version 4.
func (s *Server) reserve(f lock.File, o lock.Owner, host netip.Addr, mode, access uint32) Stat {
	if s.cfg.Shares == nil {
		return DeniedNoLocks
	}
	switch s.cfg.Shares.Reserve(f, o, host, access, mode) {
	case nfs.OK:
		return Granted
	case nfs.ErrShareDenied:
		return Denied
	case nfs.ErrJukebox:
		return DeniedGrace // the client calls again
	}
	return DeniedNoLocks
}

func (s *Server) unshare(c *rpc.Call) rpc.Status {
	cookie, l, _, _, _ := s.decodeShare(c)
	if c.Args.Err() != nil {
		return rpc.Garbage
	}
	f, o, st := s.locate(c, &l, toFree)
	if st == Granted && s.cfg.Shares != nil {
		s.cfg.Shares.Unreserve(f, o)
	}
	result(cookie, st)(&c.Res)
	c.Res.Uint32(0)
	return rpc.Done
}

// freeAll is FREE_ALL: a client without a status monitor has restarted.
func (s *Server) freeAll(c *rpc.Call) rpc.Status {
	name := c.Args.String(stringMax)
	c.Args.Uint32() // state
	if c.Args.Err() != nil {
		return rpc.Garbage
	}
	s.gone(&c.Peer, name)
	return rpc.Done
}
