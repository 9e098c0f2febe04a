package state

import (
	"cmp"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs/lock"
)

// DelegInfo is a delegation as it is at one moment.
type DelegInfo struct {
	Client uint64
	File   lock.File
	Write  bool
	Dir    bool // of a directory
	Given  time.Time
	// Recalled: CB_RECALL was sent, or is about to be. Acknowledged: the client has answered it with
	// OK. Until is when the server may revoke a recalled delegation; zero if it is not recalled.
	Recalled, Acknowledged bool
	Until                  time.Time
}

// DelegationList lists up to most delegations by client, the oldest of each client first. It does
// not list revoked ones. If the last client has more than there is room for, a random choice of
// them is listed.
//
// The recall state is guarded by the shard of the file, and the rest by the client's mu. So the
// shard is locked inside mu, for each delegation. most bounds how long requests of the client wait.
func (s *Server) DelegationList(most int) []DelegInfo {
	out := []DelegInfo{}
	for _, c := range s.sortedClients() {
		at := len(out)
		c.mu.Lock()
		for f, d := range c.delegs {
			if len(out) >= most {
				break
			}
			i := DelegInfo{Client: c.ID, File: f, Write: d.Write, Dir: d.Dir, Given: time.Unix(0, d.Given)}
			sh := s.shardOfFile(f)
			sh.mu.Lock()
			if i.Recalled, i.Acknowledged = d.Recalled, d.Acknowledged; d.Recalled {
				i.Until = time.Unix(0, min(d.until.Load(), d.Last))
			}
			sh.mu.Unlock()
			out = append(out, i)
		}
		c.mu.Unlock()
		slices.SortFunc(out[at:], func(a, b DelegInfo) int { return cmp.Compare(a.Given.UnixNano(), b.Given.UnixNano()) })
	}
	return out
}

// Delegating reports whether there may be delegations.
func (s *Server) Delegating() bool { return s.delegs.possible.Load() }

// Watch returns a channel that is closed when a delegation of a file ends. It is nil if no
// delegation of the file is being recalled. The caller waits with a timeout of its own, because the
// client may never return the delegation. After the channel is closed the caller must ask again:
// another delegation of the file may be left.
func (s *Server) Watch(f lock.File) <-chan struct{} {
	sh := s.shardOfFile(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !slices.ContainsFunc(sh.deleg.m[f], func(d *deleg) bool { return d.Recalled }) {
		return nil
	}
	ch := sh.deleg.watch[f]
	if ch == nil {
		if sh.deleg.watch == nil {
			sh.deleg.watch = make(map[lock.File]chan struct{})
		}
		ch = make(chan struct{})
		sh.deleg.watch[f] = ch
	}
	return ch
}
