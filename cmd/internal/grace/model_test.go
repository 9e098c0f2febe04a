package grace

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The model has nodes, whose processes crash and come back, clients with locks, and a file system
// with sessions: a session that was released can lock nothing any more. Each action of a process is
// a read of the state, the action itself, and a write over what was read, with other processes and
// crashes between.

const (
	modelNodes   = 3
	modelClients = 6
	modelLocks   = 4
)

type process struct {
	Self
	seen    State
	version int // of seen
	step    Step
	known   map[int]bool // clients that may reclaim
	started bool         // its own records are loaded
	pending []pending    // locks that are being granted
	leaving bool         // it serves no more, and has data to write
	closed  bool         // it has written it, and released what it had
	stalled bool         // it cannot beat: it grants nothing, and may be declared lost
	dead    bool
}

// pending is a lock that a process grants: it has looked whether it may, and takes the lock later.
type pending struct{ client, lock int }

type client struct {
	at    *process     // that it has used last
	locks map[int]bool // that it believes to have
}

type holder struct {
	boot   string
	client int
}

type record struct {
	node   string
	epoch  uint64
	client int
}

type model struct {
	t       *testing.T
	r       *rand.Rand
	log     []string
	state   State
	version int
	procs   []*process // of each node the last one; nil: it has none
	zombies []*process // that others have replaced
	clients [modelClients]client
	held    map[int]holder // locks of the file system
	ended   map[string]bool
	lost    map[string]bool // processes that were declared lost
	records map[record]bool
	boots   int
	// Counts of what has happened, to see that the test reaches it.
	grants, reclaims, lifts, conflicts, losses, expired, loads, late, left, again int
}

func (m *model) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	for _, l := range m.log[max(0, len(m.log)-200):] {
		m.t.Log(l)
	}
	m.t.Fatalf(format+"\nstate %+v", append(args, m.state)...)
}

// write is compare and write.
func (m *model) write(version int, next State) bool {
	if m.version != version {
		m.conflicts++
		return false
	}
	m.check(next)
	m.state, m.version = next, version+1
	return true
}

// check compares a state with the one before.
func (m *model) check(next State) {
	if next.Current < m.state.Current || next.Recovery != 0 && next.Recovery+1 != next.Current {
		m.fail("epochs %d, %d after %d, %d", next.Recovery, next.Current, m.state.Recovery, m.state.Current)
	}
	if m.state.Recovery == 0 || next.Recovery != 0 {
		return
	}
	m.lifts++
	for id, n := range m.state.Nodes {
		if n.Need || n.Leaving || len(n.Stale) > 0 || !n.Lost() && n.Epoch != m.state.Current {
			m.fail("the period ends, and node %s is %+v", id, n)
		}
	}
}

func (m *model) read(p *process) {
	p.seen, p.version, p.step, p.stalled = m.state, m.version, Step{}, false
}

// mayGrant is what a process goes by.
func (p *process) mayGrant() bool { return !p.stalled && p.seen.MayGrant(&p.Self) }

// load lets the clients of a node reclaim at a process.
func (m *model) load(p *process, id string) {
	if p.seen.Recovery == 0 {
		return
	}
	for r := range m.records {
		if r.node == id && r.epoch >= p.seen.Recovery {
			p.known[r.client] = true
		}
	}
}

// act does a part of what a process has to do.
func (m *model) act(p *process) {
	if len(p.pending) > 0 && m.r.IntN(8) == 0 {
		m.grant(p)
	}
	if p.leaving {
		m.leave(p)
	}
	if p.dead {
		return
	}
	switch m.r.IntN(3) {
	case 0:
		m.read(p)
		return
	case 1: // choose, and do the action
		m.loadOwn(p)
		p.Busy = len(p.pending) > 0
		p.step = p.seen.Next(&p.Self)
		switch p.step.Action {
		case Stop:
			m.note("%s stops", p.Boot)
			m.crash(p)
		case Copy:
			for c := range m.clients {
				if m.clients[c].at == p && len(m.clients[c].locks) > 0 {
					m.records[record{p.Node, p.seen.Current, c}] = true
				}
			}
			p.Epoch = p.seen.Current
			// What was loaded before was for another period.
			p.Loaded, p.Recovered = map[string]string{}, false
			clear(p.known)
		case Release:
			for _, b := range p.step.Boots {
				for _, q := range m.alive() {
					if q.Boot == b && q.leaving && !q.closed && !m.lost[b] {
						m.fail("%s releases %s, which writes data", p.Boot, b)
					}
				}
				m.note("%s releases %s", p.Boot, b)
				m.ended[b] = true
				for l, h := range m.held {
					if h.boot == b {
						delete(m.held, l)
					}
				}
			}
		case Load:
			m.loads++
			m.load(p, p.step.Node)
			if _, ok := p.Loaded[p.step.Node]; ok {
				m.again++
			}
			p.Loaded[p.step.Node], p.Recovered = p.seen.Nodes[p.step.Node].Was, false
		}
	case 2:
		s := p.step
		p.step = Step{}
		if s.Action != None && s.Action != Load && s.Action != Stop && m.write(p.version, s.State) {
			m.note("%s %v %s: %+v", p.Boot, s.Action, s.Node, m.state)
			m.read(p)
		}
	}
}

