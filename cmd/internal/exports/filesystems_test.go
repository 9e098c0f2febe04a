package exports

import (
	"testing"

	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/state"
)

// TestRecognize: an identity that was recorded stays as long as what is known of the
// filesystem says that it is the same.
func TestRecognize(t *testing.T) {
	one, two := [16]byte{1}, [16]byte{2}
	const hexOne = "01000000000000000000000000000000"
	for name, x := range map[string]struct {
		was   state.Filesystem
		found posixfs.Filesystem
		same  bool
	}{
		"first use": {state.Filesystem{}, posixfs.Filesystem{UUID: one, Statfs: 7}, false},
		"as before": {
			state.Filesystem{UUID: hexOne, Statfs: 7, ID: 9},
			posixfs.Filesystem{UUID: one, Statfs: 7},
			true,
		},
		"another device": {
			state.Filesystem{UUID: hexOne, Statfs: 7, ID: 9},
			posixfs.Filesystem{UUID: one, Statfs: 8},
			true,
		},
		"another filesystem": {
			state.Filesystem{UUID: hexOne, Statfs: 7, ID: 9},
			posixfs.Filesystem{UUID: two, Statfs: 7},
			false,
		},
		"no UUID":                 {state.Filesystem{Statfs: 7, ID: 9}, posixfs.Filesystem{Statfs: 7}, true},
		"no UUID, another device": {state.Filesystem{Statfs: 7, ID: 9}, posixfs.Filesystem{Statfs: 8}, false},
		"the kernel tells the UUID " +
			"now": {state.Filesystem{Statfs: 7, ID: 9}, posixfs.Filesystem{UUID: one, Statfs: 7}, true},
		"the kernel does not tell it " +
			"now": {state.Filesystem{UUID: hexOne, Statfs: 7, ID: 9}, posixfs.Filesystem{Statfs: 7}, true},
	} {
		is, same := recognize(x.was, &x.found)
		if same != x.same || same != (is.ID == x.was.ID) || is.Statfs != x.found.Statfs {
			t.Errorf("%s: %+v, %v", name, is, same)
		}
		if (x.found.UUID == one || x.was.UUID == hexOne && same) && is.UUID != hexOne {
			t.Errorf("%s: UUID %q", name, is.UUID)
		}
	}
}

// TestDependsOn: what the handles of an export depend on.
func TestDependsOn(t *testing.T) {
	uuid := posixfs.Filesystem{UUID: [16]byte{1}, Statfs: 7}
	for want, f := range map[string]filesystem{
		"":                     {Filesystem: uuid, id: uuid.ID()},
		control.IdentityState:  {Filesystem: uuid, id: 9},
		control.IdentityDevice: {Filesystem: posixfs.Filesystem{Statfs: 7, ByDevice: true}, id: 9},
	} {
		if got := f.dependsOn(); got != want {
			t.Errorf("%+v: %q, not %q", f, got, want)
		}
	}
}
