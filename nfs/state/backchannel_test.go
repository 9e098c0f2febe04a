package state

import "testing"

// TestProbeNotBegun: a probe that cannot begin, because the connection has gone in between, does
// not keep the next connection from being tried out.
func TestProbeNotBegun(t *testing.T) {
	b := NewBackchannel(backAttr, 1, nil)
	first, second := new(path), new(path)
	b.Bind(first)
	if !b.Probe() {
		t.Fatal("a new connection is not to be tried out")
	}
	b.Unbind(first)
	if _, ok := b.Begin("probe"); ok {
		t.Fatal("an attempt without a connection")
	}
	b.Bind(second)
	if !b.Probe() {
		t.Error("the second connection is not to be tried out")
	}
}
