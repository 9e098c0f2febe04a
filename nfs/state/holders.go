package state

import (
	"cmp"
	"slices"
)

// Holder is a client that has files of an export open, or delegated.
type Holder struct {
	ID     uint64
	Owner  string // as the client calls itself: any bytes
	Export uint32
	Opens  int // for each open-owner
	// Delegations are files; Locks are lock-owners, for each file.
	Delegations, Locks int
}

// Holders lists who has something of an export of which want is true, by client.
func (s *Server) Holders(want func(export uint32) bool) []Holder {
	var out []Holder
	for _, c := range s.sortedClients() {
		at := len(out)
		of := func(export uint32) *Holder {
			for i := at; i < len(out); i++ {
				if out[i].Export == export {
					return &out[i]
				}
			}
			out = append(out, Holder{ID: c.ID, Owner: c.owner, Export: export})
			return &out[len(out)-1]
		}
		c.mu.Lock()
		for k := range c.opens {
			if want(k.File.Export) {
				of(k.File.Export).Opens++
			}
		}
		for k := range c.locks {
			if want(k.File.Export) {
				of(k.File.Export).Locks++
			}
		}
		for f := range c.delegs {
			if want(f.Export) {
				of(f.Export).Delegations++
			}
		}
		c.mu.Unlock()
		slices.SortFunc(out[at:], func(a, b Holder) int { return cmp.Compare(a.Export, b.Export) })
	}
	return out
}
