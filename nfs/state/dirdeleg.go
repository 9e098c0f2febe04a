package state

import (
	"slices"
	"time"

	"github.com/rstored/rstored/nfs/lock"
)

// A delegation of a directory (RFC 8881 section 10.9) is a delegation for reading: while a client
// has it, nobody else changes the directory. It is in the same tables as the delegations of files,
// and is recalled, returned and revoked like them. Two things differ:
//
//   - The client may have asked for notifications of some kinds of changes. A change of these kinds
//     does not conflict: the caller makes it, and calls the client (CB_NOTIFY).
//   - It is not reclaimed after a restart of the server: a client asks for a new one.
//
// The client's own changes never conflict. They are notified like those of others (section 10.9.3).

// DirNotices are the kinds of changes that a client can be notified of: bits of notify_type4 (RFC
// 8881 section 20.4.1).
const (
	NoticeRemove = 1 << 2
	NoticeAdd    = 1 << 3
	NoticeRename = 1 << 4
	DirNotices   = NoticeRemove | NoticeAdd | NoticeRename
)

// covers reports whether the client of a delegation is notified of a change of these kinds, so that
// the delegation stays. Call with the shard's lock held.
func (d *deleg) covers(kinds uint32) bool {
	return d.Dir && kinds != 0 && kinds&^d.Notices == 0 && !d.Recalled
}

// DelegateDir is GET_DIR_DELEGATION (RFC 8881 section 18.39). notices are the kinds of changes that
// the client is to be notified of. During the grace period no directory is delegated.
func (c *Client) DelegateDir(now time.Time, dir lock.File, notices uint32, from Origin) (Delegated, WhyNot) {
	if c.s.Grace(now) {
		return Delegated{}, WhyContention
	}
	return c.Delegate(now, &Delegate{File: dir, Dir: true, Notices: notices & DirNotices, Origin: from})
}

// BeginDirChange is BeginChange for a change of the entries of a directory. Delegations whose
// clients are notified of changes of these kinds do not conflict. After a change that succeeded,
// and before EndChange, the caller notifies the clients that Notified lists.
func (s *Server) BeginDirChange(now time.Time, dir lock.File, by *Client, kinds uint32) (held, ok bool) {
	return s.begin(now, dir, by, kinds)
}

// Notified lists the delegations of a directory whose clients have to be notified of a change of
// these kinds. One that is being recalled is not among them: its client does not rely on it.
func (s *Server) Notified(dir lock.File, kinds uint32) (list []Recall) {
	if s.delegs.dirs.Load() == 0 {
		return nil
	}
	sh := s.shardOfFile(dir)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, d := range sh.deleg.m[dir] {
		if d.covers(kinds) {
			list = append(list, d.recall())
		}
	}
	return list
}

// Renounce recalls a delegation whose client could not be notified. It does nothing to one that has
// ended. Call with no lock held.
func (s *Server) Renounce(now time.Time, r *Recall) {
	sh := s.shardOfFile(r.File)
	// A client whose lease has run out is ended instead. If the journal cannot record this, take
	// recalls the delegation: the client may come back, and has missed a change.
	for _, add := range []func(*clash, *fileShard, time.Time, *deleg, time.Duration){(*clash).add, (*clash).take} {
		var k clash
		sh.mu.Lock()
		if slices.Contains(sh.deleg.m[r.File], r.d) && !r.d.Recalled {
			add(&k, sh, now, r.d, s.cfg.Lease)
		}
		sh.mu.Unlock()
		if k.any() {
			s.settle(&k)
		}
	}
}
