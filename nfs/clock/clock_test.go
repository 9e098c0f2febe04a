package clock

import (
	"testing"
	"time"
)

// TestNow: times never go back, go on as fast as Go's clock, and read like the wall clock.
func TestNow(t *testing.T) {
	if d := time.Until(Now()).Abs(); d > time.Hour {
		t.Errorf("%v from the wall clock", d)
	}
	began, at := time.Now(), Now()
	last := at
	for range 10000 {
		n := Now()
		if n.Before(last) {
			t.Fatalf("%v after %v", n, last)
		}
		last = n
	}
	time.Sleep(time.Millisecond)
	if got, most := -Until(at), time.Since(began); got < time.Millisecond || got > most+time.Millisecond {
		t.Errorf("%v of %v", got, most)
	}
	if d := Until(at); d >= 0 {
		t.Errorf("%v until a time that was", d)
	}
	if s := at.String(); s != at.Round(0).String() {
		t.Errorf("%s has a monotonic reading, which stands while the host sleeps", s)
	}
}
