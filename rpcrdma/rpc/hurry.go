package rpc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Hurry has calls that wait for their time (Call.Defer) be served at once, also those that come from now on,
// or ends that: a server that is to stand still for a moment gets done with what it has.
func (s *Server) Hurry(on bool) {
	p := &s.parking
	p.mu.Lock()
	p.hurry = on
	var due []*Call
	if on {
		due = p.stop()
	}
	p.mu.Unlock()
	for _, c := range due {
		p.leave()
		delayed(c, false)
		s.enqueue(c)
		s.done.Done()
	}
}

// working is a call that a worker serves; the name is empty where there is none.
type working struct {
	name string
	peer netip.AddrPort
	came time.Duration
}

// InProgress describes the calls that workers serve, for people, the one that has taken longest first.
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
