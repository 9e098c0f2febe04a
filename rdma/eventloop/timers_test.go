package eventloop

import (
	"slices"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// TestTimers: timers fire in the order of their times, can be set from their own functions, and
// move to earlier times only.
func TestTimers(t *testing.T) {
	var all Timers
	var fired []string
	note := func(name string) func() { return func() { fired = append(fired, name) } }
	if all.Next() != 0 {
		t.Error("an empty heap has a deadline")
	}
	a := Timer{Fn: note("a")}
	b := Timer{}
	b.Fn = func() {
		note("b")()
		if len(fired) < 5 {
			all.Set(&b, 40)
		}
	}
	all.Set(&a, 30)
	all.Set(&a, 50) // stays at 30
	all.Set(&b, 20)
	all.After(0, 10, note("c"))
	cancel := all.After(0, 15, note("never"))
	cancel()
	cancel()
	all.After(25, -3, note("d")) // at 26: a time that has passed counts as the next nanosecond
	if all.Next() != 10 {
		t.Errorf("the next deadline is %d", all.Next())
	}
	all.Set(&a, 12)
	all.Expire(26)
	if want := []string{"c", "a", "b", "d"}; !slices.Equal(fired, want) {
		t.Errorf("%v, want %v", fired, want)
	}
	all.Expire(rdma.Second)
	if want := []string{"c", "a", "b", "d", "b"}; !slices.Equal(fired, want) || all.Next() != 0 {
		t.Errorf("%v, want %v; the next deadline is %d", fired, want, all.Next())
	}
}

// TestBatch: values that are added after Take are for the next Take. Take allocates nothing.
func TestBatch(t *testing.T) {
	var b Batch[*int]
	one, two := 1, 2
	b.Add(&one)
	for range 3 {
		n := 0
		for _, v := range b.Take() {
			n++
			if v != &one {
				t.Fatal("a value of the next turn")
			}
			b.Add(&two)
		}
		if n != 1 || b.Len() != 1 {
			t.Fatalf("%d values taken, %d left", n, b.Len())
		}
		for range b.Take() {
			b.Add(&one)
		}
	}
	sum := 0
	if n := testing.AllocsPerRun(100, func() {
		for _, v := range b.Take() {
			sum += *v
			b.Add(v)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
