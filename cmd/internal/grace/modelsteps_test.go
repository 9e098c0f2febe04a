package grace

import (
	"fmt"
	"slices"
)

// use is a request of a client to a process.
func (m *model) use(c int, p *process) {
	x, l := &m.clients[c], m.r.IntN(modelLocks)
	orphan := x.at != nil && x.at != p && len(x.locks) > 0
	if orphan && !x.at.dead && m.r.IntN(8) > 0 {
		return // its node serves it still
	}
	switch {
	case orphan && !x.at.dead: // it has moved by itself: it keeps nothing
		m.end(c)
	case orphan && p.seen.Recovery != 0 && p.known[c]:
		for l := range x.locks {
			h, taken := m.held[l]
			if m.ended[p.Boot] {
				return
			}
			switch {
			case taken && h.client != c:
				m.fail("client %d reclaims lock %d at %s, and %+v has it", c, l, p.Boot, h)
			case taken && h.boot != p.Boot:
				return // a process that is not released has the client's lock: DELAY
			}
			m.records[record{p.Node, p.Epoch, c}] = true
			m.held[l] = holder{p.Boot, c}
		}
		m.reclaims++
		m.note("client %d reclaims at %s", c, p.Boot)
		x.at = p
	case orphan && p.mayGrant():
		// The process answers DELAY until it has read the state, and knows that the process before lived.
		if p.version != m.version {
			return
		}
		for _, n := range p.seen.Nodes {
			if n.Boot == x.at.Boot || slices.Contains(n.Stale, x.at.Boot) {
				return
			}
		}
		m.fail("client %d cannot reclaim %v at %s, and had no time to", c, x.locks, p.Boot)
	case orphan, x.locks[l]:
	case p.mayGrant():
		m.records[record{p.Node, p.Epoch, c}] = true
		if _, taken := m.held[l]; taken || m.ended[p.Boot] {
			return
		}
		m.held[l] = holder{p.Boot, c}
		x.at, x.locks[l] = p, true
		m.grants++
		for o := range m.clients {
			if o != c && m.clients[o].locks[l] {
				m.fail("client %d gets lock %d at %s, which client %d may reclaim", c, l, p.Boot, o)
			}
		}
	}
}

// end ends a client at the process that serves it, as by its unlock, or when its lease has expired.
func (m *model) end(c int) {
	x := &m.clients[c]
	if x.at == nil || x.at.dead {
		return
	}
	delete(m.records, record{x.at.Node, x.at.Epoch, c})
	for l, h := range m.held {
		if h.client == c && h.boot == x.at.Boot {
			delete(m.held, l)
		}
	}
	clear(x.locks)
	x.at = nil
}

// clean deletes records that are void.
func (m *model) clean(p *process) {
	before := p.seen.Current
	if p.seen.Recovery != 0 {
		before = p.seen.Recovery
	}
	for r := range m.records {
		if r.epoch < before {
			delete(m.records, r)
		}
	}
}

func (m *model) alive() []*process {
	var out []*process
	for _, p := range m.procs {
		if p != nil {
			out = append(out, p)
		}
	}
	return append(out, m.zombies...)
}

func (m *model) random() {
	all := m.alive()
	i := m.r.IntN(modelNodes)
	switch k := m.r.IntN(100); {
	case len(all) == 0 || k < 3:
		if p := m.procs[i]; p != nil && p.stalled { // its name is started again elsewhere
			m.zombies = append(m.zombies, p)
			m.procs[i] = nil
		} else if p != nil {
			m.crash(p)
		}
		m.start(i)
	case k < 5:
		m.note("crash")
		m.crash(all[m.r.IntN(len(all))])
	case k < 6: // a node counts as lost, rightly or not
		p := all[m.r.IntN(len(all))]
		id := fmt.Sprint("n", i)
		if q := m.procs[i]; q == nil || q.Boot != p.seen.Nodes[id].Boot || m.r.IntN(2) == 0 {
			if q != nil {
				q.stalled = true
			}
		} else if !q.stalled {
			return
		}
		if n, ok := p.seen.Nodes[id]; ok && !n.Lost() && id != p.Node {
			by := p.Node
			if m.r.IntN(3) == 0 {
				by = ""
			}
			if m.write(p.version, p.seen.Lose(id, by)) {
				m.losses++
				m.note("%s says that %s is lost: %+v", p.Boot, id, m.state)
			}
		}
	case k < 7:
		if p := m.procs[i]; p != nil && !m.has(p) && p.seen.Recovery == 0 && m.write(p.version, p.seen.Leave(p.Node)) {
			m.note("%s leaves", p.Boot)
			m.crash(p)
		}
	case k < 9:
		m.recover(all[m.r.IntN(len(all))])
	case k < 11:
		m.clean(all[m.r.IntN(len(all))])
	case k < 14:
		m.end(m.r.IntN(modelClients))
	case k < 50:
		m.use(m.r.IntN(modelClients), all[m.r.IntN(len(all))])
	default:
		m.act(all[m.r.IntN(len(all))])
	}
}

// has reports whether a process has clients or records of them.
func (m *model) has(p *process) bool {
	for c := range m.clients {
		if m.clients[c].at == p || m.records[record{p.Node, p.Epoch, c}] {
			return true
		}
	}
	return false
}
