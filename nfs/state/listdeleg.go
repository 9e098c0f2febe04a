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
	Given  time.Time
	// Recalled: the client was asked for it, Told: it has answered that. Until is when it
	// is taken away then.
	Recalled, Acknowledged bool
	Until                  time.Time
}

// DelegationList lists up to most delegations by client, the oldest of each first.
func (s *Server) DelegationList(most int) []DelegInfo {
	out := []DelegInfo{}
	for _, c := range s.sortedClients() {
		at := len(out)
		c.mu.Lock()
		for f, d := range c.delegs {
			if len(out) >= most {
				break
			}
			i := DelegInfo{Client: c.ID, File: f, Write: d.Write, Given: time.Unix(0, d.Given)}
			sh := s.shardOfFile(f)
			sh.mu.Lock()
			if i.Recalled, i.Acknowledged = d.Recalled, d.Acknowledged; d.Recalled {
				i.Until = time.Unix(0, d.until.Load())
			}
			sh.mu.Unlock()
			out = append(out, i)
		}
		c.mu.Unlock()
		slices.SortFunc(out[at:], func(a, b DelegInfo) int { return cmp.Compare(a.Given.UnixNano(), b.Given.UnixNano()) })
	}
	return out
}
