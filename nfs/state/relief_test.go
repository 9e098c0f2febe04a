package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/lock"
)

// TestRelief: who is asked to give delegations back, and how often.
func TestRelief(t *testing.T) {
	file := func(n int) lock.File {
		f := fileA
		f.Export = uint32(100 + n)
		return f
	}
	for _, c := range []struct {
		name       string
		all, each  int
		a, b       int // delegations of two clients, a's before b's
		crowded    bool
		askA, askB int // what each may keep; -1: is not asked
		refused    bool
		silent     bool // a is, when b is given its last
	}{
		{name: "room", all: 16, each: 16, a: 7, b: 6, askA: -1, askB: -1},
		{name: "own bound", all: 100, each: 8, a: 2, b: 7, crowded: true, askA: -1, askB: 6},
		{name: "that of all, by who has most", all: 16, each: 16, a: 9, b: 5, crowded: true, askA: 6, askB: -1},
		{name: "that of all, itself", all: 16, each: 100, a: 2, b: 12, crowded: true, askA: -1, askB: 9},
		{name: "who has most is silent", all: 16, each: 16, a: 9, b: 5, crowded: true, silent: true, askA: -1, askB: 3},
		{name: "full", all: 8, each: 100, a: 4, b: 5, crowded: true, refused: true, askA: 3, askB: -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := delegServer(t, Config{Delegations: c.all, ClientDelegations: c.each})
			a, _, _ := d.callable(begin, "a")
			b, _, _ := d.callable(begin, "b")
			for i := range c.a {
				d.give(a, begin, file(i), false)
			}
			now := begin
			if c.silent {
				now = now.Add(2 * time.Minute)
				b.renew(now)
			}
			var got Delegated
			var why WhyNot
			for i := range c.b {
				got, why = b.Delegate(now, &Delegate{File: file(1000 + i)})
			}
			if got.Crowded != c.crowded || (why != Given) != c.refused {
				t.Fatalf("crowded %v, %d", got.Crowded, why)
			}
			want := ""
			for _, w := range []RecallAny{{a, c.askA}, {b, c.askB}} {
				if w.Most >= 0 {
					want += fmt.Sprintf("%s keeps %d ", w.Client.owner, w.Most)
				}
			}
			said := func(now time.Time) (s string) {
				for _, r := range d.RecallAny(now, b) {
					s += fmt.Sprintf("%s keeps %d ", r.Client.owner, r.Most)
				}
				return s
			}
			if s := said(now); s != want {
				t.Errorf("%q instead of %q", s, want)
			}
			if s := said(now.Add(recallAnyAgain - 1)); s != "" {
				t.Errorf("at once again: %q", s)
			}
			if s := said(now.Add(recallAnyAgain)); s != want {
				t.Errorf("again: %q", s)
			}
		})
	}
}

// TestDelegationList: what the list says of each, by client and age.
func TestDelegationList(t *testing.T) {
	d := delegServer(t, Config{})
	a, _, _ := d.callable(begin, "a")
	b, _, _ := d.callable(begin, "b")
	later := begin.Add(time.Second)
	d.give(b, begin, fileB, true)
	other := fileA
	other.Export++
	d.give(a, later, fileA, false)
	d.give(a, begin, other, true)
	now := begin.Add(2 * time.Second)
	d.Free(now, fileA, b, true)
	d.recalls(true)
	d.Free(now, fileB, a, true)
	until := now.Add(90 * time.Second)
	want := []DelegInfo{
		{Client: a.ID, File: other, Write: true, Given: begin},
		{Client: a.ID, File: fileA, Given: later, Recalled: true, Acknowledged: true, Until: until},
		{Client: b.ID, File: fileB, Write: true, Given: begin, Recalled: true, Until: until},
	}
	got := d.DelegationList(10)
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i, g := range got {
		w := want[i]
		x := g
		x.Given, x.Until = w.Given, w.Until
		if x != w || !g.Given.Equal(w.Given) || !g.Until.Equal(w.Until) {
			t.Errorf("%+v instead of %+v", g, w)
		}
	}
	if got := d.DelegationList(2); len(got) != 2 || got[1].Client != a.ID {
		t.Errorf("bounded: %+v", got)
	}
	for _, c := range d.Clients(now) {
		if want := map[uint64]int{a.ID: 2, b.ID: 1}[c.ID]; c.Delegations != want {
			t.Errorf("%q has %d", c.Owner, c.Delegations)
		}
	}
}
