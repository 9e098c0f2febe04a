package state

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// foreignMax bounds the reservations of other protocols.
const foreignMax = 4096

// foreign is a share reservation of another protocol. Its file's shard guards it.
type foreign struct {
	Owner        lock.Owner
	Host         netip.Addr
	Access, Deny uint8
}

// shareCounts are of all files.
type shareCounts struct {
	// denials are the reservations that deny anything. Whoever has no open looks there
	// first.
	denials atomic.Int64
	foreign atomic.Int64
}

// changed counts a reservation whose denials were, and are now.
func (n *shareCounts) changed(was, is uint8) {
	switch {
	case was == 0 && is != 0:
		n.denials.Add(1)
	case was != 0 && is == 0:
		n.denials.Add(-1)
	}
}

// foreignDeny reports whether a reservation of another protocol stands against these.
// Call with the shard's lock held.
func (sh *fileShard) foreignDeny(f lock.File, access, deny uint8) bool {
	return slices.ContainsFunc(sh.foreign[f], func(x foreign) bool { return x.Deny&access != 0 || x.Access&deny != 0 })
}

// Denying reports whether there is a reservation that denies anything.
func (s *Server) Denying() bool { return s.shares.denials.Load() != 0 }

// Denied reports whether anybody denies a host to read or to write a file without an
// open (RFC 8881 section 9.1.2). The host's own reservations by another protocol do not
// count: its reads and writes do not say whose they are. Where it must not wait, those of
// clients whose lease has run out still count.
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
			return true
		}
	}
}

// denier is a client that denies a mode to others, if there is one such that is there;
// others says that it is somebody of another protocol.
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

// Reserve enters a share reservation of another protocol in the place of what its owner
// has of the file. See nfs.Shares.
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

// reserve is one attempt of Reserve. victim is a client that is in the way, and silent.
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
	// A client opens by itself what is delegated to it.
	if k = sh.clash(now, f, nil, want.Access&Write != 0 || want.Deny != 0, s.cfg.Lease); k.any() {
		return st, nil, k
	}
	if mine >= 0 {
		s.shares.changed(list[mine].Deny, want.Deny)
		list[mine] = *want
		return nfs.OK, nil, k
	}
	if s.shares.foreign.Add(1) > foreignMax {
		s.shares.foreign.Add(-1)
		return nfs.ErrResource, nil, k
	}
	s.addForeign(sh, f, *want)
	return nfs.OK, nil, k
}

// addForeign enters a reservation that has been counted. Call with the shard's lock held.
func (s *Server) addForeign(sh *fileShard, f lock.File, x foreign) {
	if sh.foreign == nil {
		sh.foreign = make(map[lock.File][]foreign)
	}
	sh.foreign[f] = append(sh.foreign[f], x)
	s.shares.changed(0, x.Deny)
}

// Unreserve gives up the reservation of an owner of another protocol.
func (s *Server) Unreserve(f lock.File, owner lock.Owner) {
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.unreserve(sh, f, func(x *foreign) bool { return x.Owner == owner })
}

// UnreserveAll gives up those of a client of another protocol.
func (s *Server) UnreserveAll(client string) {
	s.sweepForeign(func(_ lock.File, x *foreign) bool { return x.Owner.Client == client })
}

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

// unreserve takes reservations of a file out. Call with the shard's lock held.
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
