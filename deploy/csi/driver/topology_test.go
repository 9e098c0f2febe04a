package driver

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// TestAccessible: which topologies of a class a volume is made for.
func TestAccessible(t *testing.T) {
	node := func(kv ...string) *csi.Topology {
		s := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			s[kv[i]] = kv[i+1]
		}
		return &csi.Topology{Segments: s}
	}
	for _, tt := range []struct {
		class string
		nodes []*csi.Topology
		want  int // topologies of the volume; -1: refused
	}{
		{"", nil, 0},
		{"", []*csi.Topology{node("net", "a")}, 0},
		{"net=a", nil, 1},
		{"net=a;net=b", nil, 2},
		{"net=a;net=b", []*csi.Topology{node("net", "b", "zone", "z")}, 1},
		{"net=a", []*csi.Topology{node("net", "b"), node("net", "a")}, 1},
		{"net=a", []*csi.Topology{node("net", "b")}, -1},
		{"net=a, zone=z", []*csi.Topology{node("net", "a"), node("zone", "z")}, -1},
		{"net=a,zone=z", []*csi.Topology{node("net", "a", "zone", "z")}, 1},
	} {
		class, err := parseTopology(tt.class)
		if err != nil {
			t.Fatal(err)
		}
		got, err := accessible(class, &csi.TopologyRequirement{Requisite: tt.nodes})
		if tt.want < 0 {
			code(t, err, codes.ResourceExhausted, "topology")
			continue
		}
		if err != nil || len(got) != tt.want {
			t.Errorf("%q for %v: %v, %v", tt.class, tt.nodes, got, err)
		}
	}
	for _, bad := range []string{
		"net", "net=", "=a", "net=a,net=b", ";", "net=a;", "n/e/t=a", "net=-a", "net=" + strings.Repeat("a", 64),
	} {
		if got, err := parseTopology(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
	if err := CheckTopology(DefaultTopology); err != nil {
		t.Error(err)
	}
}
