package grace

// Self is what a process knows of itself.
type Self struct {
	Node, Boot string
	// Epoch is the one that its records are written for. The process grants nothing new while the state
	// that it has read last has a grace period, or another Current.
	Epoch uint64
	// Recovered says that the clients of this node, and those of Loaded, have reclaimed or had their
	// time.
	Recovered bool
	// Loaded are the lost nodes whose clients may reclaim here, and for each the Node.Was of that loss.
	Loaded map[string]string
	// Busy says that a lock is being granted which was begun while MayGrant was true. The process
	// enforces no grace period before that has ended.
	Busy bool
}

// MayGrant reports whether the process may grant opens and locks. It is true until the process has
// read another state: the others wait for it.
func (s State) MayGrant(p *Self) bool {
	n, ok := s.Nodes[p.Node]
	return ok && n.Boot == p.Boot && !n.Leaving && s.Recovery == 0 && p.Epoch == s.Current
}

// Action is what a process has to do.
type Action uint8

// Actions. After each the process writes Step.State over the state that it has read.
const (
	None    Action = iota
	Stop           // serve no more: the process was declared lost, or another one has its name
	Copy           // write the records of all clients for the epoch Current
	Release        // release what Boots of Node had in the file system
	Load           // let the clients of Node reclaim: those with records of Recovery and Current
	Finish         // nothing: the clients have reclaimed
	Lift           // nothing: the grace period is over
)

func (a Action) String() string {
	return [...]string{"none", "stop", "copy", "release", "load", "finish", "lift"}[a]
}

// Step is an action and the state after it. Load changes no state.
type Step struct {
	Action
	Node  string
	Boots []string
	State State
}

// Next returns what a process has to do.
func (s State) Next(p *Self) Step {
	own, ok := s.Nodes[p.Node]
	switch {
	case !ok || own.Boot != p.Boot:
		return Step{Action: Stop}
	case own.Epoch != s.Current || p.Epoch != s.Current:
		if p.Busy {
			return Step{}
		}
		next := s.clone()
		own.Epoch = s.Current
		next.Nodes[p.Node] = own
		return Step{Action: Copy, State: next}
	case !s.Enforced() || own.Leaving:
		return Step{}
	}
	for _, id := range s.names() {
		n := s.Nodes[id]
		if len(n.Stale) > 0 && s.mine(p, id) {
			return Step{Action: Release, Node: id, Boots: n.Stale, State: s.adopt(p, id).Released(id, n.Stale)}
		}
	}
	for _, id := range s.Recovering() {
		if loss, ok := p.Loaded[id]; !ok || loss != s.Nodes[id].Was {
			return Step{Action: Load, Node: id}
		}
	}
	if p.Recovered {
		next, changed := s, false
		for _, id := range s.names() {
			if s.Nodes[id].Need && len(s.Nodes[id].Stale) == 0 && s.mine(p, id) {
				next, changed = next.adopt(p, id), true
				n := next.Nodes[id]
				n.Need = false
				next.Nodes[id] = n
			}
		}
		if changed {
			return Step{Action: Finish, State: next}
		}
	}
	if s.lifts() {
		return Step{Action: Lift, State: s.lift()}
	}
	return Step{}
}

// mine reports whether the process recovers the clients of a node: its own, and those of a lost node
// that no other node recovers which serves.
func (s State) mine(p *Self, id string) bool {
	n := s.Nodes[id]
	if !n.Lost() || id == p.Node {
		return id == p.Node
	}
	by, ok := s.Nodes[n.By]
	return n.By == p.Node || !ok || by.Lost() || by.Leaving
}

// adopt returns a state to change, in which the process recovers the clients of a node.
func (s State) adopt(p *Self, id string) State {
	s = s.clone()
	if n := s.Nodes[id]; id != p.Node {
		n.By = p.Node
		s.Nodes[id] = n
	}
	return s
}
