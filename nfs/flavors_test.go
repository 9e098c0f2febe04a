package nfs

import (
	"slices"
	"testing"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestFlavors: a set accepts what is in it and nothing else, the flavor of the wire included.
func TestFlavors(t *testing.T) {
	bits := map[rpc.AuthFlavor]Flavors{
		rpc.AuthSys: FlavorSys, rpc.AuthNone: FlavorNone, rpc.AuthKrb5: FlavorKrb5, rpc.AuthKrb5i: FlavorKrb5i,
		rpc.AuthKrb5p: FlavorKrb5p,
	}
	for f := range 1 << len(bits) {
		set := Flavors(f)
		for a, bit := range bits {
			if got := set.Has(a); got != (set == 0 || set&bit != 0) {
				t.Errorf("%b has %d: %v", set, a, got)
			}
			if set != 0 && slices.Contains(set.List(), a) != set.Has(a) {
				t.Errorf("%b lists %d", set, set.List())
			}
		}
		for _, a := range []rpc.AuthFlavor{2, 3, rpc.AuthGSS, rpc.AuthTLS, 390000, 390002, 390006, 1 << 31} {
			if set.Has(a) {
				t.Errorf("%b has %d", set, a)
			}
		}
	}
	if l := Flavors(0).List(); len(l) != 2 {
		t.Errorf("without a word about flavors %d are named", l)
	}
}
