package driver

import (
	"fmt"
	"maps"
	"regexp"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// DefaultTopology is the topology of a node that is configured without one. Kubernetes' provisioner
// requires that each node has a topology.
var DefaultTopology = map[string]string{Name + "/network": "default"}

var (
	labelValue = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	labelKey   = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?` +
		`[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
)

// CheckTopology refuses segments that cannot be labels of nodes.
func CheckTopology(segments map[string]string) error {
	for k, v := range segments {
		if !labelKey.MatchString(k) || !labelValue.MatchString(v) {
			return fmt.Errorf("topology %s=%s: use the key and the value of a label, such as %s/network=rack-a", k, v, Name)
		}
	}
	return nil
}

// parseTopology reads the parameter topology: alternatives with semicolons between them. An
// alternative is a list of KEY=VALUE pairs with commas between them. A node must have all pairs of
// one alternative.
func parseTopology(s string) (list []map[string]string, err error) {
	if s == "" {
		return nil, nil
	}
	for alternative := range strings.SplitSeq(s, ";") {
		segments := map[string]string{}
		for pair := range strings.SplitSeq(alternative, ",") {
			k, v, _ := strings.Cut(strings.TrimSpace(pair), "=")
			if _, twice := segments[k]; twice {
				return nil, fmt.Errorf("%s: %s is there twice", paramTopology, k)
			}
			segments[k] = v
		}
		if err := CheckTopology(segments); err != nil {
			return nil, err
		}
		list = append(list, segments)
	}
	return list, nil
}

// accessible returns the topologies of a class that meet a request. A class without topologies is
// reachable from everywhere.
func accessible(class []map[string]string, want *csi.TopologyRequirement) ([]*csi.Topology, error) {
	var out []*csi.Topology
	for _, segments := range class {
		if len(want.GetRequisite()) == 0 || anyHas(want.GetRequisite(), segments) {
			out = append(out, &csi.Topology{Segments: maps.Clone(segments)})
		}
	}
	if len(class) > 0 && len(out) == 0 {
		return nil, status.Errorf(codes.ResourceExhausted, "the server is reached from %v alone (%s of the class), which is "+
			"not where the volume is wanted", class, paramTopology)
	}
	return out, nil
}

func anyHas(list []*csi.Topology, segments map[string]string) bool {
	for _, t := range list {
		all := true
		for k, v := range segments {
			have, ok := t.GetSegments()[k]
			all = all && ok && have == v
		}
		if all {
			return true
		}
	}
	return false
}
