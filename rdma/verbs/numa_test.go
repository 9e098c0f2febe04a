//go:build rdmacore && linux && cgo

package verbs

import "testing"

func TestParseCPUs(t *testing.T) {
	for _, c := range []struct {
		in string
		n  int
		ok bool
	}{
		{"0", 1, true},
		{"0-3", 4, true},
		{"0-1,16-18", 5, true},
		{"", 0, false},
		{"3-1", 0, false},
		{"a-b", 0, false},
		{"0-99999", 0, false},
		{"-1", 0, false},
	} {
		set, ok := parseCPUs(c.in)
		if ok != c.ok || set.Count() != c.n {
			t.Errorf("%q: %d processors, %v", c.in, set.Count(), ok)
		}
	}
}
