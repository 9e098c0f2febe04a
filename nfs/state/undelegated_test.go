package state

import (
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
)

// TestUndelegated: what a transport's loop asks recalls and revokes nothing, also when the client
// is silent.
func TestUndelegated(t *testing.T) {
	d := delegServer(t, Config{})
	a, _, _ := d.callable(begin, "a")
	b, _, _ := d.callable(begin, "b")
	id := d.give(a, begin, fileA, true)
	read := d.give(a, begin, fileB, false)
	for _, c := range []struct {
		file   lock.File
		by     *Client
		change bool
		want   bool
	}{
		{fileA, nil, false, false},
		{fileA, b, false, false},
		{fileA, a, true, true},
		{fileB, b, false, true},
		{fileB, b, true, false},
	} {
		if got := d.Undelegated(c.file, c.by, c.change); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if n := d.recalls(true); len(n) != 0 {
		t.Errorf("%d recalls", len(n))
	}
	for what, st := range map[string]nfs.Status{"write": a.TestStateid(id), "read": a.TestStateid(read)} {
		if st != nfs.OK {
			t.Errorf("%s delegation: %v", what, st)
		}
	}
}
