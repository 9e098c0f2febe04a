package grace

import (
	"fmt"
	"slices"
)

// use is a request of a client to a process.
func (m *model) use(c int, p *process) {
	x, l := &m.clients[c], m.r.IntN(modelLocks)
	orphan := x.at != nil && x.at != p && len(x.locks) > 0
	served := orphan && !x.at.dead && !x.at.leaving
	if p.leaving || served && m.r.IntN(8) > 0 {
		return // p serves nobody, or its node serves it still
	}
	switch {
	case served: // it has moved by itself: it keeps nothing
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
		x.at = p
		p.pending = append(p.pending, pending{c, l})
		if m.r.IntN(3) > 0 {
			m.grant(p)
		}
	}
}

// grant takes the lock that a process has granted first.
func (m *model) grant(p *process) {
	g := p.pending[0]
	p.pending = p.pending[1:]
	x := &m.clients[g.client]
	if _, taken := m.held[g.lock]; taken || m.ended[p.Boot] || x.at != p || p.leaving {
		return
	}
	// Not in the model: a process stands still in the middle of a grant until it was declared lost.
	if p.stalled || p.seen.Nodes[p.Node].Boot != p.Boot {
		return
	}
	m.held[g.lock] = holder{p.Boot, g.client}
	x.locks[g.lock] = true
	m.grants++
	if !p.mayGrant() {
		m.late++
	}
	for o := range m.clients {
		if o != g.client && m.clients[o].locks[g.lock] {
			m.fail("client %d gets lock %d at %s, which client %d may reclaim", g.client, g.lock, p.Boot, o)
		}
	}
}

// lose declares the process of a node lost.
func (m *model) lose(p *process, id, by string) bool {
	boot := p.seen.Nodes[id].Boot
	if !m.write(p.version, p.seen.Lose(id, by)) {
		return false
	}
	m.lost[boot] = true
	return true
}

// leave is a step of a process that leaves: it releases what it has when all enforce the period, and
// then says so.
func (m *model) leave(p *process) {
	own := p.seen.Nodes[p.Node]
	if !p.closed && own.Boot == p.Boot && p.seen.Enforced() {
		p.closed, m.ended[p.Boot] = true, true
		for l, h := range m.held {
			if h.boot == p.Boot {
				delete(m.held, l)
			}
		}
	}
	if p.closed && m.write(p.version, p.seen.Left(p.Node, p.Boot)) {
		m.left++
		m.note("%s has left: %+v", p.Boot, m.state)
		m.crash(p)
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
	x.at.pending = slices.DeleteFunc(x.at.pending, func(g pending) bool { return g.client == c })
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
		if p := m.procs[i]; m.r.IntN(2) == 0 && p != nil && m.state.Recovery != 0 && p.seen.Nodes[p.Node].Need {
			// A node that came up in a grace period is lost in the same one.
			m.crash(p)
			for _, q := range m.alive() {
				if m.read(q); q.seen.Nodes[p.Node].Boot == p.Boot && m.lose(q, p.Node, q.Node) {
					m.losses++
				}
			}
			return
		}
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
			if m.lose(p, id, by) {
				m.losses++
				m.note("%s says that %s is lost: %+v", p.Boot, id, m.state)
			}
		}
	case k < 7:
		if p := m.procs[i]; p == nil || p.leaving || p.stalled || p.seen.Nodes[p.Node].Boot != p.Boot || m.r.IntN(3) > 0 {
			return
		} else if !m.has(p) && !p.seen.Nodes[p.Node].Need { // it has released what it had
			if m.write(p.version, p.seen.Left(p.Node, p.Boot)) {
				m.note("%s leaves", p.Boot)
				m.crash(p)
			}
		} else if m.write(p.version, p.seen.Leave(p.Node)) {
			p.leaving, p.pending = true, nil
			m.note("%s begins to leave: %+v", p.Boot, m.state)
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
