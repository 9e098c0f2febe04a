package state

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// Share reservations of all protocols meet here: the opens of version 4, and the reservations that
// clients of version 3 make by NLM (the SHARE procedure). The shard of a file guards both lists.
//
//	request                        conflicts with
//	OPEN                           opens of all, its own included; other protocols
//	NLM SHARE                      opens; reservations of other owners
//	READ, WRITE without an open    denials of opens; denials of other hosts
//
// Reservations of other protocols have no lease. They end by UNSHARE, by the restart of their
// client (NSM), or with their export.

// foreignMax bounds the reservations of other protocols, over all files. NLM has no lease: the
// reservations of a client that never returns stay.
const foreignMax = 4096

// foreign is a share reservation of another protocol. The shard of the file guards it. Fields are
// exported for the snapshot.
type foreign struct {
	Owner        lock.Owner
	Host         netip.Addr
	Access, Deny uint8
}

// shareCounts count over all files.
type shareCounts struct {
	// denials counts reservations, of opens and others, that deny anything. Few clients deny, so most
	// READs and WRITEs without an open read this counter and take no lock.
	denials atomic.Int64
	foreign atomic.Int64
}

// changed counts a reservation whose share_deny changes from was to is. 0 stands for no reservation
// as well. Call with the shard's lock held.
func (n *shareCounts) changed(was, is uint8) {
	switch {
	case was == 0 && is != 0:
		n.denials.Add(1)
	case was != 0 && is == 0:
		n.denials.Add(-1)
	}
}

// foreignDeny reports whether a reservation of another protocol conflicts with an OPEN of these
// modes. Call with the shard's lock held.
func (sh *fileShard) foreignDeny(f lock.File, access, deny uint8) bool {
	return slices.ContainsFunc(sh.foreign[f], func(x foreign) bool { return x.Deny&access != 0 || x.Access&deny != 0 })
}

// Denying reports whether a reservation of any file denies anything.
func (s *Server) Denying() bool { return s.shares.denials.Load() != 0 }

// Denied reports whether a reservation denies a host to read or to write a file without an open
// (RFC 8881 section 9.1.2). The host's own reservations by another protocol do not count, because a
// READ or WRITE of version 3 does not say which owner sends it. An invalid host has none.
//
// A client whose lease has run out denies nothing: Denied ends the client. That writes the list of
// clients that may reclaim, so it happens only if mayWait is true. Otherwise the reservation
// counts, and the caller asks again where it may wait.
func (s *Server) Denied(now time.Time, f lock.File, host netip.Addr, write, mayWait bool) bool {
	if !s.Denying() {
		return false
	}
	mode := uint8(Read)
	if write {
		mode = Write
	}
	for {
		denier, others := s.denier(now, f, host, mode)
		switch {
		case others:
			return true
		case denier == nil:
			return false
		case !denier.expired(now), !mayWait:
			return true
		}
		if !s.give(denier) {
			return true // the list cannot be written: after a crash the client would reclaim
		}
	}
}

// denier finds a client whose open denies a mode, if possible one with a lease. others says that a
// reservation of another protocol denies the mode.
func (s *Server) denier(now time.Time, f lock.File, host netip.Addr, mode uint8) (c *Client, others bool) {
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, o := range sh.m[f] {
		if o.Share.Deny&mode == 0 {
			continue
		}
		if c = o.c; !c.expired(now) {
			return c, false
		}
	}
	for i := range sh.foreign[f] {
		if x := &sh.foreign[f][i]; x.Deny&mode != 0 && (x.Host != host || !host.IsValid()) {
			return nil, true
		}
	}
	return c, false
}

