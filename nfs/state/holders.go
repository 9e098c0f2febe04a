package state

import (
	"cmp"
	"slices"
)

// Holder counts the state of one client in one export.
type Holder struct {
	ID     uint64
	Owner  string // Client.owner: any bytes, see Identity.known
	Export uint32
	Opens  int // pairs of an open-owner and a file
	// Delegations counts files; revoked ones are not among them. Locks counts lock stateids: pairs of
	// a lock-owner and a file, with or without a lock at the moment.
	Delegations, Locks int
}

// Holders lists clients with state in the exports that want selects, sorted by client ID and then
// by export. A client without such state is not in the list. A client whose lease has run out is:
// its state is still there.
//
// Holders locks one client at a time, so the list is not a state of one moment. want is called with
// the mu of a client held: it must not wait, nor call this package.
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
