package rpc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// working is the call that a worker serves; without a call the name is empty.
type working struct {
	name string
	peer netip.AddrPort
	came time.Duration
}

// InProgress describes the calls that workers serve as text, the oldest first.
func (s *Server) InProgress() []string {
	s.mu.Lock()
	list := slices.Clone(s.busy)
	s.mu.Unlock()
	now := time.Since(s.epoch)
	list = slices.DeleteFunc(list, func(w working) bool { return w.name == "" })
	slices.SortFunc(list, func(a, b working) int { return cmp.Compare(a.came, b.came) })
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = fmt.Sprintf("%s of %v, for %v", w.name, w.peer, (now - w.came).Round(time.Millisecond))
	}
	return out
}