// Reserve enters a share reservation of another protocol. It replaces an earlier one of the same
// owner and file, as a second NLM SHARE does. It does not check the grace period; the caller has
// done so. See nfs.Shares for the results. DELAY means a recall under way: NLM answers
// DENIED_GRACE_PERIOD, after which a client asks again.
func (s *Server) Reserve(
	now time.Time, f lock.File, owner lock.Owner, host netip.Addr, access, deny uint32,
) nfs.Status {
	want := foreign{Owner: owner, Host: host, Access: uint8(access & Both), Deny: uint8(deny & Both)}
	for {
		st, victim, k := s.reserve(now, f, &want)
		switch {
		case victim != nil:
			if !s.give(victim) {
				return nfs.ErrJukebox
			}
		case k.any():
			if !s.settle(&k) {
				return nfs.ErrJukebox
			}
		default:
			return st
		}
	}
}

// reserve is one attempt of Reserve. victim is a client with an expired lease whose open conflicts.
// The caller ends it after reserve has released the shard: Client.mu comes before the shard's lock.
func (s *Server) reserve(now time.Time, f lock.File, want *foreign) (st nfs.Status, victim *Client, k clash) {
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, o := range sh.m[f] {
		if o.Share.Access&want.Deny == 0 && o.Share.Deny&want.Access == 0 {
			continue
		}
		if !o.c.expired(now) {
			return nfs.ErrShareDenied, nil, k
		}
		victim = o.c
	}
	if victim != nil {
		return st, victim, k
	}
	list, mine := sh.foreign[f], -1
	for i := range list {
		switch x := &list[i]; {
		case x.Owner == want.Owner:
			mine = i
		case x.Access&want.Deny != 0 || x.Deny&want.Access != 0:
			return nfs.ErrShareDenied, nil, k
		}
	}
	// A client with a delegation opens the file without a call, so its opens are not in sh.m.
	if k = sh.clash(now, f, nil, want.Access&Write != 0 || want.Deny != 0, 0, s.cfg.Lease); k.any() {
		return st, nil, k
	}
	if mine >= 0 {
		s.shares.changed(list[mine].Deny, want.Deny)
		list[mine] = *want
		return nfs.OK, nil, k
	}
	// Add first, then compare: requests for files of other shards count at the same time.
	if s.shares.foreign.Add(1) > foreignMax {
		s.shares.foreign.Add(-1)
		return nfs.ErrResource, nil, k
	}
	s.addForeign(sh, f, *want)
	return nfs.OK, nil, k
}

// addForeign enters a reservation that shareCounts.foreign counts already. Call with the shard's
// lock held.
func (s *Server) addForeign(sh *fileShard, f lock.File, x foreign) {
	if sh.foreign == nil {
		sh.foreign = make(map[lock.File][]foreign)
	}
	sh.foreign[f] = append(sh.foreign[f], x)
	s.shares.changed(0, x.Deny)
}

// Unreserve ends the reservation of an owner of another protocol (NLM UNSHARE), if there is one.
func (s *Server) Unreserve(f lock.File, owner lock.Owner) {
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.unreserve(sh, f, func(x *foreign) bool { return x.Owner == owner })
}

// UnreserveAll ends all reservations of a client of another protocol: the client has restarted.
func (s *Server) UnreserveAll(client string) {
	s.sweepForeign(func(_ lock.File, x *foreign) bool { return x.Owner.Client == client })
}

// sweepForeign ends the reservations of other protocols for which gone is true. gone is called with
// a shard locked.
func (s *Server) sweepForeign(gone func(lock.File, *foreign) bool) {
	if s.shares.foreign.Load() == 0 {
		return
	}
	for i := range s.files {
		sh := &s.files[i]
		sh.mu.Lock()
		for f := range sh.foreign {
			s.unreserve(sh, f, func(x *foreign) bool { return gone(f, x) })
		}
		sh.mu.Unlock()
	}
}

// unreserve removes the reservations of a file for which gone is true. Call with the shard's lock
// held.
func (s *Server) unreserve(sh *fileShard, f lock.File, gone func(*foreign) bool) {
	list := slices.DeleteFunc(sh.foreign[f], func(x foreign) bool {
		if !gone(&x) {
			return false
		}
		s.shares.foreign.Add(-1)
		s.shares.changed(x.Deny, 0)
		return true
	})
	if len(list) == 0 {
		delete(sh.foreign, f)
	} else {
		sh.foreign[f] = list
	}
}
