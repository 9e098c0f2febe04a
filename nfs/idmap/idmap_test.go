package idmap

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// people is a source that counts what it is asked.
type people struct {
	mu    sync.Mutex
	asked int
	fail  error
	wait  chan struct{}
}

func (p *people) count() {
	p.mu.Lock()
	p.asked++
	p.mu.Unlock()
	if p.wait != nil {
		<-p.wait
	}
}

func (p *people) Name(id uint32, group bool) (string, error) {
	p.count()
	switch {
	case p.fail != nil:
		return "", p.fail
	case id == 1000 && !group:
		return "ada", nil
	case id == 1000:
		return "staff", nil
	case id == 7:
		return "odd@name", nil
	}
	return "", ErrUnknown
}

func (p *people) ID(name string, group bool) (uint32, error) {
	p.count()
	switch {
	case p.fail != nil:
		return 0, p.fail
	case name == "ada" && !group, name == "staff" && group:
		return 1000, nil
	}
	return 0, ErrUnknown
}

func TestMap(t *testing.T) {
	for _, names := range []bool{false, true} {
		m := New(Config{Domain: "Example.org", Names: names, Source: new(people)})
		for _, c := range []struct {
			id    uint32
			group bool
			want  string
		}{
			{1000, false, "ada@Example.org"},
			{1000, true, "staff@Example.org"},
			{0, false, "0"},
			{7, true, "7"},
			{4294967294, false, "4294967294"},
		} {
			want := c.want
			if !names {
				want = fmt.Sprint(c.id)
			}
			if got := string(m.Append([]byte("x"), c.id, c.group)); got != "x"+want {
				t.Errorf("names %v: %d is %q", names, c.id, got)
			}
		}
		for _, c := range []struct {
			who   string
			group bool
			id    uint32
			ok    bool
		}{
			{"ada@Example.org", false, 1000, true},
			{"ada@example.ORG", false, 1000, true},
			{"ada@example.org", true, 0, false},
			{"staff@example.org", true, 1000, true},
			{"ada", false, 0, false},
			{"ada@", false, 0, false},
			{"@example.org", false, 0, false},
			{"ada@example.com", false, 0, false},
			{"ada@b@example.org", false, 0, false},
			{"ada@example.org.", false, 0, false},
			{"eve@example.org", false, 0, false},
			{"0", false, 0, true},
			{"1000", true, 1000, true},
			{"4294967295", false, 4294967295, true},
			{"4294967296", false, 0, false},
			{"007", false, 0, false},
			{"+7", false, 0, false},
			{"-2", false, 0, false},
			{"", false, 0, false},
			{strings.Repeat("a", 1000) + "@example.org", false, 0, false},
		} {
			if id, ok := m.Parse([]byte(c.who), c.group); id != c.id || ok != c.ok {
				t.Errorf("%q, group %v: %d, %v", c.who, c.group, id, ok)
			}
		}
	}
}

// TestKept: for how long, and how much.
func TestKept(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		name string
		who  string
		fail error
		keep time.Duration
	}{
		{"known", "ada@d", nil, keepFor},
		{"unknown", "eve@d", nil, missFor},
		{"failed", "ada@d", errors.New("no answer"), failFor},
	} {
		p := &people{fail: c.fail}
		m := New(Config{Domain: "d", Source: p, Now: func() time.Time { return now }})
		for _, s := range []struct {
			later time.Duration
			asked int
		}{{0, 1}, {0, 1}, {c.keep - 1, 1}, {1, 2}, {0, 2}} {
			now = now.Add(s.later)
			m.Parse([]byte(c.who), false)
			if p.asked != s.asked {
				t.Errorf("%s: asked %d times instead of %d", c.name, p.asked, s.asked)
			}
		}
	}
	p := new(people)
	m := New(Config{Domain: "d", Names: true, Source: p, Now: func() time.Time { return now }, Entries: 10})
	for i := range 100 {
		m.Append(nil, uint32(i), false)
		m.Parse(fmt.Appendf(nil, "u%d@d", i), true)
	}
	if len(m.names.m) != 10 || len(m.ids.m) != 10 || len(m.names.asked) != 0 {
		t.Errorf("%d names, %d numbers, %d questions", len(m.names.m), len(m.ids.m), len(m.names.asked))
	}
}

// TestAskedOnce: however many want it at once.
func TestAskedOnce(t *testing.T) {
	p := &people{wait: make(chan struct{})}
	m := New(Config{Domain: "d", Names: true, Source: p})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got := string(m.Append(nil, 1000, false)); got != "ada@d" {
				t.Error(got)
			}
		})
	}
	close(p.wait)
	wg.Wait()
	if p.asked != 1 {
		t.Errorf("asked %d times", p.asked)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("ada@d"))
	f.Add([]byte("0"))
	m := New(Config{Domain: "d", Source: new(people), Entries: 8})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, ok := m.Parse(b, false)
		if ok && id != 1000 && string(m.Append(nil, id, false)) != string(b) {
			t.Errorf("%q is %d", b, id)
		}
	})
}

// Groups implements Source: the user 7 is in many groups.
func (p *people) Groups(uid uint32) ([]uint32, error) {
	if uid != 7 {
		return nil, ErrUnknown
	}
	p.count()
	return make([]uint32, 70000), nil
}

func TestGroups(t *testing.T) {
	p := new(people)
	now := time.Unix(1e9, 0)
	m := New(Config{Source: p, Now: func() time.Time { return now }})
	if _, _, ready := m.Groups(7, false); ready {
		t.Error("known without asking")
	}
	for range 3 {
		if list, ok, ready := m.Groups(7, true); !ok || !ready || len(list) != groupsMax {
			t.Errorf("%d groups, %v, %v", len(list), ok, ready)
		}
	}
	if list, ok, ready := m.Groups(7, false); !ok || !ready || len(list) != groupsMax {
		t.Errorf("kept: %d groups, %v, %v", len(list), ok, ready)
	}
	if n := p.asked; n != 1 {
		t.Errorf("asked %d times", n)
	}
	if _, ok, ready := m.Groups(8, true); ok || !ready {
		t.Errorf("nobody: %v, %v", ok, ready)
	}
	now = now.Add(missFor)
	if _, _, ready := m.Groups(8, false); ready {
		t.Error("that there is nobody is known for ever")
	}
	if _, _, ready := m.Groups(7, false); !ready {
		t.Error("groups are forgotten early")
	}
	now = now.Add(groupsKeep)
	if _, _, ready := m.Groups(7, false); ready {
		t.Error("groups are kept for ever")
	}
	m.Groups(7, true)
	m.Flush()
	if _, _, ready := m.Groups(7, false); ready {
		t.Error("groups are kept over a flush")
	}
}
