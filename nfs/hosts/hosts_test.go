package hosts

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// world is a Source, a clock, and a background that runs when it is told to.
type world struct {
	addrs  map[string]string
	names  map[string]string
	groups map[string]string
	down   bool
	asked  int
	now    time.Time
	jobs   []func()
	log    strings.Builder
}

var errDown = errors.New("no server answers")

func (w *world) Addrs(name string) (out []netip.Addr, err error) {
	w.asked++
	if w.down {
		return nil, errDown
	}
	for _, a := range strings.Fields(w.addrs[name]) {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

func (w *world) Names(a netip.Addr) ([]string, error) {
	w.asked++
	if w.down {
		return nil, errDown
	}
	return strings.Fields(w.names[a.String()]), nil
}

func (w *world) Members(group string) ([]string, error) {
	w.asked++
	if w.down {
		return nil, errDown
	}
	return strings.Fields(w.groups[group]), nil
}

func (w *world) run() {
	for len(w.jobs) > 0 {
		j := w.jobs[0]
		w.jobs = w.jobs[1:]
		j()
	}
}

func newWorld(peers int) (*world, *Hosts) {
	w := &world{
		addrs: map[string]string{
			"a.example.org": "10.0.0.1 2001:db8::1", "b.example.org": "::ffff:10.0.0.2", "evil.example.org": "10.9.9.9",
			"c.x.example.org": "10.0.0.3",
		},
		names: map[string]string{
			"10.0.0.1": "A.Example.ORG.", "10.0.0.2": "b.example.org", "10.0.0.66": "a.example.org",
			"10.0.0.3": "c.x.example.org other.example.com",
		},
		groups: map[string]string{"ours": "a b.example.org 10.0.0.7"},
		now:    time.Unix(1e9, 0),
	}
	h := New(Config{
		Source: w, Now: func() time.Time { return w.now }, Start: func(f func()) { w.jobs = append(w.jobs, f) },
		Logger: slog.New(slog.NewTextHandler(&w.log, nil)), Peers: peers,
	})
	return w, h
}

func TestIs(t *testing.T) {
	for _, c := range []struct {
		addr, name string
		want       bool
	}{
		{"10.0.0.1", "a.example.org", true},
		{"10.0.0.1", "A.EXAMPLE.org", true},
		{"2001:db8::1", "a.example.org", true},
		{"10.0.0.2", "b.example.org", true},
		{"10.0.0.2", "a.example.org", false},
		{"10.0.0.1", "nobody.example.org", false},
		{"10.0.0.1", "*.example.org", true},
		{"10.0.0.3", "*.example.org", true}, // dots match too
		{"10.0.0.3", "*.example.com", false},
		{"10.0.0.1", "?.example.org", true},
		{"10.0.0.1", "[b-z].example.org", false},
		{"10.0.0.66", "*.example.org", false}, // it claims a name that is another's
		{"10.0.0.77", "*", false},             // it has no name
		{"10.0.0.1", "@ours", true},
		{"10.0.0.2", "@ours", true},
		{"10.0.0.7", "@ours", true},
		{"10.0.0.3", "@ours", false},
		{"10.0.0.1", "@theirs", false},
	} {
		w, h := newWorld(0)
		a := netip.MustParseAddr(c.addr)
		if _, known := h.Is(a, c.name); known {
			t.Fatalf("%s is %s: known without asking", c.addr, c.name)
		}
		w.run()
		if is, known := h.Is(a, c.name); !known || is != c.want {
			t.Errorf("%s is %s: %v, known %v", c.addr, c.name, is, known)
		}
	}
}

// TestFailure lets the source fail: what was known stays, is asked for again, and is told once.
func TestFailure(t *testing.T) {
	w, h := newWorld(0)
	a := netip.MustParseAddr("10.0.0.1")
	h.Want([]string{"a.example.org"})
	w.run()
	is := func() bool {
		t.Helper()
		is, known := h.Is(a, "a.example.org")
		if !known {
			t.Fatal("not known")
		}
		return is
	}
	asked := w.asked
	if !is() || len(w.jobs) > 0 {
		t.Fatal("asked again at once")
	}
	w.down = true
	for range 3 {
		w.now = w.now.Add(freshFor)
		if !is() {
			t.Fatal("what was known has gone")
		}
		w.run()
	}
	if !is() || w.asked != asked+3 {
		t.Errorf("asked %d times", w.asked-asked)
	}
	if n := strings.Count(w.log.String(), "cannot be looked up"); n != 1 {
		t.Errorf("told %d times: %s", n, w.log.String())
	}
	w.down = false
	w.addrs["a.example.org"] = "10.0.0.5"
	w.now = w.now.Add(retryAfter)
	is()
	w.run()
	if is() {
		t.Error("the old address is still good")
	}
	// One that never had an answer is nobody, not unknown for ever.
	w, h = newWorld(0)
	w.down = true
	h.Is(a, "a.example.org")
	w.run()
	if is, known := h.Is(a, "a.example.org"); is || !known {
		t.Errorf("after a failure: %v, known %v", is, known)
	}
}

// TestBounds asks about more clients than there is room for, with no answer coming.
func TestBounds(t *testing.T) {
	w, h := newWorld(8)
	a := netip.MustParseAddr("10.1.0.0")
	for range 100 {
		a = a.Next()
		h.Is(a, "*.example.org")
	}
	if len(w.jobs) != askers {
		t.Errorf("%d questions under way", len(w.jobs))
	}
	w.run()
	for range 100 {
		a = a.Next()
		h.Is(a, "*.example.org")
		w.run()
	}
	if n := len(h.peers); n > 8+askers {
		t.Errorf("%d clients kept", n)
	}
	h.Want(nil)
	if len(h.hosts)+len(h.groups) > 0 {
		t.Error("names that nobody wants are kept")
	}
}

func TestWait(t *testing.T) {
	w, h := newWorld(0)
	a := netip.MustParseAddr("10.0.0.1")
	h.Is(a, "*.example.org")
	ended := make(chan struct{})
	go func() {
		h.Wait(a, nil)
		close(ended)
	}()
	w.run()
	<-ended
	if is, known := h.Is(a, "*.example.org"); !is || !known {
		t.Errorf("after waiting: %v, known %v", is, known)
	}
	h.Is(netip.MustParseAddr("10.0.0.2"), "*.example.org") // no answer comes
	done := make(chan struct{})
	close(done)
	h.Wait(netip.MustParseAddr("10.0.0.2"), done)
}

func TestCheckName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "a.b-c_d.org": true, "*.org": true, "n[0-9]?.x": true, "@g": true, "@g-1.x": true,
		"": false, "-x": false, ".x": false, "a b": false, "a/b": false, "@": false, "@-x": false, "a@b": false, "[": false,
		"a\x00":                  false,
		strings.Repeat("a", 256): false,
	} {
		if got := CheckName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
