package grace

import "testing"

// TestLostTwice: clients of a node that is lost twice in one grace period have their time twice.
func TestLostTwice(t *testing.T) {
	s := State{}.Start("a", "a1").Start("b", "b1")
	b := &Self{Node: "b", Boot: "b1", Epoch: 1, Loaded: make(map[string]string)}
	next := func(want Action) {
		t.Helper()
		step := s.Next(b)
		if step.Action != want {
			t.Fatalf("%v, want %v: %+v", step.Action, want, s)
		}
		switch want {
		case Copy:
			b.Epoch = s.Current
		case Load:
			b.Loaded[step.Node], b.Recovered = s.Nodes[step.Node].Was, false
			return
		}
		s = step.State
	}
	s = s.Lose("a", "b")
	next(Copy)
	next(Release)
	next(Load)
	b.Recovered = true
	s = s.Start("a", "a2") // and its clients reclaim there
	s = s.Lose("a", "b")
	next(Release)
	next(Load)
	b.Recovered = true
	next(Finish)
	next(Lift)
}

// TestLeave: a node that leaves is not released by others before it has left, and its clients reclaim
// elsewhere.
func TestLeave(t *testing.T) {
	s := State{}.Start("a", "a1").Start("b", "b1").Leave("a")
	a := &Self{Node: "a", Boot: "a1", Epoch: 1, Recovered: true}
	b := &Self{Node: "b", Boot: "b1", Epoch: 1, Recovered: true}
	if s.MayGrant(a) || s.MayGrant(b) || s.Enforced() {
		t.Fatalf("a node leaves, and others grant: %+v", s)
	}
	for _, p := range []*Self{a, b} {
		step := s.Next(p)
		if step.Action != Copy {
			t.Fatalf("%s: %v", p.Node, step.Action)
		}
		s, p.Epoch = step.State, s.Current
	}
	if !s.Enforced() {
		t.Fatalf("all nodes have stopped: %+v", s)
	}
	for _, p := range []*Self{a, b} {
		if step := s.Next(p); step.Action != None {
			t.Fatalf("%s: %v before the node has left", p.Node, step.Action)
		}
	}
	if s = s.Left("a", "a1"); len(s.Nodes["a"].Stale) > 0 || !s.Nodes["a"].Need {
		t.Fatalf("a node that has left: %+v", s)
	}
	if step := s.Next(b); step.Action != Load || step.Node != "a" {
		t.Fatalf("%v: the clients of the node cannot reclaim", step.Action)
	}
}
