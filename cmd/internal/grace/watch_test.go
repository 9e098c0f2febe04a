package grace

import "testing"

// TestWatch: a node is lost when its count stands still for the patience of a watcher that could read
// all the time.
func TestWatch(t *testing.T) {
	w := Watch{Patience: 100, Gap: 30}
	read := func(at int64, count string) { w.Read(at, at+1, map[string]string{"a": count}) }
	for at := int64(10); at <= 110; at += 10 {
		if read(at, "1"); w.Lost("a") {
			t.Fatalf("lost at %d", at)
		}
	}
	if read(120, "1"); !w.Lost("a") {
		t.Fatal("not lost")
	}
	read(130, "2")
	if w.Lost("a") || !w.AliveSince("a", 119) || w.AliveSince("a", 120) {
		t.Fatal("a node that beats")
	}
	// Nothing could be read for a while, by this node or by all of them.
	read(140, "2")
	read(900, "2")
	if w.Lost("a") {
		t.Fatal("lost after a gap")
	}
	for at := int64(910); at <= 1000; at += 10 {
		read(at, "2")
	}
	if w.Lost("a") {
		t.Fatal("lost too early after a gap")
	}
	if read(1010, "2"); !w.Lost("a") {
		t.Fatal("not lost after a gap")
	}
	if w.Lost("b") || w.AliveSince("b", 0) {
		t.Fatal("a node that was never seen")
	}
}
