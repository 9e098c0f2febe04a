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