// loadOwn lets a process that came up know its own clients, once that is safe.
func (m *model) loadOwn(p *process) {
	if !p.started && p.seen.Nodes[p.Node].Boot == p.Boot && p.seen.Reclaimable(p.Node) {
		p.started = true
		m.load(p, p.Node)
	}
}

// recover ends the time of the clients that may reclaim at a process. Their leases have expired.
func (m *model) recover(p *process) {
	if p.Recovered || p.seen.Recovery == 0 || !p.seen.Reclaimable(p.Node) || !p.started && p.seen.Nodes[p.Node].Need {
		return
	}
	for c := range p.known {
		// A client of a process that was declared lost, and does not know it, can access no data there.
		at := m.clients[c].at
		if len(m.clients[c].locks) == 0 || m.state.Nodes[at.Node].Boot == at.Boot {
			continue
		}
		if loss, ok := p.Loaded[at.Node]; at.Node == p.Node || ok && loss == m.state.Nodes[at.Node].Was {
			m.expired++
			m.note("client %d has not come back", c)
			clear(m.clients[c].locks)
		}
	}
	p.Recovered = true
}

func (m *model) crash(p *process) {
	p.dead = true
	m.zombies = slices.DeleteFunc(m.zombies, func(q *process) bool { return q == p })
	if i := slices.Index(m.procs, p); i >= 0 {
		m.procs[i] = nil
	}
}

func (m *model) start(i int) {
	old, v := m.state, m.version
	if old.Nodes == nil {
		old = State{}
	}
	m.boots++
	p := &process{
		Self:  Self{Node: fmt.Sprint("n", i), Boot: fmt.Sprint("n", i, "b", m.boots), Loaded: map[string]string{}},
		known: make(map[int]bool),
	}
	next := old.Start(p.Node, p.Boot)
	if m.r.IntN(4) == 0 && m.version != v || !m.write(v, next) {
		return
	}
	m.lost[old.Nodes[p.Node].Boot] = true // elsewhere only a process starts whose name does not beat
	p.Epoch, p.started = next.Current, !next.Nodes[p.Node].Need
	m.read(p)
	m.note("%s starts: %+v", p.Boot, m.state)
	m.procs[i] = p
}

// settle lets the processes that there are go on without faults: a grace period ends.
func (m *model) settle() {
	for i := range m.procs {
		if m.procs[i] == nil && m.r.IntN(2) == 0 {
			m.start(i)
		}
	}
	for range 4000 {
		for len(m.alive()) == len(m.zombies) { // the service manager starts a daemon again
			m.start(m.r.IntN(modelNodes))
		}
		for _, p := range m.alive() {
			if m.r.IntN(4) == 0 {
				m.act(p)
			}
			if m.r.IntN(50) == 0 {
				m.recover(p)
			}
			if m.r.IntN(20) > 0 || p.dead {
				continue
			}
			for id, n := range p.seen.Nodes { // a node without a process does not beat
				if !n.Lost() && !slices.ContainsFunc(m.alive(), func(q *process) bool { return q.Boot == n.Boot }) {
					m.lose(p, id, p.Node)
				}
			}
		}
		if m.state.Recovery == 0 {
			return
		}
	}
	m.fail("the grace period does not end")
}

func run(t *testing.T, seed uint64) *model {
	m := &model{
		t: t, r: rand.New(rand.NewPCG(seed, 0)), procs: make([]*process, modelNodes), held: make(map[int]holder),
		ended: make(map[string]bool), lost: make(map[string]bool), records: make(map[record]bool),
	}
	m.note("seed %d", seed)
	for c := range m.clients {
		m.clients[c].locks = make(map[int]bool)
	}
	for range 20 {
		for range 150 {
			m.random()
		}
		if m.r.IntN(3) == 0 {
			m.settle()
		}
	}
	m.settle()
	return m
}

// TestModel: whatever crashes at whatever step, nobody gets a lock that another client may reclaim,
// each client has its time to reclaim, and the grace period ends.
func TestModel(t *testing.T) {
	base, rounds := rand.Uint64(), 200
	if testing.Short() {
		rounds = 50
	}
	t.Logf("seeds from %d", base)
	var sum model
	for i := range rounds {
		m := run(t, base+uint64(i))
		sum.grants += m.grants
		sum.reclaims += m.reclaims
		sum.lifts += m.lifts
		sum.conflicts += m.conflicts
		sum.losses += m.losses
		sum.expired += m.expired
		sum.loads += m.loads
		sum.late += m.late
		sum.left += m.left
		sum.again += m.again
	}
	t.Logf("%d grants, %d of them late, %d reclaims, %d without, %d periods, %d nodes lost, %d left, %d loads, "+
		"%d again, %d writes refused", sum.grants, sum.late, sum.reclaims, sum.expired, sum.lifts, sum.losses, sum.left,
		sum.loads, sum.again, sum.conflicts)
	if sum.grants < 10*rounds || sum.reclaims < rounds || sum.lifts < 5*rounds || sum.conflicts == 0 ||
		sum.loads < rounds || sum.late < rounds/4 || sum.left < rounds || sum.again == 0 {
		t.Error("the model has not reached what it is for")
	}
}
