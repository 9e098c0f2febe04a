package eventloop

import (
	"sync"
	"testing"
)

func TestInbox(t *testing.T) {
	var b Inbox
	var got []int
	put := func(n int) (taken, first bool) { return b.Put(func() { got = append(got, n) }) }
	if taken, first := put(1); !taken || !first {
		t.Error("the first one")
	}
	if taken, first := put(2); !taken || first || !b.Waits() {
		t.Error("the second one")
	}
	b.Run()
	if b.Waits() || len(got) != 2 || got[0] != 1 || got[1] != 2 {
		t.Errorf("ran %v", got)
	}
	if _, first := put(3); !first {
		t.Error("the first one after a turn wakes nobody")
	}
	if left := b.Close(); len(left) != 1 {
		t.Errorf("%d are left", len(left))
	}
	if taken, _ := put(4); taken {
		t.Error("a closed inbox takes more")
	}
}

// TestMany: each function runs once, though many goroutines submit while one runs them.
func TestMany(t *testing.T) {
	var b Inbox
	var all sync.WaitGroup
	const goroutines, each = 8, 1000
	n := 0
	for range goroutines {
		all.Go(func() {
			for range each {
				b.Put(func() { n++ })
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		b.Run()
	}
	if n != goroutines*each {
		t.Errorf("%d ran", n)
	}
}
