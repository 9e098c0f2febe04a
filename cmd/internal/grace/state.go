package grace

import (
	"maps"
	"slices"
)

// State is what the nodes share.
type State struct {
	// Current is the epoch of new records. Clients with records of Recovery may reclaim; 0: there is no
	// grace period.
	Current  uint64          `json:"current"`
	Recovery uint64          `json:"recovery"`
	Nodes    map[string]Node `json:"nodes"`
}

// Node is a server.
type Node struct {
	// Boot is the process that serves; "": it was lost, and its clients reclaim elsewhere.
	Boot string `json:"boot"`
	// Epoch is the one that its records are written for. If that is Current during a grace period, the
	// node enforces the period.
	Epoch uint64 `json:"epoch"`
	// Need says that its clients have not reclaimed yet.
	Need bool `json:"need,omitempty"`
	// Stale are processes of the node whose locks in the file system are not released.
	Stale []string `json:"stale,omitempty"`
	// Was is the process that was lost last. A node can be lost twice in one grace period: each loss
	// lets its clients reclaim anew.
	Was string `json:"was,omitempty"`
	// By is the node that recovers the clients of a lost one.
	By string `json:"by,omitempty"`
	// Leaving says that the process serves no more, and will release by itself what it has in the file
	// system, once all nodes enforce the period. Nobody else may do it before: it may have data to
	// write.
	Leaving bool `json:"leaving,omitempty"`
	// Drain asks the node to leave.
	Drain bool `json:"drain,omitempty"`
}

// Lost reports whether the node has no process.
func (n Node) Lost() bool { return n.Boot == "" }

// clone returns a copy to change.
func (s State) clone() State {
	s.Nodes = maps.Clone(s.Nodes)
	if s.Nodes == nil {
		s.Nodes = make(map[string]Node)
	}
	return s
}

// begin begins a grace period, unless one lasts.
func (s *State) begin() {
	if s.Recovery == 0 {
		s.Recovery, s.Current = s.Current, s.Current+1
	}
}

// stale moves the process of a node to those that are not released.
func (n *Node) stale() {
	if n.Boot != "" {
		n.Stale, n.Was, n.Boot = append(slices.Clone(n.Stale), n.Boot), n.Boot, ""
	}
	n.Leaving = false
}

// Start adds a process of a node, which comes up. A node that is not in the state had no clients, and
// begins no grace period.
func (s State) Start(id, boot string) State {
	s = s.clone()
	s.Current = max(s.Current, 1)
	n, was := s.Nodes[id]
	if was {
		s.begin()
		n.stale()
		n.Need = true
	}
	n.Boot, n.Epoch, n.By, n.Drain = boot, s.Current, "", false
	s.Nodes[id] = n
	return s
}

// Lose records that the process of a node is lost. by recovers its clients; "": whichever node finds
// it first.
func (s State) Lose(id, by string) State {
	s = s.clone()
	s.begin()
	n := s.Nodes[id]
	n.stale()
	n.Need, n.By, n.Drain = true, by, false
	s.Nodes[id] = n
	return s
}

// Leave says that a node with clients serves no more: they may reclaim elsewhere once it has Left.
func (s State) Leave(id string) State {
	s = s.clone()
	s.begin()
	n := s.Nodes[id]
	n.Need, n.Leaving = true, true
	s.Nodes[id] = n
	return s
}

// Left removes a process that has released what it had in the file system. It had no clients, or has
// waited after Leave until all nodes enforce the grace period.
func (s State) Left(id, boot string) State {
	n, ok := s.Nodes[id]
	switch {
	case !ok: // it was declared lost, and the period is over
		return s
	case n.Boot != boot:
		return s.Released(id, []string{boot})
	}
	s = s.clone()
	if !n.Need && len(n.Stale) == 0 {
		delete(s.Nodes, id)
		return s
	}
	n.Was, n.Boot, n.By, n.Drain, n.Leaving = n.Boot, "", "", false, false
	s.Nodes[id] = n
	return s
}

// Drain asks a node to leave.
func (s State) Drain(id string) State {
	s = s.clone()
	n := s.Nodes[id]
	n.Drain = true
	s.Nodes[id] = n
	return s
}

// Released records that what some processes of a node had in the file system is released.
func (s State) Released(id string, boots []string) State {
	s = s.clone()
	n := s.Nodes[id]
	n.Stale = slices.DeleteFunc(slices.Clone(n.Stale), func(b string) bool { return slices.Contains(boots, b) })
	s.Nodes[id] = n
	return s
}

// Enforced reports whether nobody gets anything new: all nodes that live have stopped granting.
func (s State) Enforced() bool {
	for _, id := range s.names() {
		if n := s.Nodes[id]; !n.Lost() && n.Epoch != s.Current {
			return false
		}
	}
	return s.Recovery != 0
}

// Reclaimable reports whether the clients of a node may reclaim now.
func (s State) Reclaimable(id string) bool {
	n, ok := s.Nodes[id]
	return ok && s.Enforced() && len(n.Stale) == 0
}

// Recovering are the lost nodes whose clients may reclaim at any other node, in order.
func (s State) Recovering() []string {
	var out []string
	for _, id := range s.names() {
		if s.Nodes[id].Lost() && s.Reclaimable(id) {
			out = append(out, id)
		}
	}
	return out
}

// lifts reports whether the period can end.
func (s State) lifts() bool {
	for _, id := range s.names() {
		if n := s.Nodes[id]; n.Need || len(n.Stale) > 0 {
			return false
		}
	}
	return s.Enforced()
}

// lift ends the period. Records of lost nodes are void from now on.
func (s State) lift() State {
	s = s.clone()
	s.Recovery = 0
	maps.DeleteFunc(s.Nodes, func(_ string, n Node) bool { return n.Lost() })
	return s
}

// names are the nodes in order.
func (s State) names() []string { return slices.Sorted(maps.Keys(s.Nodes)) }
